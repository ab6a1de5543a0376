"""Draw masks, tones and textures of generated images. Pixel centers are at integer coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Image = npt.NDArray[np.float32]  # [S, S]: gray values in 0..1, or the fraction of each pixel that is covered

SUPERSAMPLING = 2  # masks are drawn this many times larger and then reduced, for accurate outlines
_SHIFT = 4  # OpenCV takes coordinates as integers in units of 1/16 pixel
MIN_CONTRAST = 0.12  # minimum difference between adjacent tones


def _to_fine_pixels(xy: Array) -> npt.NDArray[np.int32]:
    """Return positions in pixels of the larger mask, in the integer units of OpenCV."""
    scaled = ((np.asarray(xy) + 0.5) * SUPERSAMPLING - 0.5) * (1 << _SHIFT)
    return np.round(scaled).astype(np.int32)


def _downsample(fine: npt.NDArray[np.uint8], side: int) -> Image:
    small = cv2.resize(fine, (side, side), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32) / np.float32(255)


def draw_polygons(side: int, outlines: Sequence[Array]) -> Image:
    """Return the coverage [S, S] of polygons with outlines [n, 2]."""
    fine = np.zeros((side * SUPERSAMPLING, side * SUPERSAMPLING), np.uint8)
    for outline in outlines:
        cv2.fillPoly(fine, [_to_fine_pixels(outline)], 255, cv2.LINE_AA, _SHIFT)
    return _downsample(fine, side)


def draw_strokes(side: int, segments: Sequence[tuple[Array, Array]], width: float) -> Image:
    """Return the coverage [S, S] of straight strokes between pairs of points, `width` pixels wide."""
    fine = np.zeros((side * SUPERSAMPLING, side * SUPERSAMPLING), np.uint8)
    for start, end in segments:
        a, b = _to_fine_pixels(start).tolist(), _to_fine_pixels(end).tolist()
        cv2.line(fine, a, b, 255, max(1, round(width * SUPERSAMPLING)), cv2.LINE_AA, _SHIFT)
    return _downsample(fine, side)


def _offsets(side: int, center: Array, turn: float) -> tuple[Image, Image]:
    """Return the coordinates of all pixels along and across a direction, relative to `center`, 2 x [S, S]."""
    x = np.arange(side, dtype=np.float32)[None, :] - np.float32(center[0])
    y = np.arange(side, dtype=np.float32)[:, None] - np.float32(center[1])
    cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
    return cos * x + sin * y, cos * y - sin * x


def draw_ellipse(side: int, center: Array, radii: Sequence[float], turn: float) -> Image:
    """Return the coverage [S, S] of an ellipse that is rotated by `turn` (radians)."""
    angle = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    rim = np.stack([radii[0] * np.cos(angle), radii[1] * np.sin(angle)], axis=1)
    return draw_polygons(side, [center + rim @ make_rotation(turn).T])


def draw_gaussian(side: int, center: Array, sigmas: Sequence[float], turn: float) -> Image:
    """Return a Gaussian blob [S, S] of height 1 that is rotated by `turn` (radians)."""
    along, across = _offsets(side, center, turn)
    result: Image = np.exp(-0.5 * ((along / sigmas[0]) ** 2 + (across / sigmas[1]) ** 2)).astype(np.float32)
    return result


def make_closed_curve(rng: np.random.Generator, center: Array, radius: float, wobble: float) -> Array:
    """Return a smooth closed outline [72, 2]. `wobble` is its relative deviation from an ellipse."""
    angle = np.linspace(0, 2 * np.pi, 72, endpoint=False)
    factor = np.ones_like(angle)
    for order in range(2, 6):
        factor += rng.normal(0, wobble / order) * np.cos(order * angle + rng.uniform(0, 2 * np.pi))
    stretch = np.exp(rng.uniform(-0.4, 0.4))
    flat = np.stack([np.cos(angle) * stretch, np.sin(angle) / stretch], axis=1) * (radius * factor)[:, None]
    result: Array = center + flat @ make_rotation(rng.uniform(0, np.pi)).T
    return result


def make_rotation(angle: float) -> Array:
    """Return the 2 x 2 matrix of a rotation by `angle` (radians)."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def choose_tone(rng: np.random.Generator, *neighbors: float) -> float:
    """Return a random gray value that differs from its neighbors by at least `MIN_CONTRAST` if possible."""
    for _ in range(20):
        value = float(rng.uniform(0.02, 0.98))
        if all(abs(value - other) >= MIN_CONTRAST for other in neighbors):
            return value
    return 1.0 - round(float(np.mean(neighbors)))  # black or white, whichever differs more


def make_smooth_surface(rng: np.random.Generator, side: int, knots: int) -> Image:
    """Return a smooth random surface [S, S], about -1..1, with `knots` knots along a side."""
    grid = rng.uniform(-1, 1, (knots, knots)).astype(np.float32)
    return np.asarray(cv2.resize(grid, (side, side), interpolation=cv2.INTER_CUBIC), np.float32)


def make_clouds(rng: np.random.Generator, side: int, roughness: float) -> Image:
    """Return fractal noise [S, S] in -1..1. Each octave is `roughness` times as strong as the one before."""
    total, weight, knots = np.zeros((side, side), np.float32), 1.0, 3
    while knots <= side:
        total += np.float32(weight) * make_smooth_surface(rng, side, knots)
        weight, knots = weight * roughness, knots * 2
    result: Image = total / max(1e-6, float(np.abs(total).max()))
    return result


def make_texture(rng: np.random.Generator, side: int) -> Image:
    """Return a random texture [S, S], about -1..1, of one of six kinds."""
    kind = rng.integers(6)
    if kind == 0:  # uniform
        return np.zeros((side, side), np.float32)
    if kind == 1:  # gradient
        along, _ = _offsets(side, np.full(2, side / 2), rng.uniform(0, 2 * np.pi))
        return along / np.float32(side)
    if kind == 2:
        return make_clouds(rng, side, rng.uniform(0.3, 0.9))
    if kind == 3:  # wavy stripes
        along, _ = _offsets(side, np.zeros(2), rng.uniform(0, np.pi))
        frequency = np.float32(2 * np.pi / rng.uniform(3, 24))
        return np.asarray(np.sin(along * frequency + 2 * make_smooth_surface(rng, side, 4)), np.float32)
    if kind == 4:
        return make_smooth_surface(rng, side, int(rng.integers(2, 8)))
    # The last kind is blurred grain.
    grain = rng.standard_normal((side, side), dtype=np.float32) / np.float32(3)
    return np.asarray(cv2.GaussianBlur(grain, (0, 0), float(rng.uniform(0.3, 2.0))), np.float32)
