"""Save video frames as image files, for formats that only refer to image files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from selfmark.errors import InputError
from selfmark.images.decode import Pixels
from selfmark.images.picture_files import encode_image, image_format
from selfmark.images.video import read_frames
from selfmark.run.guarded_files import create_file

_JPEG_QUALITY = 95


def save_image(pixels: Pixels, path: Path) -> None:
    """Save an image [H, W, 3] RGB as a new file; the suffix of `path` selects the format."""
    with create_file(path) as handle:
        handle.write(encode_image(Image.fromarray(pixels), image_format(path), _JPEG_QUALITY))


def save_frames(video: Path, targets: Mapping[int, Path]) -> None:
    """Save frames of a video as image files.

    Args:
        video: Video file.
        targets: Mapping from frame numbers to files to write. The suffix of a file selects the image format.
    """
    remaining = dict(targets)
    for frame, pixels in read_frames(video, sorted(targets)):
        save_image(pixels, remaining.pop(frame))
    if remaining:
        raise InputError(
            f"cannot read frame {min(remaining)} of {video}, although it was read before; try again"
        )
