"""Draw scenes of many overlapping, textured, shaded objects. Their points are not known."""

from __future__ import annotations

import cv2
import numpy as np

from selfmark.demo.scene import generate_scene
from training.keypoints.drawing import (
    Array,
    Image,
    choose_tone,
    draw_ellipse,
    draw_polygons,
    make_closed_curve,
    make_clouds,
    make_smooth_surface,
    make_texture,
)
from training.keypoints.shapes import MAKERS, NO_POINTS


def draw(rng: np.random.Generator, side: int) -> tuple[Image, Array]:
    """Draw a scene; return an image [side, side] in 0..1 and an empty array of points."""
    canvas = 0.5 + np.float32(rng.uniform(0.05, 0.5)) * make_clouds(rng, side, rng.uniform(0.2, 0.9))
    canvas = canvas.astype(np.float32)
    surfaces = [make_texture(rng, side) for _ in range(5)]
    for _ in range(int(rng.integers(4, 28))):
        center, radius = rng.uniform(0, side, 2), side * float(np.exp(rng.uniform(np.log(0.04), np.log(0.4))))
        for mask, value in _draw_object(rng, side, center, radius):
            if rng.random() < 0.3:
                mask = _blur(mask, float(np.exp(rng.uniform(-0.7, 1.6))))
            surface = value + np.float32(rng.uniform(0, 0.35)) * surfaces[rng.integers(5)]
            if rng.random() < 0.4:  # shading makes the object look round
                shade = np.float32(rng.uniform(0.2, 0.6)) * make_smooth_surface(
                    rng, side, int(rng.integers(2, 6))
                )
                surface = surface * (1 + shade)
            canvas += mask * np.float32(rng.uniform(0.5, 1.0)) * (surface - canvas)
    canvas *= 1 + np.float32(rng.uniform(0, 0.4)) * make_smooth_surface(rng, side, 3)
    if rng.random() < 0.6:
        canvas = _blur(canvas, float(rng.uniform(0.4, 1.6)))
    low, high = np.percentile(canvas, [0.5, 99.5])
    return np.clip((canvas - low) / max(float(high - low), 1e-3), 0, 1).astype(np.float32), NO_POINTS


def _blur(image: Image, sigma: float) -> Image:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), sigma), np.float32)


def _draw_object(
    rng: np.random.Generator, side: int, center: Array, radius: float
) -> list[tuple[Image, float]]:
    """Draw a random object; return the coverage [side, side] and the gray value of each layer."""
    kind = rng.random()
    if kind < 0.45:
        return MAKERS[rng.integers(len(MAKERS))](rng, side, center, radius, 0.5).layers
    if kind < 0.65:
        return [(draw_polygons(side, [make_closed_curve(rng, center, radius, 0.4)]), choose_tone(rng))]
    if kind < 0.85:
        return _draw_head(rng, side, center, radius)
    return _draw_word(rng, side, center, radius)


def _draw_head(
    rng: np.random.Generator, side: int, center: Array, radius: float
) -> list[tuple[Image, float]]:
    """Draw a round head with a mouth and pairs of symmetric marks, such as eyes."""
    skin = choose_tone(rng)
    layers = [(draw_polygons(side, [make_closed_curve(rng, center, radius, 0.1)]), skin)]
    for _ in range(int(rng.integers(1, 4))):
        offset = rng.uniform(0.1, 0.7) * radius, rng.uniform(-0.6, 0.6) * radius
        size, outer = radius * rng.uniform(0.06, 0.25), choose_tone(rng, skin)
        radii, turn = (size, size * rng.uniform(0.4, 1.0)), rng.uniform(-0.6, 0.6)
        inner = choose_tone(rng, outer)
        for sign in (-1, 1):
            place = center + np.array([sign * offset[0], offset[1]])
            layers.append((draw_ellipse(side, place, radii, sign * turn), outer))
            layers.append((draw_ellipse(side, place, (0.45 * radii[1], 0.45 * radii[1]), 0.0), inner))
    mouth = radius * np.array(
        [[-0.4, 0.45], [0.0, rng.uniform(0.35, 0.7)], [0.4, 0.45], [0.0, rng.uniform(0.3, 0.45)]]
    )
    layers.append((draw_polygons(side, [center + mouth]), choose_tone(rng, skin)))
    return layers


def _draw_word(
    rng: np.random.Generator, side: int, center: Array, radius: float
) -> list[tuple[Image, float]]:
    """Draw a few random characters."""
    page = np.zeros((side, side), np.uint8)
    text = "".join(chr(code) for code in rng.integers(ord("!"), ord("~"), int(rng.integers(1, 5))))
    place = (center - [radius * 0.5 * len(text) * 0.5, 0]).astype(int).tolist()
    thickness = int(rng.integers(1, 5))
    cv2.putText(
        page, text, place, int(rng.integers(0, 8)), max(0.4, radius / 40), 255, thickness, cv2.LINE_AA
    )
    return [(page.astype(np.float32) / np.float32(255), choose_tone(rng))]


def draw_animal(rng: np.random.Generator, side: int) -> tuple[Image, Array]:
    """Draw the demo's toy animal in gray; return an image [side, side] in 0..1 and no points."""
    picture = generate_scene(1, side, int(rng.integers(1 << 31))).images[0]
    return cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY).astype(np.float32) / np.float32(255), NO_POINTS
