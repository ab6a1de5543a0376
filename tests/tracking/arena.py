"""Generate videos of an arena: ellipses that move over a textured floor along known paths."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

SIZE = (200, 150)  # width and height, pixels
BODY = (16, 8)  # half axes of an animal, pixels
# Spots on an animal. Each has a forward and a sideways position in half axes of the body, and a difference in
# gray levels.
SPOTS = ((0.7, 0.0, 25), (0.2, 0.5, 20), (0.2, -0.5, 25), (-0.4, 0.4, 20), (-0.4, -0.4, 25), (-0.75, 0, 20))
Floats = npt.NDArray[np.float64]


def wander(frames: int, animals: int, seed: int) -> Floats:
    """Return smooth paths on which animals never touch, as pixels [frames, animals, 2]."""
    rng = np.random.default_rng(seed)
    while True:
        steps = np.arange(frames)[:, None, None] / 25.0
        speed, phase = rng.uniform(0.5, 1.4, (1, animals, 2)), rng.uniform(0, 6, (1, animals, 2))
        amplitude = np.array([SIZE[0] / 2 - 30, SIZE[1] / 2 - 25])
        paths = np.array(SIZE) / 2 + amplitude * np.sin(speed * steps + phase)
        distance = np.linalg.norm(paths[:, :, None] - paths[:, None], axis=3)[:, *np.triu_indices(animals, 1)]
        if not distance.size or distance.min() > 2.5 * BODY[0]:
            return paths


def draw_frame(paths: Floats, number: int, bright: bool = False) -> npt.NDArray[np.uint8]:
    """Draw frame `number`: floor, noise, and dark or bright animals with tails, facing along their paths."""
    width, height = SIZE
    floor = 150 + 40 * np.sin(np.arange(width) / 15)[None] + 20 * np.cos(np.arange(height) / 9)[:, None]
    noisy = floor + np.random.default_rng(number).normal(0, 3, (height, width))
    image = noisy.clip(0, 255).astype(np.uint8)
    shade = 250 if bright else 25
    for position, previous in zip(paths[number], paths[max(number - 1, 0)], strict=True):
        if not np.isfinite(position).all():
            continue
        x, y = position - previous if number else (1.0, 0.0)
        angle = np.degrees(np.arctan2(y, x)) if np.isfinite([x, y]).all() else 0.0
        center = _to_fixed_point(position)
        cv2.ellipse(image, center, (BODY[0] * 16, BODY[1] * 16), angle, 0, 360, shade, -1, cv2.LINE_AA, 4)
        forward = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
        for along, across, contrast in SPOTS:  # The detector needs structure on the body.
            spot = position + along * BODY[0] * forward + across * BODY[1] * forward[::-1] * (-1, 1)
            color = shade - contrast if bright else shade + contrast
            cv2.circle(image, _to_fixed_point(spot), 2 * 16, color, -1, cv2.LINE_AA, 4)
        tail = position - 2.2 * BODY[0] * forward
        cv2.line(image, center, _to_fixed_point(tail), shade, 1, cv2.LINE_AA, 4)
    return np.repeat(image[..., None], 3, axis=2)


def _to_fixed_point(xy: Floats) -> tuple[int, ...]:
    """Return x and y in sixteenths of a pixel, which OpenCV expects for a shift of 4."""
    return tuple(int(value) for value in np.round(xy * 16))


def write_arena_video(paths: Floats, path: Path, bright: bool = False) -> Path:
    """Write the arena as an MPEG-4 video with 25 frames per second."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, SIZE)
    for number in range(len(paths)):
        writer.write(draw_frame(paths, number, bright))
    writer.release()
    return path
