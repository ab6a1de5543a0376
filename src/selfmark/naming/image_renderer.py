"""Render JPEGs of the shown images on request, and cache them in memory up to a limit."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from selfmark.images.crop import region_sides
from selfmark.images.decode import decode_image
from selfmark.images.picture_files import encode_image
from selfmark.naming.shown_images import ShownImages

# Longer side of each kind of image, in pixels. Thumbnails and crops are made from the medium image.
LARGE_SIDE, MEDIUM_SIDE, THUMBNAIL_SIDE, CROP_SIDE = 1100, 640, 320, 168
_CROP_FRACTION = 0.35  # side of the crop around a landmark, relative to the region that the network sees
_MARGIN_FRACTION = 0.08  # margin around the region that the network sees, relative to its width or height
_CACHE_BYTES = 20 * 2**20
_JPEG_QUALITY = 86
_FILL_COLOR = (127, 127, 127)  # color outside the image

View = tuple[int, int, int, int]  # left, top, right, bottom in pixels of the original


class ImageRenderer:
    """Renderer of the shown images.

    Every method takes the row of an image. All methods except `view` return the bytes of a JPEG file.
    """

    def __init__(self, shown: ShownImages, max_megapixels: float) -> None:
        """Create a renderer of `shown`; rendering an image of more than `max_megapixels` raises an error."""
        self._shown = shown
        self._max_megapixels = max_megapixels
        self._cache = BoundedCache(_CACHE_BYTES)

    def view(self, row: int) -> View:
        """Return the part of the original to show: the region that the network sees, with a margin."""
        x, y, width, height = self._shown.regions[row].tolist()
        image_width, image_height = self._shown.sizes[row].tolist()
        margin_x, margin_y = _MARGIN_FRACTION * width, _MARGIN_FRACTION * height
        left, top = max(0, round(x - margin_x)), max(0, round(y - margin_y))
        right = min(image_width, round(x + width + margin_x))
        bottom = min(image_height, round(y + height + margin_y))
        return left, top, max(right, left + 1), max(bottom, top + 1)

    def large(self, row: int) -> bytes:
        """Return the large image."""
        return self._cache.get((row, "large"), lambda: self._render_view(row, LARGE_SIDE))

    def thumbnail(self, row: int) -> bytes:
        """Return the small image for the strip of thumbnails."""

        def render() -> bytes:
            image = _decode(self._medium(row))
            image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
            return _encode(image)

        return self._cache.get((row, "thumbnail"), render)

    def crop(self, row: int, landmark: int) -> bytes:
        """Return a square crop with the landmark in its center."""

        def render() -> bytes:
            image = _decode(self._medium(row))
            left, top, right, _ = self.view(row)
            scale = image.width / (right - left)
            half = _CROP_FRACTION * region_sides(self._shown.regions[row : row + 1])[0] / 2 * scale
            # Adding 0.5 converts from pixel centers at integers to pixel corners at integers.
            x, y = (self._shown.xy[row, landmark].astype(float) + 0.5 - (left, top)) * scale
            return _encode(_crop_square(image, x - half, y - half, 2 * half))

        return self._cache.get((row, f"crop {landmark}"), render)

    def _medium(self, row: int) -> bytes:
        """Return the medium image, from which thumbnails and crops are made."""
        return self._cache.get((row, "medium"), lambda: self._render_view(row, MEDIUM_SIDE))

    def _render_view(self, row: int, max_side: int) -> bytes:
        """Return the view of an image, reduced so that its longer side is at most `max_side` pixels."""
        stored_frame = self._shown.frames[row]  # JPEG of a video frame
        path = self._shown.refs[row].path if stored_frame is None else stored_frame
        left, top, right, bottom = self.view(row)
        width, height = self._shown.sizes[row].tolist()
        shown_fraction = max((right - left) / width, (bottom - top) / height)
        original = _open(path, int(max_side / shown_fraction), self._max_megapixels)
        # The original may have been decoded at a reduced size.
        scale_x, scale_y = original.width / width, original.height / height
        box = (round(left * scale_x), round(top * scale_y), round(right * scale_x), round(bottom * scale_y))
        image = original if box == (0, 0, *original.size) else original.crop(box)
        image.thumbnail((max_side, max_side))
        return _encode(image)


def _open(path: Path, min_side: int, max_megapixels: float) -> Image.Image:
    """Return an upright RGB image; a JPEG much larger than `min_side` is decoded at a reduced size."""
    return Image.fromarray(decode_image(path, max_megapixels, lambda size: min(size) / min_side).pixels)


def _crop_square(image: Image.Image, left: float, top: float, side: float) -> Image.Image:
    """Return a square part of an image, resized to CROP_SIDE; parts outside the image are gray."""
    canvas = Image.new("RGB", (CROP_SIDE, CROP_SIDE), _FILL_COLOR)
    scale = CROP_SIDE / side
    # These are the corners of the part of the square that lies inside the image.
    x0, y0 = max(left, 0.0), max(top, 0.0)
    x1, y1 = min(left + side, image.width), min(top + side, image.height)
    width, height = (x1 - x0) * scale, (y1 - y0) * scale
    if width >= 1 and height >= 1:
        part = image.resize((round(width), round(height)), Image.Resampling.BICUBIC, box=(x0, y0, x1, y1))
        canvas.paste(part, (round((x0 - left) * scale), round((y0 - top) * scale)))
    return canvas


def _decode(jpeg: bytes) -> Image.Image:
    return Image.open(io.BytesIO(jpeg), formats=["JPEG"])


def _encode(image: Image.Image) -> bytes:
    return encode_image(image.convert("RGB"), "JPEG", _JPEG_QUALITY)


class BoundedCache:
    """Thread-safe cache of bytes; above a total size, it drops the least recently used entries."""

    def __init__(self, max_bytes: int) -> None:
        """Create an empty cache that holds at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._size = 0
        self._entries: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, str], compute: Callable[[], bytes]) -> bytes:
        """Return the cached value of a key, or compute and cache it."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        value = compute()  # The lock is not held here, so that other threads need not wait.
        with self._lock:
            if key not in self._entries:
                self._entries[key] = value
                self._size += len(value)
            while self._size > self._max_bytes:
                _, dropped = self._entries.popitem(last=False)
                self._size -= len(dropped)
        return value
