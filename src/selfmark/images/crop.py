"""Crop the region of the original image that the network sees, and convert coordinates.

A region is a rectangle x, y, w, h of the original. It is measured from pixel corners: pixel i covers
[i, i + 1). It may extend beyond the image. It is resized to the network's `size` x `size` pixels. Points are
measured from pixel centers, both in the original and in the resized region: pixel i is at x = i. The formulas
therefore contain 0.5.
"""

from __future__ import annotations

import math
import threading

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.config import Images
from selfmark.images.decode import Pixels

Floats = npt.NDArray[np.float64]

SNAP = 1e-3  # pixels; an edge this close to a pixel boundary counts as on it, to absorb rounding errors


def compute_crop_regions(sizes: npt.ArrayLike, boxes: npt.ArrayLike, images: Images) -> Floats:
    """Compute the region that each image is cropped to (Sec. 4.1 of the paper).

    Without a box, the region is the smallest square around the whole image. With a box, the region is a
    square around the center of the box. With the rule "loose", the square is as wide as the longer side of
    the box, plus a margin (a fraction of this length) at both ends. With the rule "body", the square is c*H
    wide for a box of height H, where c is `body_scale`. The paper writes this width as 200*s, with
    s = c*H/200.

    With the aspect "stretched", regions need not be squares: without a box, the region is the image itself,
    and the rule "loose" adds margins to the box. The rule "body" does not change.

    Args:
        sizes: [N, 2], width and height of the originals, pixels.
        boxes: [N, 4], x, y, w, h of the objects, pixels; rows of NaN where there is no box.
        images: crop rule and its parameters.

    Returns:
        Regions [N, 4] x, y, w, h, pixels of the originals.

    >>> compute_crop_regions([[640, 480]], [[np.nan] * 4], Images()).tolist()
    [[0.0, -80.0, 640.0, 640.0]]
    >>> body = Images(box_rule="body", body_scale=1.5)
    >>> compute_crop_regions([[640, 480]], [[100, 100, 50, 200]], body).tolist()
    [[-25.0, 50.0, 300.0, 300.0]]
    >>> stretched = Images(aspect="stretched", margin=0.1)
    >>> compute_crop_regions([[640, 480]], [[100, 100, 50, 200]], stretched).tolist()
    [[95.0, 80.0, 60.0, 240.0]]
    """
    extents = _fill_missing_boxes(sizes, boxes)
    has_no_box = np.isnan(np.asarray(boxes, dtype=np.float64)).any(axis=1, keepdims=True)
    longer_sides = extents[:, 2:].max(axis=1, keepdims=True).repeat(2, axis=1)
    base_sides = extents[:, 2:] if images.aspect == "stretched" else longer_sides
    if images.box_rule == "body":
        box_sides = images.body_scale * extents[:, 3:].repeat(2, axis=1)
    else:
        box_sides = base_sides * (1 + 2 * images.margin)
    sides = np.where(has_no_box, base_sides, box_sides)
    center = extents[:, :2] + extents[:, 2:] / 2
    return np.concatenate([center - sides / 2, sides], axis=1)


def region_sides(regions: npt.ArrayLike) -> Floats:
    """Return the side [N] of regions [N, 4]; for a region that is not square, the square root of its area."""
    rectangles = np.asarray(regions, dtype=np.float64)
    sides: Floats = np.sqrt(rectangles[:, 2] * rectangles[:, 3])
    return sides


def to_network(xy: npt.ArrayLike, regions: npt.ArrayLike, size: int) -> Floats:
    """Convert points [..., 2] from pixels of the originals to network pixels.

    Args:
        xy: points [..., 2].
        regions: [..., 4], crop region of each image; broadcasts with `xy`.
        size: side of the network's images, pixels.

    >>> to_network([0.0, 0.0], [0, 0, 512, 512], 256).tolist()
    [-0.25, -0.25]
    """
    points, rectangles = np.asarray(xy, dtype=np.float64), np.asarray(regions, dtype=np.float64)
    return (points + 0.5 - rectangles[..., :2]) * (size / rectangles[..., 2:]) - 0.5


def to_original(xy: npt.ArrayLike, regions: npt.ArrayLike, size: int) -> Floats:
    """Convert points [..., 2] from network pixels to pixels of the originals: the inverse of `to_network`.

    >>> to_original([-0.25, -0.25], [0, 0, 512, 512], 256).tolist()
    [0.0, 0.0]
    """
    points, rectangles = np.asarray(xy, dtype=np.float64), np.asarray(regions, dtype=np.float64)
    return (points + 0.5) * (rectangles[..., 2:] / size) + rectangles[..., :2] - 0.5


def keypoint_bounds(
    sizes: npt.ArrayLike, boxes: npt.ArrayLike, regions: npt.ArrayLike, size: int
) -> npt.NDArray[np.float32]:
    """Compute where keypoints are allowed: inside the object's box, the image and the region.

    Args:
        sizes: [N, 2], width and height of the originals, pixels.
        boxes: [N, 4], x, y, w, h of the objects; rows of NaN where there is no box.
        regions: [N, 4], x, y, w, h of the crop regions.
        size: side of the network's images, pixels.

    Returns:
        Bounds [N, 4] x0, y0, x1, y1 in network pixels, both ends included.

    >>> keypoint_bounds([[640, 480]], [[np.nan] * 4], [[0, -80, 640, 640]], 256).tolist()
    [[0.0, 31.5, 255.0, 223.5]]
    """
    extents = _fill_missing_boxes(sizes, boxes)
    limit = np.asarray(sizes, dtype=np.float64)
    first = np.clip(extents[:, :2], 0, limit) - 0.5
    last = np.clip(extents[:, :2] + extents[:, 2:], 0, limit) - 0.5
    corners = np.stack([first, last], axis=1)
    rectangles = np.asarray(regions, dtype=np.float64)[:, None]
    return np.clip(to_network(corners, rectangles, size), 0, size - 1).reshape(-1, 4).astype(np.float32)


def extract_crop(image: Pixels, region: npt.ArrayLike, size: int) -> Pixels:
    """Return the pixels of a region, [size, size, 3] uint8, aligned exactly with `to_network`.

    Border pixels are repeated outside the image. When the image is reduced, each output pixel is the average
    over the area that it covers; this avoids aliasing.
    """
    x, y, width, height = np.asarray(region, dtype=np.float64).tolist()
    x_slice, columns, x_positions = _plan_axis(x, width, image.shape[1], size)
    y_slice, rows, y_positions = _plan_axis(y, height, image.shape[0], size)
    window = image[y_slice, x_slice]
    if (rows, columns) != window.shape[:2]:
        window = np.asarray(cv2.resize(window, (columns, rows), interpolation=cv2.INTER_AREA), dtype=np.uint8)
    # What remains is a shift with a scale of about 1, or an enlargement. OpenCV's warpAffine is not used,
    # because some versions round positions to 1/32 of a source pixel.
    float_window = _SCRATCH.array("window", window.shape)
    float_window[:] = window
    in_rows = _interpolate(float_window, y_positions, "rows")
    transposed = _SCRATCH.array("transposed", (in_rows.shape[1], in_rows.shape[0], 3))
    cv2.transpose(in_rows, transposed)
    sampled = _interpolate(transposed, x_positions, "columns")
    sampled += np.float32(0.5)
    return np.asarray(cv2.transpose(sampled.astype(np.uint8)), dtype=np.uint8)


class _Scratch(threading.local):
    """Arrays that one thread reuses for each crop.

    For new arrays, the system would have to provide new pages of memory for each crop, which takes longer
    than the interpolation.
    """

    _MAX_VALUES = 1 << 20  # larger arrays are not kept; this many values take 4 MB

    def __init__(self) -> None:
        self._kept: dict[str, npt.NDArray[np.float32]] = {}

    def array(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return an array with arbitrary values, valid until the next call with the same name."""
        size = math.prod(shape)
        if size > self._MAX_VALUES:
            return np.empty(shape, np.float32)
        values = self._kept.get(name)
        if values is None or len(values) < size:
            values = self._kept[name] = np.empty(size, np.float32)
        return values[:size].reshape(shape)


_SCRATCH = _Scratch()


def _fill_missing_boxes(sizes: npt.ArrayLike, boxes: npt.ArrayLike) -> Floats:
    """Return the boxes [N, 4], replacing missing ones by the whole image."""
    extents = np.asarray(boxes, dtype=np.float64)
    dimensions = np.asarray(sizes, dtype=np.float64)
    whole_image = np.concatenate([np.zeros_like(dimensions), dimensions], axis=1)
    return np.where(np.isnan(extents).any(axis=1, keepdims=True), whole_image, extents)


def _plan_axis(start: float, extent: float, limit: int, size: int) -> tuple[slice, int, Floats]:
    """Plan how to sample one axis of a region.

    Args:
        start: start of the region, pixels of the original.
        extent: length of the region, pixels of the original.
        limit: length of the image, pixels of the original.
        size: number of output pixels.

    Returns:
        The slice of the image to read; the number of averages to compute from its pixels; and the position
        [size] of each output pixel among these averages.
    """
    shrink = extent / size
    margin = 1 if shrink < 1 else 0  # enlarging also needs the pixels next to the region
    first = int(np.clip(np.floor(start + SNAP) - margin, 0, limit - 1))
    stop = int(np.clip(np.ceil(start + extent - SNAP) + margin, first + 1, limit))
    count = max(1, round((stop - first) / max(shrink, 1.0)))
    centers = start + (np.arange(size, dtype=np.float64) + 0.5) * shrink
    return slice(first, stop), count, (centers - first) * (count / (stop - first)) - 0.5


def _interpolate(values: npt.NDArray[np.float32], positions: Floats, name: str) -> npt.NDArray[np.float32]:
    """Interpolate values [A, B, 3] linearly at fractional positions along the first axis.

    Positions before the first or after the last value get that value. The result is a scratch array `name`.
    """
    last = len(values) - 1
    positions = np.clip(positions, 0, last)
    lower = positions.astype(np.intp)
    shape = (len(positions), *values.shape[1:])
    # With mode="clip", indices beyond the end mean the last row, and `out` is written without a copy.
    lower_rows = values.take(lower, axis=0, out=_SCRATCH.array(f"{name} below", shape), mode="clip")
    upper_rows = values.take(lower + 1, axis=0, out=_SCRATCH.array(name, shape), mode="clip")
    # Compute lower + weight * (upper - lower) without new arrays.
    upper_rows -= lower_rows
    upper_rows *= (positions - lower).astype(np.float32)[:, None, None]
    upper_rows += lower_rows
    return upper_rows
