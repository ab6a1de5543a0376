"""Decode still image files of any color mode, bit depth and orientation to upright 8-bit RGB."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, TiffImageFile

from selfmark.config import Images
from selfmark.errors import SelfmarkError
from selfmark.images.input_files import MAX_PIXELS_PER_BYTE, MIN_PIXELS_TO_CHECK
from selfmark.run.guarded_files import MAX_UNCHECKED_BYTES, has_mostly_holes

Pixels = npt.NDArray[np.uint8]

# The documented formats. Others are disabled, because Pillow runs Ghostscript for EPS, for example.
_FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", "GIF", "PPM")

# Formats with at most 16 bits per channel. Pillow still opens some of their files in its 32-bit mode "I".
_SIXTEEN_BIT_FORMATS = ("PNG", "PPM")

# Operation that turns an image upright, by EXIF orientation.
_UPRIGHT: dict[int, Callable[[Pixels], Pixels]] = {
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: np.rot90,
}

_SIDEWAYS = (5, 6, 7, 8)  # orientations that swap width and height
_BLOCK_BYTES = 1 << 20  # bytes of a PNG to read at a time while its checksums are compared
# Files up to this size are digested as a whole. Of larger ones, so that videos take no time either, only the
# size counts, the bytes at both ends, and blocks at equal distances in between. With 32 blocks, 3,000 files
# of 3 MB take 0.7 s of CPU time (0.3 s without blocks, 1.0 s with 64).
_MAX_WHOLE_BYTES = 1 << 20
_END_BYTES = 1 << 16
_NUM_BLOCKS = 32
_SAMPLE_BYTES = 1 << 12
_STRIP_PIXELS = 1 << 20  # pixels that are converted at a time
_REDUCTIONS = (8, 4, 2)  # factors by which JPEG decoders can shrink an image while they decode it

# Pillow's size limit is a global variable, so changing it per call would be a race between threads. It is
# disabled here, and `decode_image` checks every header against its own limit.
Image.MAX_IMAGE_PIXELS = None


class UnreadableImage(SelfmarkError):
    """Raised for an image file that cannot be used; the message is a short reason without the file's name."""


class DecodedImage(NamedTuple):
    """An upright image, possibly smaller than the image in its file.

    pixels: [h, w, 3] uint8 RGB
    size:   width and height of the image in the file, upright
    factor: each pixel covers `factor` x `factor` pixels of the file; the upper left corners are aligned
    """

    pixels: Pixels
    size: tuple[int, int]
    factor: int


def read_image(path: Path, max_megapixels: float) -> Pixels:
    """Read an upright image in full size, [H, W, 3] uint8 RGB; otherwise like `decode_image`."""
    return decode_image(path, max_megapixels, lambda size: 1.0).pixels


def read_image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an upright image from its header.

    Raises:
        UnreadableImage: if the file is not an image, or larger than the default of `images.max_megapixels`.
    """
    try:
        num_bytes = _check_file(path)
        with Image.open(path, formats=_FORMATS) as image:
            # Check the size first: to find the orientation, Pillow may decode a whole PNG, because the
            # orientation may be stored behind the pixels.
            _check_size(image, Images().max_megapixels, num_bytes)
            width, height = _stored_size(image)
            return (height, width) if _read_orientation(image) in _SIDEWAYS else (width, height)
    except UnreadableImage:
        raise
    except Exception as error:  # see `decode_image`
        raise UnreadableImage(_describe(error)) from error


def decode_image(
    path: Path, max_megapixels: float, max_reduction: Callable[[tuple[int, int]], float]
) -> DecodedImage:
    """Read an upright image; a JPEG is decoded at a reduced size, which is faster, if the caller allows it.

    Only the first frame of a file is read. Transparent parts become white. 16-bit gray is divided by 257.
    Gray without a fixed range (floats, and integers beyond 16 bits) is scaled so that its minimum becomes 0
    and its maximum 255.

    Args:
        path: the file.
        max_megapixels: larger images are rejected.
        max_reduction: called with the upright width and height, pixels; returns the largest factor by which
            the image may be shrunk.

    Raises:
        UnreadableImage: if the file is missing, empty, damaged, not an image, or larger than
            `max_megapixels`; the size is read from the header before any pixel is decoded.
    """
    try:
        num_bytes = _check_file(path)
        with Image.open(path, formats=_FORMATS) as image:
            _check_size(image, max_megapixels, num_bytes)
            size, factor = None, 1
            if isinstance(image, JpegImageFile):
                orientation = _read_orientation(image)
                size, factor = _request_reduction(image, orientation, max_reduction)
                image.load()
            else:
                if isinstance(image, PngImageFile):
                    _check_png_data(image)
                image.load()
                # Read EXIF after loading: Pillow rotates TIFF images while it loads them, then updates EXIF.
                orientation = _read_orientation(image)
            rotate, pixels = _UPRIGHT.get(orientation), _to_rgb(image)
            if rotate is not None:
                pixels = np.ascontiguousarray(rotate(pixels))
            return DecodedImage(pixels, size or (pixels.shape[1], pixels.shape[0]), factor)
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage("not an image, or an unsupported format") from error
    # Pillow's decoders raise many types on damaged files: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise UnreadableImage(_describe(error)) from error


def _request_reduction(
    image: JpegImageFile, orientation: int, max_reduction: Callable[[tuple[int, int]], float]
) -> tuple[tuple[int, int], int]:
    """Make Pillow decode a JPEG at a reduced size, if allowed.

    Returns:
        The upright width and height of the full image, and the factor by which it is reduced.
    """
    width, height = image.size
    upright = (height, width) if orientation in _SIDEWAYS else (width, height)
    limit = min(max_reduction(upright), width, height)
    for factor in _REDUCTIONS:
        # The last pixel of a row or column may cover less than `factor` pixels of the file. Rotating or
        # mirroring the image may make that pixel the first one, which would shift the pixel grid.
        is_divisible = width % factor == 0 and height % factor == 0
        if factor <= limit and (is_divisible or orientation not in _UPRIGHT):
            drafted = image.draft(None, (width // factor, height // factor))
            return upright, 1 if drafted is None else round(width / drafted[1][2])
    return upright, 1


def compute_content_digest(path: Path) -> int:
    """Return a signed 64-bit number for the content of an image or video; 0 if it cannot be read.

    All bytes of files up to 1 MiB count. Of larger files, the size counts, the first and the last 64 KiB, and
    32 blocks of 4 KiB at equal distances in between.
    """

    def list_parts(size: int) -> list[tuple[int, int]]:
        if size <= _MAX_WHOLE_BYTES:
            return [(0, size)]
        span = size - 2 * _END_BYTES - _SAMPLE_BYTES
        starts = [_END_BYTES + span * (2 * index + 1) // (2 * _NUM_BLOCKS) for index in range(_NUM_BLOCKS)]
        blocks = [(start, _SAMPLE_BYTES) for start in starts]
        return [(0, _END_BYTES), *blocks, (size - _END_BYTES, _END_BYTES)]

    return _digest_parts(path, list_parts)


def compute_earlier_digest(path: Path) -> int:
    """Return the digest that earlier versions stored, of the size and the first and last 64 KiB of a file."""
    return _digest_parts(path, lambda size: [(0, _END_BYTES), (max(0, size - _END_BYTES), _END_BYTES)])


def _digest_parts(path: Path, list_parts: Callable[[int], list[tuple[int, int]]]) -> int:
    """Return a signed 64-bit digest of parts of a file and of its size; 0 if it cannot be read.

    Args:
        path: the file.
        list_parts: called with the size of the file; returns start and length of each part, bytes.
    """
    with suppress(OSError), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(f"{size} ".encode())
        for start, length in list_parts(size):
            file.seek(start)
            digest.update(file.read(length))
        return int.from_bytes(digest.digest()[:8], "little", signed=True)
    return 0


def _check_file(path: Path) -> int:
    """Return the size of a file in bytes; raise if it is empty, or large and mostly holes.

    Pillow reads WebP files as a whole, even if only their header is needed.
    """
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise UnreadableImage("empty file")
    if num_bytes > MAX_UNCHECKED_BYTES:
        with open(path, "rb") as file:
            if has_mostly_holes(file.fileno()):
                raise UnreadableImage(f"damaged: most of its {num_bytes:,} bytes were never written")
    return num_bytes


def _check_size(image: Image.Image, max_megapixels: float, num_bytes: int) -> None:
    megapixels = image.width * image.height / 1e6
    if megapixels == 0:
        raise UnreadableImage("no pixels")
    if megapixels > max_megapixels:
        rounded = f"{round(megapixels, 2):.12g}"
        raise UnreadableImage(f"{rounded} megapixels, more than the {max_megapixels:g} allowed")
    if image.width * image.height > max(MIN_PIXELS_TO_CHECK, num_bytes * MAX_PIXELS_PER_BYTE):
        raise UnreadableImage(
            f"damaged: the header claims {image.width:,} x {image.height:,} pixels, but the file has "
            f"{num_bytes:,} bytes"
        )


def _check_png_data(image: PngImageFile) -> None:
    """Raise if the compressed pixels of a PNG do not have their checksums, which Pillow does not compare.

    Other chunks are left to Pillow. The position in the file is restored.
    """
    file = image.fp
    assert file is not None  # The image is not loaded yet.
    position = file.tell()
    file.seek(8)  # behind the signature
    while len(header := file.read(8)) == 8:
        length, kind = int.from_bytes(header[:4], "big"), header[4:]
        if kind != b"IDAT":
            file.seek(length + 4, os.SEEK_CUR)
            continue
        checksum = zlib.crc32(kind)
        while length and (block := file.read(min(length, _BLOCK_BYTES))):
            checksum = zlib.crc32(block, checksum)
            length -= len(block)
        if file.read(4) != checksum.to_bytes(4, "big"):
            raise UnreadableImage("truncated" if length else "damaged: the checksum of its pixels is wrong")
    file.seek(position)


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height of an image that is not loaded yet, as its pixels are stored.

    Recent versions of Pillow already give the upright size of a TIFF whose orientation is in a tag.
    """
    if isinstance(image, TiffImageFile):
        return image.tag_v2[IMAGEWIDTH], image.tag_v2[IMAGELENGTH]
    return image.size


def _read_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, or 1 (upright) if it is missing or damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1


def _describe(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, EOFError) or "truncated" in text.lower():
        return "truncated"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"damaged: {text}"


def _to_rgb(image: Image.Image) -> Pixels:
    """Convert a loaded image to RGB in strips, because conversions take a multiple of the memory."""
    width, height = image.size
    convert = _choose_conversion(image)
    pixels = np.empty((height, width, 3), np.uint8)
    for top, strip in _iterate_strips(image):
        pixels[top : top + strip.height] = convert(strip)
    return pixels


def _iterate_strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield the first row and the image of each strip of full width, from top to bottom."""
    width, height = image.size
    rows = max(1, _STRIP_PIXELS // width)
    for top in range(0, height, rows):
        is_whole = rows >= height
        yield top, image if is_whole else image.crop((0, top, width, min(top + rows, height)))


def _choose_conversion(image: Image.Image) -> Callable[[Image.Image], Pixels]:
    """Return a function that converts strips of an image to [h, w, 3], or to [h, w, 1] for gray."""
    if image.mode.startswith("I;16"):
        return lambda strip: _convert_16_bits(np.asarray(strip))[..., None]
    if image.mode in ("I", "F"):
        limits = _find_limits(image)
        if image.mode == "F":
            return lambda strip: _stretch(np.asarray(strip), limits)[..., None]
        is_16_bit = image.format in _SIXTEEN_BIT_FORMATS
        return lambda strip: _convert_integers(np.asarray(strip), limits, is_16_bit)[..., None]
    if image.has_transparency_data:
        return _blend_with_white
    return lambda strip: np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))


def _find_limits(image: Image.Image) -> tuple[float, float]:
    """Return the smallest and the largest finite value of a gray image."""
    smallest, largest = np.inf, -np.inf
    for _, strip in _iterate_strips(image):
        values = np.asarray(strip)
        finite = values[np.isfinite(values)]
        if finite.size:
            smallest, largest = min(smallest, float(finite.min())), max(largest, float(finite.max()))
    return smallest, largest


def _blend_with_white(image: Image.Image) -> Pixels:
    colors = image.convert("RGBA")
    white = Image.new("RGBA", colors.size, "white")
    return np.asarray(Image.alpha_composite(white, colors).convert("RGB"))


def _convert_integers(
    values: npt.NDArray[np.integer], limits: tuple[float, float], is_16_bit: bool
) -> Pixels:
    """Convert mode "I" of Pillow, which does not tell the bit depth of the file.

    Unless the format is known to have 16 bits, assume 8 or 16 bits, whichever fits the limits of the whole
    image. If they fit neither, values are scaled to 0..255.
    """
    smallest, largest = limits
    if is_16_bit or (smallest >= 0 and 255 < largest <= 65535):
        return _convert_16_bits(values)
    if smallest >= 0 and largest <= 255:
        return values.astype(np.uint8)
    return _stretch(values, limits)


def _convert_16_bits(values: npt.NDArray[np.integer]) -> Pixels:
    """Divide by 257, which maps 65535 to 255, and round.

    >>> _convert_16_bits(np.array([0, 128, 129, 257, 65535], dtype=np.uint16)).tolist()
    [0, 0, 1, 1, 255]
    """
    return ((values.astype(np.int64) + 128) // 257).astype(np.uint8)


def _stretch(values: npt.NDArray[np.number], limits: tuple[float, float]) -> Pixels:
    """Scale finite values from the limits of the whole image to 0..255; NaN and infinity become 0.

    >>> _stretch(np.array([-1.0, 0.0, 1.0, np.nan]), (-1.0, 1.0)).tolist()
    [0, 128, 255, 0]
    """
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    smallest, largest = limits
    if not largest > smallest:
        return np.zeros(numbers.shape, np.uint8)
    fractions = np.where(finite, numbers - smallest, 0.0) / (largest - smallest)
    stretched: Pixels = np.rint(fractions * 255).astype(np.uint8)
    return stretched
