"""Pictures for the page, made when they are asked for; the latest ones stay in memory, up to a bound."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from selfmark.images.decode import decode_image
from selfmark.naming.shown_images import ShownImages

# Longer side in pixels of the picture itself, of the one that tiles and cut-outs are made from, and of these.
LARGE, MEDIUM, TILE, CROP = 1100, 640, 320, 168
CROP_SHARE = 0.35  # side of a landmark's cut-out, as a share of what the network saw
_AROUND = 0.08  # shown around what the network saw, as a share of its side
_CACHE_BYTES = 20 * 2**20
_QUALITY = 86
_FILL = (127, 127, 127)  # beyond the border of an image

View = tuple[int, int, int, int]  # left, top, right, bottom in pixels of the original


class ImageRenderer:
    """JPEGs of the shown images, by row; nothing else can be asked for."""

    def __init__(self, shown: ShownImages, max_megapixels: float) -> None:
        self._shown = shown
        self._max_megapixels = max_megapixels
        self._cache = BoundedCache(_CACHE_BYTES)

    def view(self, row: int) -> View:
        """The part of an original that its pictures show: the object with some of its surroundings."""
        x, y, width, height = self._shown.regions[row].tolist()
        limit_x, limit_y = self._shown.sizes[row].tolist()
        across, down = _AROUND * width, _AROUND * height
        left, top = max(0, round(x - across)), max(0, round(y - down))
        right, bottom = min(limit_x, round(x + width + across)), min(limit_y, round(y + height + down))
        return left, top, max(right, left + 1), max(bottom, top + 1)

    def large(self, row: int) -> bytes:
        return self._cache.get((row, "large"), lambda: self._make(row, LARGE))

    def tile(self, row: int) -> bytes:
        def make() -> bytes:
            picture = _decoded(self._medium(row))
            picture.thumbnail((TILE, TILE))
            return _encoded(picture)

        return self._cache.get((row, "tile"), make)

    def crop(self, row: int, landmark: int) -> bytes:
        """The surroundings of a landmark, which lies in the middle."""

        def make() -> bytes:
            picture = _decoded(self._medium(row))
            left, top, right, _ = self.view(row)
            scale = picture.width / (right - left)
            half = CROP_SHARE * self._shown.regions[row, 2] / 2 * scale
            # From pixel centers at integers to corners, and into the picture.
            x, y = (self._shown.xy[row, landmark].astype(float) + 0.5 - (left, top)) * scale
            return _encoded(_cut(picture, x - half, y - half, 2 * half))

        return self._cache.get((row, f"crop {landmark}"), make)

    def _medium(self, row: int) -> bytes:
        return self._cache.get((row, "medium"), lambda: self._make(row, MEDIUM))

    def _make(self, row: int, side: int) -> bytes:
        """The view of an original, its longer side at most so many pixels."""
        frame = self._shown.frames[row]
        path = self._shown.refs[row].path if frame is None else frame
        left, top, right, bottom = self.view(row)
        width, height = self._shown.sizes[row].tolist()
        share = max((right - left) / width, (bottom - top) / height)
        original = _open(path, int(side / share), self._max_megapixels)
        across, down = original.width / width, original.height / height  # it may have been decoded smaller
        box = (round(left * across), round(top * down), round(right * across), round(bottom * down))
        picture = original if box == (0, 0, *original.size) else original.crop(box)
        picture.thumbnail((side, side))
        return _encoded(picture)


def _open(path: Path, needed: int, max_megapixels: float) -> Image.Image:
    """An upright RGB image; a JPEG of far more pixels than needed is decoded smaller."""
    return Image.fromarray(decode_image(path, max_megapixels, lambda size: min(size) / needed).pixels)


def _cut(picture: Image.Image, left: float, top: float, side: float) -> Image.Image:
    """A square of the picture, enlarged or reduced; beyond the border it is gray."""
    canvas = Image.new("RGB", (CROP, CROP), _FILL)
    scale = CROP / side
    inside = (max(left, 0.0), max(top, 0.0), min(left + side, picture.width), min(top + side, picture.height))
    width, height = (inside[2] - inside[0]) * scale, (inside[3] - inside[1]) * scale
    if width >= 1 and height >= 1:
        part = picture.resize((round(width), round(height)), Image.Resampling.BICUBIC, box=inside)
        canvas.paste(part, (round((inside[0] - left) * scale), round((inside[1] - top) * scale)))
    return canvas


def _decoded(jpeg: bytes) -> Image.Image:
    return Image.open(io.BytesIO(jpeg), formats=["JPEG"])


def _encoded(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.convert("RGB").save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()


class BoundedCache:
    """Bytes by key, the least lately used given up when there are too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._entries: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, str], make: Callable[[], bytes]) -> bytes:
        """What is kept under the key, else what `make` makes."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        made = make()  # without the lock: others need not wait for it
        with self._lock:
            if key not in self._entries:
                self._entries[key] = made
                self._size += len(made)
            while self._size > self._most:
                _, gone = self._entries.popitem(last=False)
                self._size -= len(gone)
        return made
