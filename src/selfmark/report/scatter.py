"""Lay out a map on which similar points are close together, for inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray
from selfmark.report.sections import IntArray
from selfmark.sampling import evenly_spaced

WIDTH, HEIGHT = 580, 440  # size of the map, SVG units
_MARGIN = 18  # distance of the dots from the edge of the map, SVG units
_MAX_DOTS = 1000
_GRAY = "#8a929b"  # color of points without a landmark


@dataclass(frozen=True)
class DotGroup:
    """The dots of one landmark.

    Attributes:
        index: Number of the landmark; -1 for points without a landmark.
        color: "#rrggbb".
        dots: One SVG path with all dots.
        center: Position of the landmark's number, SVG units.
    """

    index: int
    color: str
    dots: str
    center: tuple[float, float]


@dataclass(frozen=True)
class Scatter:
    """A map of points.

    Attributes:
        groups: Dots of each landmark.
        num_points: Number of dots.
    """

    groups: tuple[DotGroup, ...]
    num_points: int


def build_scatter(xy: FloatArray, label: IntArray, colors: Sequence[str]) -> Scatter:
    """Lay out a map; points that are not finite are left out.

    Args:
        xy: [P, 2] positions in any unit; both axes are scaled by the same factor.
        label: [P] landmark of each point; a value outside 0..K-1 means that the point has none.
        colors: "#rrggbb" of each of the K landmarks.
    """
    kept = np.flatnonzero(np.isfinite(xy).all(axis=1))
    if len(kept) > _MAX_DOTS:
        kept = kept[evenly_spaced(len(kept), _MAX_DOTS)]
    if not len(kept):
        return Scatter((), 0)
    positions = _fit_to_map(xy[kept])
    label = np.where((label[kept] >= 0) & (label[kept] < len(colors)), label[kept], -1)
    fills = [*colors, _GRAY]  # index -1 selects the gray
    groups = tuple(
        _build_group(index, fills[index], positions[label == index]) for index in np.unique(label).tolist()
    )
    return Scatter(groups, len(kept))


def _build_group(index: int, color: str, positions: FloatArray) -> DotGroup:
    x, y = np.median(positions, axis=0).tolist()
    # A line of length zero with round ends is a disc. Its text is shorter than a <circle> element.
    dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in positions.tolist())
    return DotGroup(index, color, dots, (round(x, 1), round(y, 1)))


def _fit_to_map(xy: FloatArray) -> FloatArray:
    """Shift and scale points [P, 2] so that they fill the width or the height of the map."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    available = np.array([WIDTH, HEIGHT]) - 2 * _MARGIN
    span = np.maximum(high - low, 1e-12)
    scale = float((available / span).min())
    positions: FloatArray = np.array([WIDTH, HEIGHT]) / 2 + (xy - (low + high) / 2) * scale
    return positions
