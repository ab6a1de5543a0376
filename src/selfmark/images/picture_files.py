"""Write images as files."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
from PIL import Image

from selfmark.errors import report_write_errors
from selfmark.images.decode import Pixels
from selfmark.run.guarded_files import create_file


def image_format(path: Path) -> str:
    """Return the format that Pillow writes to a file with this suffix.

    >>> image_format(Path("photo.JPG"))
    'JPEG'
    """
    return Image.registered_extensions()[path.suffix.lower()]


def encode_image(image: Image.Image, pillow_format: str, quality: int) -> bytes:
    """Return the content of an image file.

    Write these bytes to a file instead of letting Pillow write the file: if the disk is full, Pillow may
    write only a part of the image and report no error.

    Args:
        image: the image.
        pillow_format: name of a format in Pillow, such as `JPEG`.
        quality: quality of the format, 0 to 100; PNG ignores it.
    """
    stream = io.BytesIO()
    image.save(stream, pillow_format, quality=quality)
    return stream.getvalue()


def write_png(pixels: Pixels, path: Path) -> None:
    """Write an image [H, W, 3] RGB as a PNG file.

    Raises:
        InputError: if the file cannot be written.
    """
    _, encoded = cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))
    with report_write_errors(path), create_file(path) as handle:
        handle.write(encoded.tobytes())
