"""One frame with its objects: trails that fade, edges of the skeleton, a disc per landmark."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from selfmark.images.decode import Pixels
from selfmark.points import FloatArray

_SUBPIXEL = 4  # binary digits after the point in cv2's drawing coordinates
_RADIUS = 0.022  # of a landmark's disc, as a share of its object's size
_LEAST, _MOST = 3.0, 9.0  # of that radius, pixels of the enlarged frame
_JUMP = (
    0.35  # of the object's size; a landmark that moves so far in one frame was mistaken, and draws no trail
)
_SMOOTH = 1.5  # frames, width of the bell that smooths a trail
_FAINT = 0.3  # opacity of a landmark the detector does not see
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Seen:
    """An object of a frame, in pixels of the enlarged frame.

    xy:    [K, 2]
    trust: [K] 0 to 1, how opaque each landmark is drawn
    size:  of the object, pixels
    tag:   what is written beside it; empty for nothing
    trail: [T, K, 2], the same landmarks in the frames before, oldest first, this frame last
    """

    xy: FloatArray
    trust: FloatArray
    size: float
    tag: str
    trail: FloatArray


@dataclass(frozen=True)
class Style:
    """colours: [K, 3] of the landmarks; edges: pairs of landmarks to connect."""

    colours: npt.NDArray[np.uint8]
    edges: tuple[tuple[int, int], ...]


def draw(frame: Pixels, objects: Sequence[Seen], style: Style) -> Pixels:
    """A copy of the frame [H, W, 3] with its objects."""
    canvas = _trails(frame, objects, style.colours)
    for seen in objects:
        radius = float(np.clip(_RADIUS * seen.size, _LEAST, _MOST))
        for a, b in style.edges:
            trust = float(min(seen.trust[a], seen.trust[b]))
            _line(canvas, seen.xy[a], seen.xy[b], round(radius * 0.6) or 1, _WHITE, 0.75 * trust)
        for index, place in enumerate(seen.xy):
            _disc(canvas, place, radius, style.colours[index], float(seen.trust[index]))
        if seen.tag:
            _write(canvas, seen)
    return canvas


def smooth_trail(history: deque[FloatArray] | Sequence[FloatArray], size: float) -> FloatArray:
    """The last places [T, K, 2] of landmarks, smoothed; up to a jump of a landmark, NaN."""
    trail = np.stack(list(history)).astype(np.float64)
    if len(trail) < 2:
        return trail
    jumps = np.linalg.norm(np.diff(trail, axis=0), axis=2) > _JUMP * size  # [T - 1, K]
    before = np.flip(np.cumsum(np.flip(jumps, axis=0), axis=0), axis=0) > 0
    smooth = gaussian_filter1d(trail, _SMOOTH, axis=0, mode="nearest")
    smooth[:-1][before] = np.nan
    smooth[-1] = trail[-1]  # it leads to where the landmark is
    return smooth


def trust(score: FloatArray, usual: FloatArray) -> FloatArray:
    """How opaque landmarks [K] are drawn: fully from half of their usual score on, faint where far below.

    >>> trust(np.array([0.4, 0.1, 0.0]), np.array([0.4, 0.4, 0.4])).tolist()
    [1.0, 0.5, 0.3]
    """
    return np.asarray(np.clip(score / np.maximum(0.5 * usual, 1e-6), _FAINT, 1.0), dtype=np.float64)


# --- on the canvas ---------------------------------------------------------------------------------


def _trails(frame: Pixels, objects: Sequence[Seen], colours: npt.NDArray[np.uint8]) -> Pixels:
    """The frame with all trails, drawn apart and then laid over it, so that they let it shine through."""
    layer, opacity = frame.copy(), np.zeros(frame.shape[:2], np.uint8)
    for seen in objects:
        steps = len(seen.trail) - 1
        width = max(1, round(float(np.clip(_RADIUS * seen.size, _LEAST, _MOST)) * 0.5))
        for step in range(steps):
            shade = round(200 * ((step + 1) / steps) ** 1.5)
            for index, colour in enumerate(colours.tolist()):
                start, end = seen.trail[step, index], seen.trail[step + 1, index]
                if np.isfinite(start).all() and np.isfinite(end).all():
                    # The colour is drawn wider: what is blended in at the edge must not be the background's.
                    cv2.line(layer, _fixed(start), _fixed(end), colour, width + 2, cv2.LINE_8, _SUBPIXEL)
                    cv2.line(opacity, _fixed(start), _fixed(end), shade, width, cv2.LINE_AA, _SUBPIXEL)
    if not opacity.any():
        return layer
    x, y, w, h = cv2.boundingRect(opacity)
    share = opacity[y : y + h, x : x + w, None].astype(np.float32) / 255
    mixed = frame[y : y + h, x : x + w] * (1 - share) + layer[y : y + h, x : x + w] * share
    canvas = frame.copy()
    canvas[y : y + h, x : x + w] = mixed.round().astype(np.uint8)
    return canvas


def _disc(
    canvas: Pixels, place: FloatArray, radius: float, colour: npt.NDArray[np.uint8], opacity: float
) -> None:
    part = _part(canvas, place - radius - 3, place + radius + 3)
    if part is None or not np.isfinite(place).all():
        return
    corner, window = part
    layer = window.copy()
    centre = _fixed(place - corner)
    cv2.circle(layer, centre, int((radius + 1.2) * 2**_SUBPIXEL), _BLACK, -1, cv2.LINE_AA, _SUBPIXEL)
    cv2.circle(layer, centre, int(radius * 2**_SUBPIXEL), colour.tolist(), -1, cv2.LINE_AA, _SUBPIXEL)
    cv2.addWeighted(layer, opacity, window, 1 - opacity, 0, dst=window)


def _line(
    canvas: Pixels,
    start: FloatArray,
    end: FloatArray,
    width: int,
    colour: tuple[int, int, int],
    opacity: float,
) -> None:
    part = _part(canvas, np.minimum(start, end) - width - 2, np.maximum(start, end) + width + 2)
    if part is None:
        return
    corner, window = part
    layer = window.copy()
    cv2.line(layer, _fixed(start - corner), _fixed(end - corner), colour, width, cv2.LINE_AA, _SUBPIXEL)
    cv2.addWeighted(layer, opacity, window, 1 - opacity, 0, dst=window)


def _write(canvas: Pixels, seen: Seen) -> None:
    """The tag to the right above the object, white with a dark rim."""
    places = seen.xy[np.isfinite(seen.xy).all(axis=1)]
    if not len(places):
        return
    x, y = places[:, 0].max() + 8, places[:, 1].min() - 4
    scale = float(np.clip(seen.size / 160, 0.5, 1.2))
    height, width = canvas.shape[:2]
    at = int(np.clip(x, 2, width - 24 * scale)), int(np.clip(y, 22 * scale, height - 4))
    for colour, thickness in ((_BLACK, 4), (_WHITE, 1)):
        cv2.putText(canvas, seen.tag, at, cv2.FONT_HERSHEY_SIMPLEX, scale, colour, thickness, cv2.LINE_AA)


def _part(canvas: Pixels, low: FloatArray, high: FloatArray) -> tuple[FloatArray, Pixels] | None:
    """The part of the canvas between two corners and where it begins; None if there is none."""
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    height, width = canvas.shape[:2]
    left, top = np.clip(np.floor(low), 0, (width, height)).astype(int).tolist()
    right, bottom = np.clip(np.ceil(high) + 1, 0, (width, height)).astype(int).tolist()
    if left >= right or top >= bottom:
        return None
    return np.array([left, top], dtype=np.float64), canvas[top:bottom, left:right]


def _fixed(place: FloatArray) -> tuple[int, int]:
    x, y = np.round(np.clip(place, -1e4, 1e4) * 2**_SUBPIXEL).astype(int).tolist()
    return x, y
