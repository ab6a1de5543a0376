"""Which square of the original image the network sees, and coordinates there and back.

A region is a rectangle x, y, w, h of the original in corner convention (pixel i covers [i, i+1)); it may
leave the image. It becomes the network's image of `size` x `size` pixels. Points have pixel centers at
integers on both sides, hence the halves.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.config import Images
from selfmark.images.decode import Pixels

Floats = npt.NDArray[np.float64]

SNAP = 1e-3  # a region that ends this little beyond a pixel's edge ends there: rounding errors need no pixels


def crop_regions(sizes: npt.ArrayLike, boxes: npt.ArrayLike, images: Images) -> Floats:
    """The square each image is cropped to (paper, Datasets), as [N, 4] x, y, w, h.

    Without a box it is the smallest square around the whole image. The rule "loose" takes the longer side
    of the box and adds the margin on each side; "body" is the paper's s = c*H/200, a square of side
    200*s = c*H for a box of height H.

    Args:
        sizes: [N, 2] width and height of the originals.
        boxes: [N, 4] x, y, w, h of the objects, rows of NaN where there is no box.

    >>> crop_regions([[640, 480]], [[np.nan] * 4], Images()).tolist()
    [[0.0, -80.0, 640.0, 640.0]]
    >>> crop_regions([[640, 480]], [[100, 100, 50, 200]], Images(box_rule="body", body_scale=1.5)).tolist()
    [[-25.0, 50.0, 300.0, 300.0]]
    """
    extents = _object_boxes(sizes, boxes)
    longer = extents[:, 2:].max(axis=1)
    whole = np.isnan(np.asarray(boxes, dtype=np.float64)).any(axis=1)
    if images.box_rule == "body":
        around_box = images.body_scale * extents[:, 3]
    else:
        around_box = longer * (1 + 2 * images.margin)
    side = np.where(whole, longer, around_box)[:, None]
    center = extents[:, :2] + extents[:, 2:] / 2
    return np.concatenate([center - side / 2, side, side], axis=1)


def to_network(xy: npt.ArrayLike, regions: npt.ArrayLike, size: int) -> Floats:
    """Points of the originals ([..., 2]) in network pixels; `regions` is [..., 4] and broadcasts.

    >>> to_network([0.0, 0.0], [0, 0, 512, 512], 256).tolist()
    [-0.25, -0.25]
    """
    points, areas = np.asarray(xy, dtype=np.float64), np.asarray(regions, dtype=np.float64)
    return (points + 0.5 - areas[..., :2]) * (size / areas[..., 2:]) - 0.5


def to_original(xy: npt.ArrayLike, regions: npt.ArrayLike, size: int) -> Floats:
    """Network pixels ([..., 2]) as points of the originals: the inverse of `to_network`.

    >>> to_original([-0.25, -0.25], [0, 0, 512, 512], 256).tolist()
    [0.0, 0.0]
    """
    points, areas = np.asarray(xy, dtype=np.float64), np.asarray(regions, dtype=np.float64)
    return (points + 0.5) * (areas[..., 2:] / size) + areas[..., :2] - 0.5


def inner_bounds(
    sizes: npt.ArrayLike, boxes: npt.ArrayLike, regions: npt.ArrayLike, size: int
) -> npt.NDArray[np.float32]:
    """Where keypoints may lie, as [N, 4] x0, y0, x1, y1 in network pixels, both ends included.

    It is the part of the object's box, or without one of the image, that lies in the image and the region.

    >>> inner_bounds([[640, 480]], [[np.nan] * 4], [[0, -80, 640, 640]], 256).tolist()
    [[0.0, 31.5, 255.0, 223.5]]
    """
    extents = _object_boxes(sizes, boxes)
    limit = np.asarray(sizes, dtype=np.float64)
    first = np.clip(extents[:, :2], 0, limit) - 0.5
    last = np.clip(extents[:, :2] + extents[:, 2:], 0, limit) - 0.5
    corners = np.stack([first, last], axis=1)
    areas = np.asarray(regions, dtype=np.float64)[:, None]
    return np.clip(to_network(corners, areas, size), 0, size - 1).reshape(-1, 4).astype(np.float32)


def extract_crop(image: Pixels, region: npt.ArrayLike, size: int) -> Pixels:
    """The pixels of a region, [size, size, 3] uint8, placed exactly as `to_network` says.

    Outside the image its border pixels are repeated. When shrinking, pixels are averaged over the area
    they cover, which avoids aliasing.
    """
    x, y, width, height = np.asarray(region, dtype=np.float64).tolist()
    across, columns, x_places = _axis(x, width, image.shape[1], size)
    down, rows, y_places = _axis(y, height, image.shape[0], size)
    window = image[down, across]
    if (rows, columns) != window.shape[:2]:
        window = np.asarray(cv2.resize(window, (columns, rows), interpolation=cv2.INTER_AREA), dtype=np.uint8)
    # What is left of the mapping (a shift, a scale of about 1, or an enlargement) is interpolated here, not
    # by OpenCV's warpAffine, which in some versions rounds positions to 1/32 of a source pixel.
    sampled = _interpolate(_interpolate(window, y_places).swapaxes(0, 1), x_places)
    return np.ascontiguousarray((sampled + 0.5).astype(np.uint8).swapaxes(0, 1))


def _object_boxes(sizes: npt.ArrayLike, boxes: npt.ArrayLike) -> Floats:
    """The boxes, [N, 4], with the whole image in place of those that are missing."""
    dimensions, given = np.asarray(sizes, dtype=np.float64), np.asarray(boxes, dtype=np.float64)
    whole = np.concatenate([np.zeros_like(dimensions), dimensions], axis=1)
    return np.where(np.isnan(given).any(axis=1, keepdims=True), whole, given)


def _axis(start: float, extent: float, limit: int, size: int) -> tuple[slice, int, Floats]:
    """How one axis of a region is sampled.

    Returns:
        The pixels of the image that are needed, to how many they are averaged, and the position of each of
        the `size` output pixels among those averages.
    """
    shrink = extent / size
    margin = 1 if shrink < 1 else 0  # enlarging interpolates with the neighbors outside the region
    first = int(np.clip(np.floor(start + SNAP) - margin, 0, limit - 1))
    last = int(np.clip(np.ceil(start + extent - SNAP) + margin, first + 1, limit))
    count = max(1, round((last - first) / max(shrink, 1.0)))
    centers = start + (np.arange(size, dtype=np.float64) + 0.5) * shrink
    return slice(first, last), count, (centers - first) * (count / (last - first)) - 0.5


def _interpolate(values: npt.NDArray[np.number], places: Floats) -> npt.NDArray[np.float32]:
    """Linear interpolation of [A, B, 3] at fractional indices of the first axis, its ends repeated."""
    last = len(values) - 1
    places = np.clip(places, 0, last)
    lower = places.astype(np.int64)
    numbers = np.asarray(values, dtype=np.float32, order="C")
    below = numbers.take(lower, axis=0)
    above = numbers.take(np.minimum(lower + 1, last), axis=0)
    # below + share * (above - below) in place: fresh arrays would cost several times the arithmetic.
    above -= below
    above *= (places - lower).astype(np.float32)[:, None, None]
    above += below
    return above
