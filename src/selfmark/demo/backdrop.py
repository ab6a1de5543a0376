"""Draw background clutter and occluders for the demo pictures."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.demo.shape import Array


def draw_clutter(rng: np.random.Generator, size: int) -> Array:
    """Draw a background [size, size, 3] in 0..1 from a gradient, ellipses, polygons, lines and grain."""
    scale = size / 128
    ends = np.array([_random_color(rng), _random_color(rng)])
    angle = rng.uniform(0, 2 * np.pi)
    steps = np.linspace(-0.5, 0.5, size)
    ramp = np.clip(0.5 + np.cos(angle) * steps[None, :] + np.sin(angle) * steps[:, None], 0, 1)
    canvas = (ends[0] + ramp[..., None] * (ends[1] - ends[0])).astype(np.float32)
    for _ in range(rng.integers(2, 6)):
        _draw_ellipse(canvas, rng, scale)
    canvas = cv2.GaussianBlur(canvas, (0, 0), float(rng.uniform(1, 5)) * scale)
    for _ in range(rng.integers(2, 7)):
        corners = rng.uniform(0, size, 2) + rng.uniform(-0.3, 0.3, (rng.integers(3, 6), 2)) * size
        cv2.fillPoly(canvas, [corners.astype(np.int32)], _random_color(rng), cv2.LINE_AA)
    for _ in range(rng.integers(0, 4)):
        _draw_ellipse(canvas, rng, 0.5 * scale)
    for _ in range(rng.integers(1, 7)):
        ends_xy = rng.integers(0, size, (2, 2))
        width = max(1, round(float(rng.uniform(1, 3)) * scale))
        cv2.line(canvas, ends_xy[0].tolist(), ends_xy[1].tolist(), _random_color(rng), width, cv2.LINE_AA)
    # The background is out of focus.
    canvas = cv2.GaussianBlur(canvas, (0, 0), float(rng.uniform(0.5, 1.6)) * scale)
    grain = rng.normal(0, rng.uniform(0.01, 0.04), (48, 48, 1)).astype(np.float32)
    enlarged = cv2.resize(grain, (size, size), interpolation=cv2.INTER_CUBIC)[..., None]
    result: Array = np.clip(canvas + enlarged, 0.0, 1.0).astype(np.float64)
    return result


def _random_color(rng: np.random.Generator) -> tuple[float, float, float]:
    """Draw a color of low saturation, RGB in about 0..1."""
    red, green, blue = rng.uniform(0.1, 0.9) + rng.uniform(-0.22, 0.22, 3)
    return float(red), float(green), float(blue)


def _draw_ellipse(canvas: npt.NDArray[np.float32], rng: np.random.Generator, scale: float) -> None:
    """Draw a random ellipse with radii of 6 to 40 pixels times `scale`."""
    center = rng.integers(0, canvas.shape[0], 2).tolist()
    radii = np.maximum(1, rng.uniform(6, 40, 2) * scale).astype(int).tolist()
    cv2.ellipse(
        canvas, center, radii, float(rng.uniform(0, 180)), 0, 360, _random_color(rng), -1, cv2.LINE_AA
    )


@dataclass(frozen=True)
class Occluder:
    """An object in front of the animal: a straight bar, or a blob with three lobes.

    The pixel p is covered if norm(q) < 1 + waviness * cos(3 * angle of q), where q = inverse @ (p - center).

    Attributes:
        center: [2] pixels.
        inverse: [2, 2], maps pixel offsets from the center to coordinates in which the outline has norm 1 if
            the waviness is 0.
        power: Exponent of the norm: 2 for an ellipse, larger for a rectangle with round corners.
        waviness: Amplitude of the lobes.
        colors: [2, 3] colors of the stripes, RGB in 0..1.
    """

    center: Array
    inverse: Array
    power: float
    waviness: float
    colors: Array

    def covers(self, xy: Array) -> npt.NDArray[np.bool_]:
        """Return whether each position [..., 2], in pixels, is covered."""
        q = (xy - self.center) @ self.inverse.T
        norm = np.sum(np.abs(q) ** self.power, axis=-1) ** (1.0 / self.power)
        lobes = self.waviness * np.cos(3.0 * np.arctan2(q[..., 1], q[..., 0]))
        is_covered: npt.NDArray[np.bool_] = norm < 1.0 + lobes
        return is_covered

    def color(self, xy: Array) -> Array:
        """Return the color [..., 3] at positions [..., 2], in pixels."""
        stripe_position = ((xy - self.center) @ self.inverse.T)[..., :1]
        stripe_color: Array = np.where(np.sin(9.0 * stripe_position) > 0.0, self.colors[0], self.colors[1])
        return stripe_color


def random_occluder(rng: np.random.Generator, size: int, position: Array) -> Occluder:
    """Draw a random occluder near a position ([2] pixels)."""
    is_bar = rng.random() < 0.5
    radii = np.array([1.2, rng.uniform(0.03, 0.07)] if is_bar else rng.uniform(0.08, 0.18, 2)) * size
    angle = rng.uniform(0, np.pi)
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    base_color = rng.uniform(0.1, 0.9, 3)
    return Occluder(
        center=position + rng.normal(0, 0.15, 2) * size,
        inverse=rotation / radii[:, None],
        power=8.0 if is_bar else 2.0,
        waviness=0.0 if is_bar else float(rng.uniform(0.05, 0.3)),
        colors=np.clip(np.stack([base_color, base_color + rng.uniform(-0.12, 0.12, 3)]), 0.0, 1.0),
    )
