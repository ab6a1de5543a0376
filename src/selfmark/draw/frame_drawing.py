"""Draw the objects of a video frame or photo: fading trails, edges, and a disc or a ring per landmark."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from selfmark.draw.primitives import (
    BLACK,
    SUBPIXEL_BITS,
    WHITE,
    draw_disc,
    draw_label,
    draw_line,
    draw_text,
    measure_label,
    to_fixed_point,
)
from selfmark.images.decode import Pixels
from selfmark.points import FloatArray

_RADIUS = 0.022  # radius of a landmark's disc, as a fraction of the size of its object
_MIN_RADIUS, _MAX_RADIUS = 3.0, 9.0  # limits of this radius, pixels of the resized picture
_BORDER = 1.2  # width of the black border of a disc, pixels
_RING_WIDTH = 0.3  # width of the ring of a hollow landmark, as a fraction of its radius
_MIN_RING_WIDTH = 1.5  # pixels
# If a landmark moves farther than this fraction of the object's size between two frames, it was probably
# confused with another landmark, and its trail starts again.
_MAX_STEP = 0.35
_TRAIL_SIGMA = 1.5  # sigma of the Gaussian that smooths a trail, frames
_TRAIL_OPACITY = 200  # opacity of the newest part of a trail, out of 255
_EDGE_OPACITY = 0.75  # opacity of the edges between fully opaque landmarks
_MIN_OPACITY = 0.3  # opacity of a landmark with a score of 0


@dataclass(frozen=True)
class DrawnObject:
    """An object of a video frame or photo, in pixels of the resized picture.

    Attributes:
        xy: [K, 2] landmarks.
        opacity: [K] opacity of each landmark, 0 to 1.
        size: Size of the object in pixels.
        tag: Text beside the object; may be empty.
        trail: [T, K, 2] the landmarks in the last T frames, from the oldest frame to this one.
        confidence: [K] score of each landmark divided by its typical score, at most 1, for the legend.
    """

    xy: FloatArray
    opacity: FloatArray
    size: float
    tag: str
    trail: FloatArray
    confidence: FloatArray


@dataclass(frozen=True)
class DrawingStyle:
    """How landmarks are drawn.

    Attributes:
        colors: [K, 3] color of each landmark.
        edges: Pairs of landmarks to connect.
        hollow: Landmarks drawn as a ring instead of a disc.
        texts: Text beside each landmark; an empty tuple draws no text.
    """

    colors: npt.NDArray[np.uint8]
    edges: tuple[tuple[int, int], ...]
    hollow: frozenset[int] = frozenset()
    texts: tuple[str, ...] = ()


def draw_frame(frame: Pixels, objects: Sequence[DrawnObject], style: DrawingStyle) -> Pixels:
    """Draw objects on a copy of the frame [H, W, 3].

    Rings are drawn before the discs of the same object, so that a ring never covers a disc.
    """
    canvas = _draw_trails(frame, objects, style.colors)
    order = sorted(range(len(style.colors)), key=lambda index: index not in style.hollow)  # hollow ones first
    for instance in objects:
        radius = _compute_disc_radius(instance)
        for a, b in style.edges:
            opacity = _EDGE_OPACITY * float(min(instance.opacity[a], instance.opacity[b]))
            _blend_line(canvas, instance.xy[a], instance.xy[b], round(radius * 0.6) or 1, opacity)
        for index in order:
            color, opacity = style.colors[index].tolist(), float(instance.opacity[index])
            inside = frame if index in style.hollow else None
            _blend_disc(canvas, instance.xy[index], radius, color, opacity, inside)
        for index, text in enumerate(style.texts):  # after all discs, so that no disc hides a text
            if text and np.isfinite(instance.xy[index]).all():
                _draw_landmark_text(canvas, text, instance.xy[index], radius)
        if instance.tag:
            _draw_tag(canvas, instance)
    return canvas


def smooth_trail(history: deque[FloatArray] | Sequence[FloatArray], size: float) -> FloatArray:
    """Smooth the recent positions of landmarks.

    Args:
        history: Positions [K, 2] in the last T frames, oldest first.
        size: Size of the object in pixels.

    Returns:
        [T, K, 2] positions; NaN before the last jump or gap of a landmark. The newest position is not
        smoothed, so that the trail ends at the landmark.
    """
    trail = np.stack(list(history)).astype(np.float64)
    if len(trail) < 2:
        return trail
    steps = np.linalg.norm(np.diff(trail, axis=0), axis=2)  # [T - 1, K]; NaN beside a gap
    jumps = ~(steps <= _MAX_STEP * size)  # a gap counts as a jump
    for landmark in range(trail.shape[1]):
        jump_steps = np.flatnonzero(jumps[:, landmark])
        start = int(jump_steps[-1]) + 1 if len(jump_steps) else 0
        smooth = gaussian_filter1d(trail[start:, landmark], _TRAIL_SIGMA, axis=0, mode="nearest")
        trail[start:-1, landmark] = smooth[:-1]
        trail[:start, landmark] = np.nan
    return trail


def compute_confidence(score: FloatArray, typical_score: FloatArray) -> FloatArray:
    """Return the scores [K] divided by their typical values, at most 1."""
    return np.clip(score / np.maximum(typical_score, 1e-6), 0.0, 1.0)


def compute_opacity(score: FloatArray, typical_score: FloatArray) -> FloatArray:
    """Return the opacity [K] of landmarks: 1 if the score is at least half the typical score, else less.

    >>> compute_opacity(np.array([0.4, 0.1, 0.0]), np.array([0.4, 0.4, 0.4])).tolist()
    [1.0, 0.5, 0.3]
    """
    opacity = np.clip(score / np.maximum(0.5 * typical_score, 1e-6), _MIN_OPACITY, 1.0)
    return np.asarray(opacity, dtype=np.float64)


def _compute_disc_radius(instance: DrawnObject) -> float:
    return float(np.clip(_RADIUS * instance.size, _MIN_RADIUS, _MAX_RADIUS))


def _draw_trails(frame: Pixels, objects: Sequence[DrawnObject], colors: npt.NDArray[np.uint8]) -> Pixels:
    """Draw all trails on a separate layer, and return a copy of the frame with the layer blended in."""
    layer, opacity = frame.copy(), np.zeros(frame.shape[:2], np.uint8)
    for instance in objects:
        steps = len(instance.trail) - 1
        width = max(1, round(_compute_disc_radius(instance) * 0.5))
        known = np.isfinite(instance.trail).min(axis=2)  # [T, K]
        positions = to_fixed_point(np.where(known[..., None], instance.trail, 0)).tolist()
        for step, index in np.argwhere(known[:-1] & known[1:]).tolist():
            start, end = positions[step][index], positions[step + 1][index]
            step_opacity = round(_TRAIL_OPACITY * ((step + 1) / steps) ** 1.5)
            # The colored line is wider than the opacity mask, so that no background is blended in.
            cv2.line(layer, start, end, colors[index].tolist(), width + 2, cv2.LINE_8, SUBPIXEL_BITS)
            cv2.line(opacity, start, end, step_opacity, width, cv2.LINE_AA, SUBPIXEL_BITS)
    if not opacity.any():
        return layer
    x, y, w, h = cv2.boundingRect(opacity)
    alpha = opacity[y : y + h, x : x + w, None].astype(np.float32) / 255
    blended = frame[y : y + h, x : x + w] * (1 - alpha) + layer[y : y + h, x : x + w] * alpha
    canvas = frame.copy()
    canvas[y : y + h, x : x + w] = blended.round().astype(np.uint8)
    return canvas


def _blend_disc(
    canvas: Pixels,
    center: FloatArray,
    radius: float,
    color: Sequence[int],
    opacity: float,
    inside: Pixels | None,
) -> None:
    """Draw a disc. If `inside` is a frame, draw a ring that shows the frame in its middle."""

    def draw(layer: Pixels, corner: FloatArray) -> None:
        draw_disc(layer, center - corner, radius + _BORDER, BLACK)
        draw_disc(layer, center - corner, radius, color)
        if inside is not None:
            inner_radius = radius - max(_RING_WIDTH * radius, _MIN_RING_WIDTH)
            _restore_disc(layer, inside, center, inner_radius, corner)

    _blend(canvas, center - radius - 3, center + radius + 3, opacity, draw)


def _restore_disc(
    layer: Pixels, frame: Pixels, center: FloatArray, radius: float, corner: FloatArray
) -> None:
    """Replace a disc of `layer` by the pixels of the frame.

    Args:
        layer: Copy of a part of the frame, with drawings.
        frame: Frame without drawings.
        center: (x, y) of the disc in the frame.
        radius: Radius of the disc.
        corner: (x, y) of the upper left corner of `layer` in the frame.
    """
    left, top = corner.astype(int).tolist()
    height, width = layer.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    draw_disc(mask, center - corner, radius, WHITE)
    alpha = mask[..., None].astype(np.float32) / 255
    blended = layer * (1 - alpha) + frame[top : top + height, left : left + width] * alpha
    layer[:] = blended.round().astype(np.uint8)


def _blend_line(canvas: Pixels, start: FloatArray, end: FloatArray, width: int, opacity: float) -> None:
    def draw(layer: Pixels, corner: FloatArray) -> None:
        draw_line(layer, start - corner, end - corner, width, WHITE)

    _blend(canvas, np.minimum(start, end) - width - 2, np.maximum(start, end) + width + 2, opacity, draw)


def _blend(
    canvas: Pixels,
    low: FloatArray,
    high: FloatArray,
    opacity: float,
    draw: Callable[[Pixels, FloatArray], None],
) -> None:
    """Draw in a rectangle of the canvas with an opacity.

    Args:
        canvas: Picture to draw on.
        low: (x, y) of the upper left corner of the rectangle; it may be outside the canvas.
        high: (x, y) of the lower right corner of the rectangle.
        opacity: Opacity, 0 to 1.
        draw: Function that draws on its first argument, a copy of the part of the canvas inside the
            rectangle. The second argument is the (x, y) of the upper left corner of this part.
    """
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return
    height, width = canvas.shape[:2]
    left, top = np.clip(np.floor(low), 0, (width, height)).astype(int).tolist()
    right, bottom = np.clip(np.ceil(high) + 1, 0, (width, height)).astype(int).tolist()
    if left >= right or top >= bottom:
        return
    window = canvas[top:bottom, left:right]
    layer = window.copy()
    draw(layer, np.array([left, top], dtype=np.float64))
    cv2.addWeighted(layer, opacity, window, 1 - opacity, 0, dst=window)


def _draw_landmark_text(canvas: Pixels, text: str, center: FloatArray, radius: float) -> None:
    """Write the text of a landmark at the upper right of its disc, but inside the canvas."""
    font_height = round(np.clip(2 * radius, 11, 16))
    width, height = measure_label(text, font_height)
    x = int(np.clip(center[0] + radius + 1, 0, max(canvas.shape[1] - width, 0)))
    y = int(np.clip(center[1] - radius * 0.6, height, canvas.shape[0] - 2))
    draw_label(canvas, text, (x, y), font_height)


def _draw_tag(canvas: Pixels, instance: DrawnObject) -> None:
    """Write the tag at the upper right of the object, but inside the canvas."""
    visible = instance.xy[np.isfinite(instance.xy).all(axis=1)]
    if not len(visible):
        return
    x, y = visible[:, 0].max() + 8, visible[:, 1].min() - 4
    scale = float(np.clip(instance.size / 160, 0.5, 1.2))
    height, width = canvas.shape[:2]
    corner = int(np.clip(x, 2, width - 24 * scale)), int(np.clip(y, 22 * scale, height - 4))
    draw_text(canvas, instance.tag, corner, scale, outline=4)
