"""Write images as files."""

from __future__ import annotations

from pathlib import Path

import cv2
from PIL import Image

from selfmark.errors import InputError
from selfmark.images.decode import Pixels
from selfmark.run.guarded_files import create_file


def image_format(path: Path) -> str:
    """Return the format that Pillow writes to a file with this suffix.

    >>> image_format(Path("photo.JPG"))
    'JPEG'
    """
    return Image.registered_extensions()[path.suffix.lower()]


def write_png(pixels: Pixels, path: Path) -> None:
    """Write an image [H, W, 3] RGB as a PNG file.

    Raises:
        InputError: if the file cannot be written.
    """
    _, encoded = cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    try:
        with create_file(path) as handle:
            handle.write(encoded.tobytes())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
