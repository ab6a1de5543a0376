"""A map of descriptors (two numbers for each point, e.g. t-SNE), worked out for inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray
from selfmark.report.landmark_pictures import Picture, to_data_uri
from selfmark.report.sections import IntArray
from selfmark.sampling import evenly_spaced

WIDTH, HEIGHT = 580, 440  # of the map, SVG units
CUT = 30  # side of a cut-out on the map
_MARGIN = 18
_MOST_DOTS = 1000
_MOST_CUTS = 120
_GRAY = "#8a929b"  # of points that belong to no landmark


@dataclass(frozen=True)
class Cloud:
    """The points of one landmark: all its dots as one SVG path, and the place of its number."""

    index: int  # -1: points of no landmark
    color: str
    dots: str
    middle: tuple[float, float]


@dataclass(frozen=True)
class Scatter:
    """Clouds, and some cut-outs that do not overlap as (left, top, color, data address)."""

    clouds: tuple[Cloud, ...]
    cuts: tuple[tuple[float, float, str, str], ...]
    shown: int


def build_scatter(xy: FloatArray, label: IntArray, colors: Sequence[str], cuts: Picture | None) -> Scatter:
    """Lay a map out; points that are not finite are left out.

    Args:
        xy: [P, 2] places on the map, in any unit; both axes keep the same scale.
        label: [P] landmark of each point; outside 0..K-1: none.
        colors: "#rrggbb" of each of the K landmarks.
        cuts: [P, c, c, 3] what is seen at each point, or None.
    """
    kept = np.flatnonzero(np.isfinite(xy).all(axis=1))
    if len(kept) > _MOST_DOTS:
        kept = kept[evenly_spaced(len(kept), _MOST_DOTS)]
    if not len(kept):
        return Scatter((), (), 0)
    places = _fit(xy[kept])
    label = np.where((label[kept] >= 0) & (label[kept] < len(colors)), label[kept], -1)
    fills = [*colors, _GRAY]  # the last is what -1 picks
    clouds = tuple(_cloud(index, fills[index], places[label == index]) for index in np.unique(label).tolist())
    shown = _apart(places) if cuts is not None else []
    pictures = () if cuts is None else tuple(to_data_uri(cuts[kept[row]]) for row in shown)
    corners = tuple(
        (round(x - CUT / 2, 1), round(y - CUT / 2, 1)) for x, y in (places[row].tolist() for row in shown)
    )
    return Scatter(
        clouds=clouds,
        cuts=tuple(
            (*corner, fills[label[row]], picture)
            for corner, row, picture in zip(corners, shown, pictures, strict=True)
        ),
        shown=len(kept),
    )


def _cloud(index: int, color: str, places: FloatArray) -> Cloud:
    x, y = np.median(places, axis=0).tolist()
    # A line of no length with round ends is a disc: a tenth of the text that as many <circle> would take.
    dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in places.tolist())
    return Cloud(index, color, dots, (round(x, 1), round(y, 1)))


def _fit(xy: FloatArray) -> FloatArray:
    """Points moved and scaled into the map, as large as fits; y grows downwards as in pictures."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    room = np.array([WIDTH, HEIGHT]) - 2 * _MARGIN
    span = np.maximum(high - low, 1e-12)
    scale = float((room / span).min())
    fitted: FloatArray = np.array([WIDTH, HEIGHT]) / 2 + (xy - (low + high) / 2) * scale
    return fitted


def _apart(places: FloatArray) -> list[int]:
    """Rows of points so far apart that their cut-outs do not overlap, first come first served."""
    chosen: list[int] = []
    for row in range(len(places)):
        gaps = np.abs(places[chosen] - places[row]).max(axis=1) if chosen else np.array([np.inf])
        if gaps.min() >= CUT + 2:
            chosen.append(row)
        if len(chosen) == _MOST_CUTS:
            break
    return chosen
