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
_OPACITY = 200  # of a trail where it is newest, of 255
_FAINT = 0.3  # opacity of a landmark the detector does not see
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class DrawnObject:
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
class DrawingStyle:
    """colors: [K, 3] of the landmarks; edges: pairs of landmarks to connect."""

    colors: npt.NDArray[np.uint8]
    edges: tuple[tuple[int, int], ...]


def draw_frame(frame: Pixels, objects: Sequence[DrawnObject], style: DrawingStyle) -> Pixels:
    """A copy of the frame [H, W, 3] with its objects."""
    canvas = _trails(frame, objects, style.colors)
    for seen in objects:
        radius = float(np.clip(_RADIUS * seen.size, _LEAST, _MOST))
        for a, b in style.edges:
            trust = float(min(seen.trust[a], seen.trust[b]))
            _line(canvas, seen.xy[a], seen.xy[b], round(radius * 0.6) or 1, _WHITE, 0.75 * trust)
        for index, place in enumerate(seen.xy):
            _disc(canvas, place, radius, style.colors[index], float(seen.trust[index]))
        if seen.tag:
            _write(canvas, seen)
    return canvas


def smooth_trail(history: deque[FloatArray] | Sequence[FloatArray], size: float) -> FloatArray:
    """The last places [T, K, 2] of landmarks, smoothed; before a landmark's last jump, NaN."""
    trail = np.stack(list(history)).astype(np.float64)
    if len(trail) < 2:
        return trail
    jumps = np.linalg.norm(np.diff(trail, axis=0), axis=2) > _JUMP * size  # [T - 1, K]
    for landmark in range(trail.shape[1]):
        start = int(np.flatnonzero(jumps[:, landmark])[-1]) + 1 if jumps[:, landmark].any() else 0
        trail[start:-1, landmark] = gaussian_filter1d(
            trail[start:, landmark], _SMOOTH, axis=0, mode="nearest"
        )[:-1]  # the last place stays: a trail leads to where the landmark is
        trail[:start, landmark] = np.nan
    return trail


def landmark_opacity(score: FloatArray, usual: FloatArray) -> FloatArray:
    """How opaque landmarks [K] are drawn: fully from half of their usual score on, faint where far below.

    >>> trust(np.array([0.4, 0.1, 0.0]), np.array([0.4, 0.4, 0.4])).tolist()
    [1.0, 0.5, 0.3]
    """
    return np.asarray(np.clip(score / np.maximum(0.5 * usual, 1e-6), _FAINT, 1.0), dtype=np.float64)


# --- on the canvas ---------------------------------------------------------------------------------


def _trails(frame: Pixels, objects: Sequence[DrawnObject], colors: npt.NDArray[np.uint8]) -> Pixels:
    """The frame with all trails, drawn apart and then laid over it, so that they let it shine through."""
    layer, opacity = frame.copy(), np.zeros(frame.shape[:2], np.uint8)
    for seen in objects:
        steps = len(seen.trail) - 1
        width = max(1, round(float(np.clip(_RADIUS * seen.size, _LEAST, _MOST)) * 0.5))
        known = np.isfinite(seen.trail).min(axis=2)  # [T, K]
        places = _fixed(np.where(known[..., None], seen.trail, 0)).tolist()
        for step, index in np.argwhere(known[:-1] & known[1:]).tolist():
            start, end = places[step][index], places[step + 1][index]
            shade = round(_OPACITY * ((step + 1) / steps) ** 1.5)
            # The color is drawn wider: what is blended in at the edge must not be the background's.
            cv2.line(layer, start, end, colors[index].tolist(), width + 2, cv2.LINE_8, _SUBPIXEL)
            cv2.line(opacity, start, end, shade, width, cv2.LINE_AA, _SUBPIXEL)
    if not opacity.any():
        return layer
    x, y, w, h = cv2.boundingRect(opacity)
    share = opacity[y : y + h, x : x + w, None].astype(np.float32) / 255
    mixed = frame[y : y + h, x : x + w] * (1 - share) + layer[y : y + h, x : x + w] * share
    canvas = frame.copy()
    canvas[y : y + h, x : x + w] = mixed.round().astype(np.uint8)
    return canvas


def _disc(
    canvas: Pixels, place: FloatArray, radius: float, color: npt.NDArray[np.uint8], opacity: float
) -> None:
    part = _part(canvas, place - radius - 3, place + radius + 3)
    if part is None or not np.isfinite(place).all():
        return
    corner, window = part
    layer = window.copy()
    center = _fixed(place - corner).tolist()
    cv2.circle(layer, center, int((radius + 1.2) * 2**_SUBPIXEL), _BLACK, -1, cv2.LINE_AA, _SUBPIXEL)
    cv2.circle(layer, center, int(radius * 2**_SUBPIXEL), color.tolist(), -1, cv2.LINE_AA, _SUBPIXEL)
    cv2.addWeighted(layer, opacity, window, 1 - opacity, 0, dst=window)


def _line(
    canvas: Pixels,
    start: FloatArray,
    end: FloatArray,
    width: int,
    color: tuple[int, int, int],
    opacity: float,
) -> None:
    part = _part(canvas, np.minimum(start, end) - width - 2, np.maximum(start, end) + width + 2)
    if part is None:
        return
    corner, window = part
    layer = window.copy()
    ends = _fixed(np.stack([start, end]) - corner).tolist()
    cv2.line(layer, ends[0], ends[1], color, width, cv2.LINE_AA, _SUBPIXEL)
    cv2.addWeighted(layer, opacity, window, 1 - opacity, 0, dst=window)


def _write(canvas: Pixels, seen: DrawnObject) -> None:
    """The tag to the right above the object, white with a dark rim."""
    places = seen.xy[np.isfinite(seen.xy).all(axis=1)]
    if not len(places):
        return
    x, y = places[:, 0].max() + 8, places[:, 1].min() - 4
    scale = float(np.clip(seen.size / 160, 0.5, 1.2))
    height, width = canvas.shape[:2]
    at = int(np.clip(x, 2, width - 24 * scale)), int(np.clip(y, 22 * scale, height - 4))
    for color, thickness in ((_BLACK, 4), (_WHITE, 1)):
        cv2.putText(canvas, seen.tag, at, cv2.FONT_HERSHEY_SIMPLEX, scale, color, thickness, cv2.LINE_AA)


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


def _fixed(places: FloatArray) -> npt.NDArray[np.int64]:
    """cv2's fixed-point coordinates, so that a disc is centered to a sixteenth of a pixel."""
    return np.asarray(np.round(np.clip(places, -1e4, 1e4) * 2**_SUBPIXEL), dtype=np.int64)
