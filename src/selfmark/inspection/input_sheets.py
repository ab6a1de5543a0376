"""Draw contact sheets of what the network will see: the crops, and their regions in the originals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from selfmark.draw.primitives import BLACK, draw_line, draw_text
from selfmark.image_ref import ImageRef
from selfmark.images.decode import Pixels, UnreadableImage, read_image
from selfmark.images.picture_files import encode_image
from selfmark.images.store import ImageStore
from selfmark.images.video import read_frames
from selfmark.run.files import atomic_open
from selfmark.sampling import evenly_spaced

MAX_CROPS = 48
MAX_ORIGINALS = 12
_CROP_COLUMNS = 8
_ORIGINAL_COLUMNS = 4
_ORIGINAL_WIDTH = 480  # width of an original on the sheet, in pixels
_GAP = 4  # distance between the pictures of a sheet, in pixels
_RULER = 40  # width of a ruler in pixels, and minimum distance between its marks in the picture
_MAX_RULER_SIDE = 1_600  # in pixels; images with a longer side are reduced
# Possible distances between the marks of a ruler, in pixels of the original.
_STEPS = (10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_BOX_COLOR = (255, 200, 0)


def draw_crops(store: ImageStore, max_images: int = MAX_CROPS) -> Pixels:
    """Return a contact sheet of evenly spaced images, exactly as the network sees them."""
    rows = evenly_spaced(len(store), max_images)
    return _arrange(list(store.pixels[rows].permute(0, 2, 3, 1).numpy()), _CROP_COLUMNS)


def draw_originals(store: ImageStore, max_megapixels: float) -> Pixels | None:
    """Return a contact sheet of evenly spaced originals, with rectangles around the regions that are cropped.

    Args:
        store: Images of the run.
        max_megapixels: Larger still images are left out.

    Returns:
        The sheet; None if no original can be read.
    """
    by_original: dict[tuple[Path, int | None], list[int]] = {}
    for row, ref in enumerate(store.refs):
        by_original.setdefault((ref.path, ref.frame), []).append(row)
    originals = list(by_original)
    chosen = [originals[index] for index in evenly_spaced(len(originals), MAX_ORIGINALS)]
    tiles = []
    for original in chosen:
        rows = by_original[original]
        pixels = _read_original(store.refs[rows[0]], max_megapixels)
        if pixels is not None:
            tiles.append(_draw_regions(pixels, store, rows))
    return _arrange(tiles, _ORIGINAL_COLUMNS) if tiles else None


def draw_ruler(store: ImageStore, max_megapixels: float) -> Pixels | None:
    """Return one original with rulers in pixels, to read off the boxes for --crop or --views.

    Args:
        store: Images of the run; the original of the middle image is drawn.
        max_megapixels: A larger still image is not drawn.

    Returns:
        The picture; None if the original cannot be read.
    """
    pixels = _read_original(store.refs[len(store) // 2], max_megapixels)
    if pixels is None:
        return None
    height, width = pixels.shape[:2]
    zoom = min(1.0, _MAX_RULER_SIDE / max(height, width))
    shown = cv2.resize(pixels, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_AREA)
    canvas = np.full((len(shown) + _RULER, shown.shape[1] + _RULER, 3), 255, np.uint8)
    canvas[_RULER:, _RULER:] = shown
    step = next((step for step in _STEPS if zoom * step >= _RULER), _STEPS[-1])
    for axis, side in enumerate((width, height)):
        for mark in range(0, side + 1, step):
            position = _RULER + round(zoom * mark)
            start, end = np.array([position, _RULER - 8]), np.array([position, _RULER - 1])
            label = (position - 12, _RULER - 14)
            if axis == 1:
                start, end, label = start[::-1], end[::-1], (2, position + 5)
            draw_line(canvas, start.astype(float), end.astype(float), 1, BLACK)
            cv2.putText(canvas, str(mark), label, cv2.FONT_HERSHEY_SIMPLEX, 0.4, BLACK, 1, cv2.LINE_AA)
    return canvas


def write_sheet(sheet: Pixels, path: Path) -> None:
    """Write a sheet as a JPEG file to an existing folder, atomically."""
    with atomic_open(path, "wb") as handle:
        handle.write(encode_image(Image.fromarray(sheet), "JPEG", 90))


def _read_original(ref: ImageRef, max_megapixels: float) -> Pixels | None:
    if ref.frame is not None:
        return next((pixels for _, pixels in read_frames(ref.path, [ref.frame])), None)
    try:
        return read_image(ref.path, max_megapixels)
    except UnreadableImage:
        return None


def _draw_regions(pixels: Pixels, store: ImageStore, rows: Sequence[int]) -> Pixels:
    """Return an original, resized, with a rectangle around the region of each crop.

    Args:
        pixels: [H, W, 3] original.
        store: Images of the run.
        rows: Rows of the store that were cropped from this original.
    """
    scale = _ORIGINAL_WIDTH / pixels.shape[1]
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    resized = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=method)
    canvas = np.ascontiguousarray(resized, np.uint8)
    for row in rows:
        x, y, width, height = store.regions[row] * scale
        # Keep the rectangle one pixel inside the picture, so that it is also visible at the border.
        left, right = np.clip([x, x + width], 1, canvas.shape[1] - 2)
        top, bottom = np.clip([y, y + height], 1, canvas.shape[0] - 2)
        corners = np.array([[left, top], [right, top], [right, bottom], [left, bottom]])
        for color, line_width in ((BLACK, 5), (_BOX_COLOR, 3)):
            for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
                draw_line(canvas, start, end, line_width, color)
        if store.track[row] >= 0:
            corner = (round(float(left)) + 6, round(float(top)) + 22)
            draw_text(canvas, str(store.track[row]), corner, 0.7, outline=4)
    return canvas


def _arrange(tiles: Sequence[Pixels], max_columns: int) -> Pixels:
    """Arrange tiles of equal width in rows on a white sheet; all rows are as high as the highest tile."""
    height, width = max(len(tile) for tile in tiles), tiles[0].shape[1]
    columns = min(max_columns, len(tiles))
    rows = -(-len(tiles) // columns)
    sheet = np.full((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3), 255, np.uint8)
    for index, tile in enumerate(tiles):
        top, left = index // columns * (height + _GAP), index % columns * (width + _GAP)
        sheet[top : top + len(tile), left : left + tile.shape[1]] = tile
    return sheet
