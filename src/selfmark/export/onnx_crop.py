"""Build the operations of `images.crop` as ONNX nodes: crop images, and map points back.

Averaging and interpolation along one axis are linear, so both are products with weight matrices. The graph
computes the matrices from the image size and the boxes. The products broadcast: one box can serve many
images, and one image with many boxes gives many crops. ONNX's own operator `Resize` cannot do this: it uses
one window for all images of a batch, and it does not average over areas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selfmark.config import Images
from selfmark.export.onnx_nodes import Graph, Value, integers
from selfmark.images.crop import SNAP

_MIN_COVERAGE = 1e-3  # OpenCV ignores a pixel if less than this fraction of it is covered
# Averages of 2 x 2 pixels are multiples of 1/4. Adding this much rounds halves up and changes nothing else.
_ROUND_UP = 1e-4
# The pixels of an axis are averaged, and the crop is interpolated between the averages. The number of
# averages is at most the crop size plus this number.
_EXTRA_AVERAGES = 4


@dataclass(frozen=True)
class CropRegions:
    """Regions of the original images that the crops show, in pixels.

    `x` and `y` are the top left corner. Each value is [N, 1], where N is the number of boxes.
    """

    x: Value
    y: Value
    width: Value
    height: Value


@dataclass(frozen=True)
class _AxisSampling:
    """Sampling of the regions along one axis, as in `images.crop`; each value is [N, 1].

    Attributes:
        first: Number of the first pixel needed.
        end: Number of the last pixel needed, plus 1.
        count: Number of averages to compute from these pixels.
        start: Start of the region, in pixels.
    """

    first: Value
    end: Value
    count: Value
    start: Value


@dataclass(frozen=True)
class _Window:
    """The smallest range of pixels of one axis that contains all regions: `begin` to `end` - 1."""

    begin: Value
    end: Value


def add_crops(graph: Graph, images: str, boxes: str, settings: Images) -> tuple[Value, CropRegions]:
    """Add nodes that crop images.

    Args:
        graph: Graph to add to.
        images: Name of a value [B, H, W, 3] or [1, H, W, 3] uint8.
        boxes: Name of a value [B, 4] or [1, 4] float32: x, y, w, h. A box without width or height means the
            whole image.
        settings: Crop size and box rule.

    Returns:
        Network images [B, 3, S, S], integer-valued floats 0..255, and the regions they show. B is the number
        of images or the number of boxes, whichever is larger.
    """
    size = settings.size
    pixels = Value(graph, images)
    shape = pixels.apply("Shape")
    height, width = (shape.apply("Gather", integers([axis])).cast(np.float32) for axis in (1, 2))
    regions = _add_regions(Value(graph, boxes), width, height, settings)
    y_axis = _add_axis_sampling(regions.y, regions.height, height, size)
    x_axis = _add_axis_sampling(regions.x, regions.width, width, size)
    rows, columns = _add_window(y_axis), _add_window(x_axis)
    begin, end = _to_integer_list(rows.begin, columns.begin), _to_integer_list(rows.end, columns.end)
    window = pixels.apply("Slice", begin, end, integers([1, 2])).cast(np.float32)
    # Average along y while the colors are still interleaved, so that no large image is transposed.
    rounding = _add_rounding(y_axis, x_axis)
    lines = _add_average_weights(y_axis, rows, rounding, size) @ window.reshape(0, 0, -1)
    planes = lines.reshape(0, 0, -1, 3).apply("Transpose", perm=[0, 3, 1, 2])
    x_weights = _add_average_weights(x_axis, columns, rounding, size)
    averages = planes @ _transpose(_add_channel_axis(x_weights))
    rounded = (averages * rounding.factor + rounding.offset).apply("Round")
    above, below, fraction = _add_interpolation_weights(y_axis, regions.height, size)
    sampled = _interpolate(above @ rounded, below @ rounded, fraction.reshape(-1, 1, size, 1))
    left, right, fraction = _add_interpolation_weights(x_axis, regions.width, size)
    sampled = _interpolate(
        sampled @ _transpose(left), sampled @ _transpose(right), fraction.reshape(-1, 1, 1, size)
    )
    # The last reshape changes nothing, but it gives the runtime a constant shape to plan with.
    return (sampled + 0.5).apply("Floor").reshape(-1, 3, size, size), regions


def add_to_original(xy: Value, regions: CropRegions, size: int) -> Value:
    """Add nodes that map network pixels [B, K, 2] to original pixels, like `images.crop.to_original`."""
    corner = regions.x.apply("Concat", regions.y, axis=1).reshape(0, 1, 2)
    sides = regions.width.apply("Concat", regions.height, axis=1).reshape(0, 1, 2)
    return (xy + 0.5) * (sides / size) + corner - 0.5


def _add_regions(boxes: Value, width: Value, height: Value, settings: Images) -> CropRegions:
    """Add nodes that compute the regions to crop, like `images.crop.compute_crop_regions`."""
    x, y, w, h = (boxes.apply("Gather", integers([axis]), axis=1) for axis in range(4))
    has_box = w.apply("Greater", 0.0).apply("And", h.apply("Greater", 0.0))  # NaN is not greater
    factor, longer_side = 1 + 2 * settings.margin, width.apply("Max", height)
    if settings.box_rule == "body":
        box_width = box_height = h * settings.body_scale
    elif settings.aspect == "square":
        box_width = box_height = w.apply("Max", h) * factor
    else:
        box_width, box_height = w * factor, h * factor
    is_square = settings.aspect == "square"
    region_width = box_width.where(has_box, longer_side if is_square else width)
    region_height = box_height.where(has_box, longer_side if is_square else height)
    left = (x + w / 2).where(has_box, width / 2) - region_width / 2
    top = (y + h / 2).where(has_box, height / 2) - region_height / 2
    return CropRegions(left, top, region_width, region_height)


def _add_axis_sampling(start: Value, side: Value, limit: Value, size: int) -> _AxisSampling:
    """Add nodes that select the pixels of one axis.

    Args:
        start: [N, 1] start of each region, in pixels.
        side: [N, 1] length of each region, in pixels.
        limit: Length of the image along this axis, in pixels.
        size: Length of the crop, in pixels.
    """
    shrink = side / size
    margin = shrink.apply("Less", 1.0).cast(np.float32)  # enlarging also needs the pixels next to the region
    first = ((start + SNAP).apply("Floor") - margin).clip(0.0, limit - 1)
    end = ((start + side - SNAP).apply("Ceil") + margin).clip(first + 1, limit)
    count = ((end - first) / shrink.apply("Max", 1.0)).apply("Round").apply("Max", 1.0)
    return _AxisSampling(first, end, count, start)


def _add_window(axis: _AxisSampling) -> _Window:
    return _Window(axis.first.apply("ReduceMin", keepdims=0), axis.end.apply("ReduceMax", keepdims=0))


@dataclass(frozen=True)
class _Rounding:
    """Values to average and round exactly as OpenCV does.

    If averages cover whole pixels, OpenCV adds the pixels and divides the sum. Otherwise, OpenCV divides the
    weights first. OpenCV rounds halves to even numbers, but rounds halves up in averages of 2 x 2 pixels.

    Attributes:
        whole_pixels: [N, 1] whether averages cover whole pixels.
        factor: [N, 1, 1, 1] factor for the weighted sums.
        offset: [N, 1, 1, 1] offset to add before rounding.
    """

    whole_pixels: Value
    factor: Value
    offset: Value


def _add_rounding(y_axis: _AxisSampling, x_axis: _AxisSampling) -> _Rounding:
    # `height` and `width` are the sides of the area that one average covers, in pixels.
    height, width = ((axis.end - axis.first) / axis.count for axis in (y_axis, x_axis))
    whole_pixels = _is_integer(height).apply("And", _is_integer(width))
    area = (height * width).where(whole_pixels, 1.0)
    is_halved = height.apply("Equal", 2.0).apply("And", width.apply("Equal", 2.0)).cast(np.float32)
    ones = np.ones((1, 1), np.float32)
    factor = Value(area.graph, area.graph.add("Div", ones, area.name)).reshape(-1, 1, 1, 1)
    offset = (is_halved * _ROUND_UP).reshape(-1, 1, 1, 1)
    return _Rounding(whole_pixels, factor, offset)


def _is_integer(value: Value) -> Value:
    return value.apply("Floor").apply("Equal", value)


def _add_average_weights(axis: _AxisSampling, window: _Window, rounding: _Rounding, size: int) -> Value:
    """Add the weight of each pixel of the window in each average: [N, S + _EXTRA_AVERAGES, pixels].

    An average covers length / count pixels, where length = end - first. The limits of pixels and averages are
    multiplied by `count`. The products are integers, so the weights are exact. Only the first `count` rows of
    the matrix have a meaning; `_add_interpolation_weights` ignores the other rows.
    """
    numbers = np.arange(size + _EXTRA_AVERAGES, dtype=np.float32)[:, None]
    count, length = _to_matrix(axis.count), _to_matrix(axis.end - axis.first)
    pixels = window.begin.apply("Range", window.end, 1.0) - _to_matrix(axis.first)
    left, right = (pixels * count).apply("Max", length * numbers), ((pixels + 1) * count)
    covered = right.apply("Min", length * (numbers + 1)) - left
    kept = covered.where(covered.apply("Greater", count * _MIN_COVERAGE), 0.0)
    return kept / count.where(_to_matrix(rounding.whole_pixels), length)


def _add_interpolation_weights(axis: _AxisSampling, side: Value, size: int) -> tuple[Value, Value, Value]:
    """Add nodes that interpolate each pixel of the crop between two averages.

    Pixel s of the crop lies at position s + offset, counted in averages. Offsets are small, so float32 is
    exact enough.

    Returns:
        Matrices [N, 1, S, S + _EXTRA_AVERAGES] that select the average before and after each pixel, and the
        position between the two, [N, S] from 0 to 1.
    """
    length, numbers = axis.end - axis.first, np.arange(size, dtype=np.float32)
    drift = (side * axis.count - length * size) / (length * size)  # growth of the offset per pixel
    shift = (axis.start - axis.first) * axis.count / length  # offset of the start of the crop
    offset = (drift * (numbers + 0.5) + shift).clip(-numbers, axis.count - 1 - numbers)
    floor = offset.apply("Floor")
    averages = np.arange(size + _EXTRA_AVERAGES, dtype=np.float32)
    before, after = (
        (floor + base).reshape(-1, 1, size, 1).apply("Equal", averages).cast(np.float32)
        for base in (numbers, numbers + 1)
    )
    return before, after, offset - floor


def _interpolate(before: Value, after: Value, fraction: Value) -> Value:
    return (after - before) * fraction + before


def _to_integer_list(*scalars: Value) -> Value:
    """Join scalars into one list of integers."""
    parts = [scalar.cast(np.int64).reshape(1) for scalar in scalars]
    return parts[0].apply("Concat", *parts[1:], axis=0)


def _to_matrix(column: Value) -> Value:
    """Reshape [N, 1] to [N, 1, 1]."""
    return column.reshape(-1, 1, 1)


def _add_channel_axis(matrix: Value) -> Value:
    """Reshape [N, rows, columns] to [N, 1, rows, columns], to broadcast over colors."""
    return matrix.apply("Unsqueeze", integers([1]))


def _transpose(matrix: Value) -> Value:
    """Transpose the last two axes of [N, 1, rows, columns]."""
    return matrix.apply("Transpose", perm=[0, 1, 3, 2])
