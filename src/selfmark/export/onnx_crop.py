"""`images.crop` as nodes of an ONNX graph: which square of an image the network sees, and points back.

Averaging and interpolation along one axis are linear, so each is a product with a matrix of weights, which
the graph computes from the size of the images and the boxes. Products broadcast: one box serves many images,
and many boxes of one image give many crops. `Resize`, ONNX's own operator, cannot do this: it gives all
images of a batch the same window, and it does not average over areas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selfmark.config import Images
from selfmark.export.onnx_nodes import Graph, Value, integers
from selfmark.images.crop import SNAP

_SLIVER = 1e-3  # OpenCV leaves out a pixel of which less than this is covered
_TIE = 1e-4  # lifts halves among the averages of 2 x 2 pixels, which are multiples of 1/4, and nothing else
_SPARE = 4  # pixels beside the region that may be needed, at most


@dataclass(frozen=True)
class Regions:
    """Squares of the originals: `x`, `y` of the corner and `side`, each [N, 1]."""

    x: Value
    y: Value
    side: Value


@dataclass(frozen=True)
class _Axis:
    """How one axis of the regions is sampled, as `crop._axis` says it; each [N, 1].

    first, last: the pixels that are needed, the last one excluded
    count:       to how many they are averaged
    start:       where the region begins
    """

    first: Value
    last: Value
    count: Value
    start: Value


@dataclass(frozen=True)
class _Window:
    """The pixels of one axis that any of the regions needs: numbers without a dimension."""

    begin: Value
    end: Value


def add_crops(graph: Graph, images: str, boxes: str, settings: Images) -> tuple[Value, Regions]:
    """Network images [B, 3, S, S], floats that are whole numbers 0..255, and where they come from.

    Args:
        images: name of a value [N, H, W, 3] uint8.
        boxes: name of a value [N, 4] float32, x, y, w, h; without width or height it is the whole image.
    """
    size = settings.size
    pixels = Value(graph, images)
    shape = pixels.then("Shape")
    height, width = (shape.then("Gather", integers([axis])).as_type(np.float32) for axis in (1, 2))
    regions = _regions(Value(graph, boxes), width, height, settings)
    down, across = _axis(regions.y, regions.side, height, size), _axis(regions.x, regions.side, width, size)
    rows, columns = _window(down), _window(across)
    begin, end = _joined(rows.begin, columns.begin), _joined(rows.end, columns.end)
    window = pixels.then("Slice", begin, end, integers([1, 2])).as_type(np.float32)
    # Averaged along y while the colors still lie side by side, so that no large image is transposed.
    rounding = _rounding(down, across)
    lines = _weights(down, rows, rounding, size) @ window.shaped(0, 0, -1)
    planes = lines.shaped(0, 0, -1, 3).then("Transpose", perm=[0, 3, 1, 2])
    averages = planes @ _turned(_for_colors(_weights(across, columns, rounding, size)))
    whole = (averages * rounding.factor + rounding.tie).then("Round")
    below, above, share = _places(down, regions.side, size)
    sampled = _between(below @ whole, above @ whole, share.shaped(-1, 1, size, 1))
    left, right, share = _places(across, regions.side, size)
    sampled = _between(sampled @ _turned(left), sampled @ _turned(right), share.shaped(-1, 1, 1, size))
    # The last shape says nothing new, but by constants, which runtimes need to plan with.
    return (sampled + 0.5).then("Floor").shaped(-1, 3, size, size), regions


def add_to_original(xy: Value, regions: Regions, size: int) -> Value:
    """Network pixels [B, K, 2] as points of the originals, as `crop.to_original` does it."""
    corner = regions.x.then("Concat", regions.y, axis=1).shaped(0, 1, 2)
    return (xy + 0.5) * (regions.side / size).shaped(0, 1, 1) + corner - 0.5


def _regions(boxes: Value, width: Value, height: Value, settings: Images) -> Regions:
    """As `crop.crop_regions` does it."""
    x, y, w, h = (boxes.then("Gather", integers([axis]), axis=1) for axis in range(4))
    given = w.then("Greater", 0.0).then("And", h.then("Greater", 0.0))  # NaN is not greater
    if settings.box_rule == "body":
        around = h * settings.body_scale
    else:
        around = w.then("Max", h) * (1 + 2 * settings.margin)
    side = around.where(given, width.then("Max", height))
    middle_x = (x + w / 2).where(given, width / 2)
    middle_y = (y + h / 2).where(given, height / 2)
    return Regions(middle_x - side / 2, middle_y - side / 2, side)


def _axis(start: Value, side: Value, limit: Value, size: int) -> _Axis:
    shrink = side / size
    margin = shrink.then("Less", 1.0).as_type(np.float32)
    first = ((start + SNAP).then("Floor") - margin).within(0.0, limit - 1)
    last = ((start + side - SNAP).then("Ceil") + margin).within(first + 1, limit)
    count = ((last - first) / shrink.then("Max", 1.0)).then("Round").then("Max", 1.0)
    return _Axis(first, last, count, start)


def _window(axis: _Axis) -> _Window:
    return _Window(axis.first.then("ReduceMin", keepdims=0), axis.last.then("ReduceMax", keepdims=0))


@dataclass(frozen=True)
class _Rounding:
    """How OpenCV averages, in which order, so that halves are met, and rounded, as it does.

    Averages of whole pixels are summed and then divided; others are sums of weights that were divided before.
    Halves go to even numbers, but upwards where 2 x 2 pixels are averaged.

    sums:   [N, 1] whether whole pixels are averaged
    factor: [N, 1, 1, 1] what sums are multiplied with
    tie:    [N, 1, 1, 1] what is added before rounding
    """

    sums: Value
    factor: Value
    tie: Value


def _rounding(down: _Axis, across: _Axis) -> _Rounding:
    height, width = ((axis.last - axis.first) / axis.count for axis in (down, across))
    sums = height.then("Floor").then("Equal", height).then("And", width.then("Floor").then("Equal", width))
    area = (height * width).where(sums, 1.0)
    halved = height.then("Equal", 2.0).then("And", width.then("Equal", 2.0)).as_type(np.float32)
    one = np.ones((1, 1), np.float32)
    factor = Value(area.graph, area.graph.add("Div", one, area.name))
    return _Rounding(sums, factor.shaped(-1, 1, 1, 1), (halved * _TIE).shaped(-1, 1, 1, 1))


def _weights(axis: _Axis, window: _Window, rounding: _Rounding, size: int) -> Value:
    """How much each pixel of the window counts in each average: [N, S + _SPARE, pixels].

    An average covers length / count pixels. Times `count`, all its limits are whole numbers, so that weights
    are exact to the last bit. Rows beyond an axis's own count mean nothing, and `_places` ignores them.
    """
    numbers = np.arange(size + _SPARE, dtype=np.float32)[:, None]
    count, length = _for_matrix(axis.count), _for_matrix(axis.last - axis.first)
    pixels = window.begin.then("Range", window.end, 1.0) - _for_matrix(axis.first)
    left, right = (pixels * count).then("Max", length * numbers), ((pixels + 1) * count)
    covered = right.then("Min", length * (numbers + 1)) - left
    kept = covered.where(covered.then("Greater", count * _SLIVER), 0.0)
    return kept / count.where(_for_matrix(rounding.sums), length)


def _places(axis: _Axis, side: Value, size: int) -> tuple[Value, Value, Value]:
    """Between which averages each pixel of the crop lies, and where between them.

    Pixel s of the crop lies at s + offset among the averages. Offsets are small, and small floats are fine.

    Returns:
        Matrices [N, 1, S, S + _SPARE] that pick the average before and the one after it, and how far it is
        on the way from one to the other, [N, S].
    """
    length, numbers = axis.last - axis.first, np.arange(size, dtype=np.float32)
    drift = (side * axis.count - length * size) / (length * size)
    shift = (axis.start - axis.first) * axis.count / length
    offset = (drift * (numbers + 0.5) + shift).within(-numbers, axis.count - 1 - numbers)
    whole = offset.then("Floor")
    averages = np.arange(size + _SPARE, dtype=np.float32)
    before, after = (
        (whole + reached).shaped(-1, 1, size, 1).then("Equal", averages).as_type(np.float32)
        for reached in (numbers, numbers + 1)
    )
    return before, after, offset - whole


def _between(before: Value, after: Value, share: Value) -> Value:
    return (after - before) * share + before


def _joined(*numbers: Value) -> Value:
    """Numbers without a dimension as one list of whole ones."""
    parts = [number.as_type(np.int64).shaped(1) for number in numbers]
    return parts[0].then("Concat", *parts[1:], axis=0)


def _for_matrix(column: Value) -> Value:
    return column.shaped(-1, 1, 1)


def _for_colors(matrix: Value) -> Value:
    """[N, rows, columns] once for all colors."""
    return matrix.then("Unsqueeze", integers([1]))


def _turned(matrix: Value) -> Value:
    """[N, 1, rows, columns] transposed."""
    return matrix.then("Transpose", perm=[0, 1, 3, 2])
