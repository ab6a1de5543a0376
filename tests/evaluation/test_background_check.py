"""Test the check for landmarks on the background of a video."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from selfmark.evaluation.background_check import are_whole_frames_of_one_video, measure_background
from selfmark.image_ref import ImageRef

FRAMES, SIDE = 30, 64


def test_a_landmark_that_follows_the_animal_is_not_on_the_background() -> None:
    """A white square moves over a scene. One landmark follows it, one stays, and one slides along the top."""
    rng = np.random.default_rng(0)
    scene = rng.integers(0, 120, (SIDE, SIDE, 3))
    pixels = np.repeat(scene[None], FRAMES, axis=0)
    animal = rng.integers(12, SIDE - 12, (FRAMES, 2))
    for frame, (x, y) in zip(pixels, animal, strict=True):
        frame[y - 6 : y + 7, x - 6 : x + 7] = 255
    noisy = np.clip(pixels + rng.normal(0, 3, pixels.shape), 0, 255).astype(np.uint8)
    sliding = np.stack([np.linspace(2, 60, FRAMES), np.full(FRAMES, 2)], axis=-1)
    xy = np.stack([animal, np.full((FRAMES, 2), 2.0), sliding], axis=1).astype(np.float64)
    rates = measure_background(torch.from_numpy(noisy).permute(0, 3, 1, 2), xy, radius=2, max_difference=8.0)
    assert rates[0] == 0.0
    assert rates[1:].tolist() == [1.0, 1.0]


def test_only_whole_frames_of_one_video_show_a_fixed_scene() -> None:
    frames = [ImageRef(Path("a.mp4"), frame=number) for number in range(3)]
    assert are_whole_frames_of_one_video(frames)
    assert are_whole_frames_of_one_video([ImageRef(Path("0.png"), clip=("a.mp4", 0))])
    assert not are_whole_frames_of_one_video([*frames, ImageRef(Path("b.mp4"), frame=0)])
    assert not are_whole_frames_of_one_video([*frames, ImageRef(Path("photo.jpg"))])
    assert not are_whole_frames_of_one_video([ImageRef(Path("a.mp4"), frame=0, box=(0.0, 0.0, 5.0, 5.0))])
