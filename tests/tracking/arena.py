"""A generated arena: ellipses that wander over a textured floor, with where they truly are."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

SIZE = (200, 150)  # width, height
BODY = (16, 8)  # half axes of an animal
SPOTS = ((0.7, 0.0, 25), (0.2, 0.5, 20), (0.2, -0.5, 25), (-0.4, 0.4, 20), (-0.4, -0.4, 25), (-0.75, 0, 20))
Floats = npt.NDArray[np.float64]


def wander(frames: int, animals: int, seed: int) -> Floats:
    """Smooth ways [frames, animals, 2] that keep apart by more than a body."""
    rng = np.random.default_rng(seed)
    while True:
        steps = np.arange(frames)[:, None, None] / 25.0
        speed, phase = rng.uniform(0.5, 1.4, (1, animals, 2)), rng.uniform(0, 6, (1, animals, 2))
        reach = np.array([SIZE[0] / 2 - 30, SIZE[1] / 2 - 25])
        ways = np.array(SIZE) / 2 + reach * np.sin(speed * steps + phase)
        apart = np.linalg.norm(ways[:, :, None] - ways[:, None], axis=3)[:, *np.triu_indices(animals, 1)]
        if not apart.size or apart.min() > 2.5 * BODY[0]:
            return ways


def scene(ways: Floats, number: int, bright: bool = False) -> npt.NDArray[np.uint8]:
    """Frame `number`: the floor, noise, and each animal along its way with a thin tail behind it."""
    width, height = SIZE
    floor = 150 + 40 * np.sin(np.arange(width) / 15)[None] + 20 * np.cos(np.arange(height) / 9)[:, None]
    image = floor + np.random.default_rng(number).normal(0, 3, (height, width))
    picture = image.clip(0, 255).astype(np.uint8)
    shade = 250 if bright else 25
    for place, before in zip(ways[number], ways[max(number - 1, 0)], strict=True):
        if not np.isfinite(place).all():
            continue
        x, y = place - before if number else (1.0, 0.0)
        angle = np.degrees(np.arctan2(y, x)) if np.isfinite([x, y]).all() else 0.0
        center = tuple(int(value) for value in np.round(place * 16))
        cv2.ellipse(picture, center, (BODY[0] * 16, BODY[1] * 16), angle, 0, 360, shade, -1, cv2.LINE_AA, 4)
        along = np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])
        for forward, sideways, spot in SPOTS:  # what keypoints are found on
            at = place + forward * BODY[0] * along + sideways * BODY[1] * along[::-1] * (-1, 1)
            where = tuple(int(value) for value in np.round(at * 16))
            cv2.circle(picture, where, 2 * 16, shade - spot if bright else shade + spot, -1, cv2.LINE_AA, 4)
        tail = place - 2.2 * BODY[0] * along
        end = tuple(int(value) for value in np.round(tail * 16))
        cv2.line(picture, center, end, shade, 1, cv2.LINE_AA, 4)
    return np.repeat(picture[..., None], 3, axis=2)


def write_arena_video(ways: Floats, path: Path, bright: bool = False) -> Path:
    """The arena as an MPEG-4 video of 25 frames a second."""
    film = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, SIZE)
    for number in range(len(ways)):
        film.write(scene(ways, number, bright))
    film.release()
    return path
