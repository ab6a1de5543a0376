"""Video frames saved as image files, for formats that only refer to image files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from selfmark.errors import InputError
from selfmark.images.video import read_frames

_JPEG_QUALITY = 95


def save_frames(video: Path, targets: Mapping[int, Path]) -> None:
    """Save frames of a video as image files.

    Args:
        video: Video file.
        targets: File to write for each frame number; its suffix selects the image format.
    """
    remaining = dict(targets)
    for frame, pixels in read_frames(video, sorted(targets)):
        Image.fromarray(pixels).save(remaining.pop(frame), quality=_JPEG_QUALITY)
    if remaining:
        raise InputError(f"frame {min(remaining)} of {video} could not be read a second time; try again")
