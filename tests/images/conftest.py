"""Provide a fixture that writes videos in which each frame shows its number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest


@pytest.fixture
def write_video() -> Callable[[Path, int, str], Path]:
    """Return a function that writes a video of 64 x 48 pixels.

    In frame i, green is 8 + 6 i. Red fills the left half and blue the right half.
    """

    def write(path: Path, frames: int, codec: str) -> Path:
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 25.0, (64, 48))
        if not writer.isOpened():
            pytest.skip(f"this OpenCV cannot write {codec}")
        for frame in range(frames):
            image = np.zeros((48, 64, 3), np.uint8)
            image[:, 32:, 0] = 200
            image[:, :32, 2] = 200
            image[..., 1] = 8 + 6 * frame
            writer.write(image)
        writer.release()
        return path

    return write
