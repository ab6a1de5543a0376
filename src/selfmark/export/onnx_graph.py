"""Build the ONNX graph of a detector's hourglass network, and nodes that read landmarks from heatmaps.

The network runs once on a `Recorder`, whose operations add nodes to the graph instead of computing. The graph
is built by hand rather than traced, because the choice of nodes decides how fast ONNX Runtime is on a CPU:

- GroupNorm becomes `InstanceNormalization` over groups, followed by a 1x1 depthwise convolution with the
  norm's scale and shift. ONNX Runtime runs convolutions in a blocked layout and fuses the ReLU into this
  convolution, so that scale, shift and ReLU take one pass over memory instead of three.
- An image and its mirror image form one batch, and all sizes except the batch size are constants.

`benchmarks/predict_cpu.py` measures the effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from selfmark.config import STRIDE, Softmax
from selfmark.export.onnx_nodes import Graph, Value, floats, integers
from selfmark.model.backend import NetworkOps
from selfmark.model.card import ModelCard, landmarks_without_partner
from selfmark.model.heatmaps import PeakMethod, Refine
from selfmark.model.plain_backend import PLAIN_BACKEND
from selfmark.model.soft_argmax import EmbeddingPsi, SoftArgmaxPsi

if TYPE_CHECKING:
    from selfmark.model.network import Psi, ResidualBlock

_MIN_NORM = 1e-12  # smallest length a vector is divided by, as in torch's `normalize`


@dataclass(frozen=True)
class Maps:
    """A value of the graph: [B, channels, side, side]."""

    name: str
    channels: int
    side: int


class Recorder:
    """Implementation of `NetworkOps` that takes and returns `Maps` and adds nodes to an ONNX graph.

    Weights and activations have type `dtype`. There is no `sample_conv`, because Psi does not use it.
    """

    def __init__(self, graph: Graph, dtype: type[np.floating] = np.float32) -> None:
        """Record into `graph`."""
        self.graph = graph
        self.dtype = dtype

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Maps) -> Maps:
        """Add the first convolution, norm and ReLU; images are float32, 0..255."""
        centered = (Value(self.graph, images.name) - 127.5) / 255.0
        first = self.conv(conv, Maps(centered.cast(self.dtype).name, images.channels, images.side))
        return self._activate(norm, self._normalize(norm, first))

    def residual_block(self, block: ResidualBlock, x: Maps) -> Maps:
        """Add the nodes of a residual block."""
        normalized = self._normalize(block.norm1, x)
        first = self.conv(block.conv1, self._activate(block.norm1, normalized))
        second = self.conv(block.conv2, self._norm_relu(block.norm2, first))
        third = self.conv(block.conv3, self._norm_relu(block.norm3, second))
        joined = self.graph.add("Concat", first.name, second.name, third.name, axis=1)
        skip = x
        if isinstance(block.skip, nn.Sequential):
            # This norm normalizes the same groups as norm1, so both norms use `normalized`.
            norm, conv = unpack_skip(block.skip)
            skip = self.conv(conv, self._activate(norm, normalized))
        return Maps(self.graph.add("Add", joined, skip.name), skip.channels, x.side)

    def pooled_block(self, block: ResidualBlock, x: Maps) -> Maps:
        """Add the nodes of `residual_block` and 2x2 average pooling."""
        return self.identity_and_pool(self.residual_block(block, x))[1]

    def identity_and_pool(self, x: Maps) -> tuple[Maps, Maps]:
        """Add 2x2 average pooling and return x and the pooled maps."""
        half = self.graph.add("AveragePool", x.name, kernel_shape=[2, 2], strides=[2, 2])
        return x, Maps(half, x.channels, x.side // 2)

    def upsample_add(self, fine: Maps, coarse: Maps) -> Maps:
        """Add nearest-neighbor upsampling of `coarse` and the sum with `fine`."""
        upsampled = self.graph.add(
            "Resize",
            coarse.name,
            "",
            floats([1, 1, 2, 2]),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return Maps(self.graph.add("Add", fine.name, upsampled), fine.channels, fine.side)

    def conv_norm_relu(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Maps) -> Maps:
        """Add a convolution, a norm and a ReLU."""
        return self._norm_relu(norm, self.conv(conv, x))

    def output_conv(self, conv: nn.Conv2d, x: Maps) -> Maps:
        """Add the convolution that ends a head."""
        return self.conv(conv, x)

    def conv(self, conv: nn.Conv2d, x: Maps) -> Maps:
        """Add a convolution."""
        parameters = [self.to_dtype(tensor) for tensor in (conv.weight, conv.bias) if tensor is not None]
        result = self.graph.add("Conv", x.name, *parameters, **get_conv_attributes(conv))
        return Maps(result, conv.out_channels, x.side // conv.stride[0])

    def _norm_relu(self, norm: nn.GroupNorm, x: Maps) -> Maps:
        return self._activate(norm, self._normalize(norm, x))

    def _normalize(self, norm: nn.GroupNorm, x: Maps) -> Maps:
        """Add nodes that normalize each group of channels to mean 0 and variance 1."""
        groups = norm.num_groups
        grouped = self.graph.add(
            "Reshape", x.name, integers([0, groups, x.channels // groups * x.side * x.side])
        )
        scale, shift = np.ones(groups, self.dtype), np.zeros(groups, self.dtype)
        normalized = self.graph.add("InstanceNormalization", grouped, scale, shift, epsilon=norm.eps)
        ungrouped = self.graph.add("Reshape", normalized, integers([0, x.channels, x.side, x.side]))
        return Maps(ungrouped, x.channels, x.side)

    def _activate(self, norm: nn.GroupNorm, x: Maps) -> Maps:
        """Add relu(scale * x + shift) with the norm's parameters; after `fold_scales` the scale may be 1."""
        scale, shift = self.to_dtype(norm.weight), self.to_dtype(norm.bias)
        if (scale == 1).all():
            scaled = self.graph.add("Add", x.name, shift.reshape(-1, 1, 1))
        else:
            scaled = self.graph.add(
                "Conv", x.name, scale.reshape(-1, 1, 1, 1), shift, group=x.channels, kernel_shape=[1, 1]
            )
        return Maps(self.graph.add("Relu", scaled), x.channels, x.side)

    def to_dtype(self, parameter: Tensor) -> npt.NDArray[np.floating]:
        """Return a parameter as an array of the recorder's type."""
        return to_array(parameter).astype(self.dtype)


def add_maps(recorder: Recorder, psi: Psi, images: Value, size: int) -> Maps:
    """Add the network and return its K heatmaps for images [B, 3, size, size], floats 0..255."""
    # `NetworkOps` is declared for tensors, but the recorder takes and returns Maps.
    backend = replace(PLAIN_BACKEND, layers=cast(NetworkOps, recorder))
    border = psi.border if isinstance(psi, SoftArgmaxPsi) else 0
    network_input = Maps(images.name, 3, size)
    if border:
        pads = integers([0, 0, border, border, 0, 0, border, border])
        network_input = Maps(images.apply("Pad", pads, mode="edge").name, 3, size + 2 * border)
    maps: Maps = psi.head(psi.backbone(network_input, backend), backend)
    if border:
        maps = _crop(recorder.graph, maps, border // STRIDE)
    scores = Maps(Value(recorder.graph, maps.name).cast(np.float32).name, maps.channels, maps.side)
    if isinstance(psi, EmbeddingPsi):
        unit = add_unit_vectors(Value(recorder.graph, scores.name))
        references = to_array(psi.references)[:, :, None, None]
        scores = Maps(unit.apply("Conv", references, kernel_shape=[1, 1]).name, len(references), scores.side)
    if isinstance(psi, SoftArgmaxPsi):
        return _add_distributions(recorder.graph, scores, psi.softmax)
    return scores


def _crop(graph: Graph, maps: Maps, cells: int) -> Maps:
    """Remove `cells` rows or columns at each of the four borders of maps."""
    starts, ends = integers([cells, cells]), integers([maps.side - cells, maps.side - cells])
    inner = graph.add("Slice", maps.name, starts, ends, integers([2, 3]))
    return Maps(inner, maps.channels, maps.side - 2 * cells)


def add_unit_vectors(vectors: Value) -> Value:
    """Add nodes that divide vectors [B, C, H, W] by their lengths along C."""
    return vectors / vectors.apply("ReduceL2", axes=[1], keepdims=1).apply("Max", _MIN_NORM)


def _add_distributions(graph: Graph, scores: Maps, softmax: Softmax) -> Maps:
    """Add the square roots of the distributions that `soft_argmax.to_distributions` returns."""
    side, channels, name = scores.side, scores.channels, scores.name
    if softmax == "axes":
        rows, columns = (
            graph.add("Softmax", graph.add("ReduceMean", name, axes=[mean_axis], keepdims=1), axis=axis)
            for mean_axis, axis in ((3, 2), (2, 3))
        )
        return Maps(graph.add("Sqrt", graph.add("Mul", rows, columns)), channels, side)
    if softmax == "channels":
        channels -= 1  # The last channel is the background.
        log_probabilities = graph.add("LogSoftmax", name, axis=1)
        name = graph.add("Slice", log_probabilities, integers([0]), integers([channels]), integers([1]))
    flat = graph.add("Softmax", graph.add("Reshape", name, integers([0, channels, side * side])), axis=2)
    maps = graph.add("Reshape", flat, integers([0, channels, side, side]))
    return Maps(graph.add("Sqrt", maps), channels, side)


def add_mirrored_maps(
    graph: Graph, add_network: Callable[[Value], Maps], images: Value, card: ModelCard
) -> Maps:
    """Average the heatmaps of the images with the heatmaps of the mirror images.

    The heatmaps of the mirror images are mirrored back, and mirror partners are exchanged. Landmarks without
    a partner keep the heatmaps of the images.

    Args:
        graph: Graph to add to.
        add_network: Adds the network for images [B, 3, S, S] and returns its heatmaps.
        images: Network images [B, 3, S, S].
        card: Model card with the mirror partners of the landmarks.
    """
    mirrored = Value(graph, _mirror(graph, images.name))
    maps = add_network(images.apply("Concat", mirrored, axis=0))
    original, flipped = graph.add_multi_output("Split", 2, maps.name, axis=0)
    restored = graph.add("Gather", _mirror(graph, flipped), integers(card.mirror), axis=1)
    total = graph.add("Add", original, restored)
    mean = graph.add("Mul", total, floats(0.5))
    if unpaired := landmarks_without_partner(card):
        is_paired = np.ones((1, maps.channels, 1, 1), bool)
        is_paired[:, unpaired] = False
        mean = graph.add("Where", is_paired, mean, original)
    return Maps(mean, maps.channels, maps.side)


def _mirror(graph: Graph, value: str) -> str:
    """Add a node that reverses the columns of maps [B, C, H, W]."""
    before_first = np.iinfo(np.int64).min  # with this end, a backward slice includes the first column
    return graph.add("Slice", value, integers([-1]), integers([before_first]), integers([3]), integers([-1]))


def add_positions(graph: Graph, maps: Maps, method: PeakMethod) -> tuple[str, str]:
    """Add nodes that read landmarks from heatmaps, in the same way as `heatmaps.read_heatmaps`.

    Returns:
        Names of xy [B, K, 2] in network pixels and of score [B, K].
    """
    cells = _add_centroids(graph, maps) if method == "centroid" else _add_peaks(graph, maps, method)
    # The pixel of a cell is (cell + 0.5) * STRIDE - 0.5, see heatmaps.to_pixels.
    xy = graph.add("Add", graph.add("Mul", cells, floats(STRIDE)), floats(0.5 * STRIDE - 0.5))
    score = graph.add("ReduceMax", maps.name, axes=[2, 3], keepdims=0)
    return xy, graph.add("Clip", score, floats(0), floats(1))


def _add_centroids(graph: Graph, maps: Maps) -> str:
    """Add the mean cell [B, K, 2] of each map, weighted by the squared heat."""
    heat = graph.add("Max", maps.name, floats(0))
    weight = graph.add("Add", graph.add("Mul", heat, heat), floats(1e-12))
    total = graph.add("ReduceSum", weight, integers([2, 3]), keepdims=0)
    columns = np.arange(maps.side, dtype=np.float32)

    def add_weighted_mean(position: npt.NDArray[np.float32]) -> str:
        moment = graph.add("ReduceSum", graph.add("Mul", weight, position), integers([2, 3]), keepdims=0)
        return graph.add("Unsqueeze", graph.add("Div", moment, total), integers([2]))

    rows = columns[:, None]
    return graph.add("Concat", add_weighted_mean(columns), add_weighted_mean(rows), axis=2)


def _add_peaks(graph: Graph, maps: Maps, refine: Refine) -> str:
    """Add the highest cell [B, K, 2] of each map, refined with its neighbors."""
    side = maps.side
    flat = graph.add("Reshape", maps.name, integers([0, maps.channels, side * side]))
    index = graph.add("ArgMax", flat, axis=2, keepdims=1)
    column, row = graph.add("Mod", index, integers(side)), graph.add("Div", index, integers(side))
    xy = Value(graph, graph.add("Concat", column, row, axis=2)).cast(np.float32)
    if refine == "cell":
        return xy.name

    def add_steps(position: str, steps: list[int]) -> str:
        """Move columns or rows by steps; stay at the border instead of leaving the map."""
        moved = graph.add("Add", position, integers(steps))
        return graph.add("Clip", moved, integers(0), integers(side - 1))

    # Five cells: the peak, its left and upper neighbors, its right and lower neighbors.
    columns, rows = add_steps(column, [0, -1, 0, 1, 0]), add_steps(row, [0, 0, -1, 0, 1])
    cells = graph.add("Add", graph.add("Mul", rows, integers(side)), columns)
    peak, before, after = graph.add_multi_output(
        "Split", 3, graph.add("GatherElements", flat, cells, axis=2), integers([1, 2, 2]), axis=2
    )
    if refine == "quarter":
        offset = _add_quarter_offset(graph, before, after)
    else:
        offset = _add_parabola_offset(graph, peak, before, after)
    return graph.add("Clip", graph.add("Add", xy.name, offset), floats(0), floats(side - 1))


def _add_quarter_offset(graph: Graph, before: str, after: str) -> str:
    """Add an offset of a quarter of a cell toward the higher neighbor."""
    return graph.add("Mul", graph.add("Sign", graph.add("Sub", after, before)), floats(0.25))


def _add_parabola_offset(graph: Graph, peak: str, before: str, after: str) -> str:
    """Add the vertex of the parabola through the logarithms of three neighboring values."""
    left, mid, right = (
        graph.add("Log", graph.add("Max", value, floats(1e-4))) for value in (before, peak, after)
    )
    sides = graph.add("Add", left, right)
    curvature = graph.add("Sub", graph.add("Mul", mid, floats(2)), sides)
    slope = graph.add("Mul", graph.add("Sub", right, left), floats(0.5))
    vertex = graph.add("Div", slope, graph.add("Max", curvature, floats(1e-6)))
    return graph.add("Clip", vertex, floats(-0.5), floats(0.5))


def unpack_skip(skip: nn.Sequential) -> tuple[nn.GroupNorm, nn.Conv2d]:
    """Return the norm and the convolution of a skip connection, which is a norm, a ReLU and a convolution."""
    norm, _, conv = skip
    if not isinstance(norm, nn.GroupNorm) or not isinstance(conv, nn.Conv2d):
        raise ValueError(f"a skip connection must be a norm, a ReLU and a convolution, not {skip}")
    return norm, conv


def get_conv_attributes(conv: nn.Conv2d) -> dict[str, list[int]]:
    """Return kernel, strides and padding as attributes of the operator `Conv`."""
    rows, columns = (int(value) for value in conv.padding)
    return {
        "kernel_shape": list(conv.kernel_size),
        "strides": list(conv.stride),
        "pads": [rows, columns, rows, columns],
    }


def to_array(parameter: Tensor) -> npt.NDArray[np.float32]:
    """Return a parameter as a float32 array."""
    return np.asarray(parameter.detach().cpu().float().contiguous().numpy())
