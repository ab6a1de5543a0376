"""One still image file in, 8-bit RGB out, whatever its mode, depth or orientation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from selfmark.errors import SelfmarkError

Pixels = npt.NDArray[np.uint8]

# Only what we promise to read: among Pillow's other formats are some that start a program (EPS).
_FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM")

# Written to 16 bits by definition, though Pillow opens some of them in its 32-bit mode "I".
_SIXTEEN_BIT_FORMATS = ("PNG", "PPM")

# EXIF orientation to what turns the image upright.
_UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: np.rot90,
}

_SIDEWAYS = (5, 6, 7, 8)  # orientations with width and height exchanged
_REDUCTIONS = (8, 4, 2)  # by which JPEG decoders can make an image smaller while they decode it

# Pillow's limit is a module global. Set once, here, it cannot race with decoding threads the way switching
# it around each call would; `decode_image` checks every header against its own limit instead.
Image.MAX_IMAGE_PIXELS = None


class UnreadableImage(SelfmarkError):
    """An image file that cannot be used; the message is a short reason, without the file's name."""


class DecodedImage(NamedTuple):
    """An upright image, perhaps smaller than its file.

    pixels: [h, w, 3] uint8
    size:   width and height of the file's image
    factor: each pixel stands for so many by so many of the file's, counted from the upper left corner
    """

    pixels: Pixels
    size: tuple[int, int]
    factor: int


def read_image(path: Path, max_megapixels: float) -> Pixels:
    """Read an image upright and in full, [H, W, 3] uint8; modes, depths and errors as in `decode_image`."""
    return decode_image(path, max_megapixels, lambda size: 1.0).pixels


def decode_image(
    path: Path, max_megapixels: float, reducible: Callable[[tuple[int, int]], float]
) -> DecodedImage:
    """Read an image (of several frames, the first) upright; a JPEG smaller, which is faster, if it may be.

    Transparent parts become white. 16-bit gray is divided by 257; gray without a fixed range (floats, and
    integers beyond 16 bits) is stretched from its least to its greatest value.

    Args:
        path: the file.
        max_megapixels: larger images are refused.
        reducible: called with width and height, says by which factor the image may be made smaller.

    Raises:
        UnreadableImage: the file is missing, empty, damaged, no image, or larger than `max_megapixels`,
            which is read off the header before any pixel is decoded.
    """
    try:
        if path.stat().st_size == 0:
            raise UnreadableImage("empty file")
        with Image.open(path, formats=_FORMATS) as image:
            _check_size(image, max_megapixels)
            size, factor = None, 1
            if isinstance(image, JpegImageFile):
                orientation = _orientation(image)
                size, factor = _reduced(image, orientation, reducible)
                image.load()
            else:
                image.load()
                # After loading: Pillow turns TIFF images itself while loading them, and then says so here.
                orientation = _orientation(image)
            turn, pixels = _UPRIGHT.get(orientation), _to_rgb(image)
            if turn is not None:
                pixels = np.ascontiguousarray(turn(pixels))
            return DecodedImage(pixels, size or (pixels.shape[1], pixels.shape[0]), factor)
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage("not an image, or of a kind that cannot be read") from error
    # Pillow's decoders raise nearly everything on damaged files: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise UnreadableImage(_reason(error)) from error


def _reduced(
    image: JpegImageFile, orientation: int, reducible: Callable[[tuple[int, int]], float]
) -> tuple[tuple[int, int], int]:
    """Have a JPEG decoded smaller if it may be; returns its upright size and by which factor."""
    width, height = image.size
    upright = (height, width) if orientation in _SIDEWAYS else (width, height)
    most = min(reducible(upright), width, height)
    for factor in _REDUCTIONS:
        # A turned image is counted from another corner, where the last pixel may stand for fewer.
        whole = width % factor == 0 and height % factor == 0
        if factor <= most and (whole or orientation not in _UPRIGHT):
            drafted = image.draft(None, (width // factor, height // factor))
            return upright, 1 if drafted is None else round(width / drafted[1][2])
    return upright, 1


def _check_size(image: Image.Image, max_megapixels: float) -> None:
    megapixels = image.width * image.height / 1e6
    if megapixels == 0:
        raise UnreadableImage("no pixels")
    if megapixels > max_megapixels:
        found = f"{round(megapixels, 2):.12g}"
        raise UnreadableImage(f"{found} megapixels, more than the {max_megapixels:g} allowed")


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) where there is none; damaged EXIF does not make an image unusable."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, EOFError) or "truncated" in text.lower():
        return "truncated"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"damaged: {text}"


def _to_rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I;16"):
        return _gray(_from_16_bits(np.asarray(image)))
    if image.mode == "I":
        return _gray(_from_integers(np.asarray(image), image.format in _SIXTEEN_BIT_FORMATS))
    if image.mode == "F":
        return _gray(_stretch(np.asarray(image)))
    if image.has_transparency_data:
        colors = image.convert("RGBA")
        white = Image.new("RGBA", colors.size, "white")
        image = Image.alpha_composite(white, colors)
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _from_integers(values: npt.NDArray[np.integer], sixteen_bit: bool) -> Pixels:
    """Mode "I" does not say how many bits the numbers had: take the narrowest depth that holds them."""
    least, greatest = int(values.min()), int(values.max())
    if sixteen_bit or (least >= 0 and 255 < greatest <= 65535):
        return _from_16_bits(values)
    if least >= 0 and greatest <= 255:
        return values.astype(np.uint8)
    return _stretch(values)


def _from_16_bits(values: npt.NDArray[np.integer]) -> Pixels:
    """Divide by 257, which takes 65535 to 255, and round.

    >>> _from_16_bits(np.array([0, 128, 129, 257, 65535], dtype=np.uint16)).tolist()
    [0, 0, 1, 1, 255]
    """
    return ((values.astype(np.int64) + 128) // 257).astype(np.uint8)


def _stretch(values: npt.NDArray[np.number]) -> Pixels:
    """Spread the finite values over 0..255; others become 0.

    >>> _stretch(np.array([-1.0, 0.0, 1.0, np.nan])).tolist()
    [0, 128, 255, 0]
    """
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    least = numbers.min(where=finite, initial=np.inf)
    spread = numbers.max(where=finite, initial=-np.inf) - least
    if not spread > 0:
        return np.zeros(numbers.shape, np.uint8)
    shares = np.where(finite, numbers - least, 0.0) / spread
    stretched: Pixels = np.rint(shares * 255).astype(np.uint8)
    return stretched


def _gray(values: Pixels) -> Pixels:
    return np.repeat(values[:, :, None], 3, axis=2)
