"""The detector as an ONNX graph: the network says what follows what, every operation writes its nodes down.

The graph is written by hand rather than traced, because its form decides how fast ONNX Runtime is on a CPU:

- GroupNorm is `InstanceNormalization` over groups, then a 1x1 depthwise convolution with the norm's own scale
  and shift. Convolutions run in a blocked layout there, and this one takes the ReLU along, so that scale,
  shift and ReLU cost one pass over the memory instead of three.
- Image and mirror image go through as one batch, all sizes but the batch are constants, and the brightness
  scale is folded into the first convolution.

`benchmarks/predict_cpu.py` measures what that brings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from selfmark.config import STRIDE
from selfmark.model.heatmaps import Reading, Refine

if TYPE_CHECKING:
    import onnx

    from selfmark.model.network import Block, Psi

A = TypeVar("A")
B = TypeVar("B")

OPSET = 18


class Graph:
    """Nodes and constants so far. Values are known by their names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str | npt.NDArray[Any], **attributes: Any) -> str:
        """Append a node with one output and return the output's name; arrays become constants."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(
        self, operator: str, outputs: int, *inputs: str | npt.NDArray[Any], **attributes: Any
    ) -> list[str]:
        from onnx import helper

        name = f"{operator}_{len(self.nodes)}"
        results = [f"{name}_{index}" for index in range(outputs)]
        sources = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        self.nodes.append(helper.make_node(operator, sources, results, name, **attributes))
        return results

    def _constant(self, value: npt.NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name


@dataclass(frozen=True)
class Maps:
    """A value of the graph: [B, channels, side, side]."""

    name: str
    channels: int
    side: int


class Recorder:
    """`model.operations.Operations` for `Maps`: nothing is computed, every step is added to the graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Maps) -> Maps:
        """Images are floats 0..255."""
        centred = self.graph.add("Sub", images.name, _floats(127.5))
        first = self.conv(conv, Maps(centred, images.channels, images.side), scale=1 / 255)
        return self._activate(norm, self._normalise(norm, first))

    def block(self, block: Block, x: Maps) -> Maps:
        normal = self._normalise(block.norm1, x)
        first = self.conv(block.conv1, self._activate(block.norm1, normal))
        second = self.conv(block.conv2, self._norm_relu(block.norm2, first))
        third = self.conv(block.conv3, self._norm_relu(block.norm3, second))
        joined = self.graph.add("Concat", first.name, second.name, third.name, axis=1)
        skip = x
        if isinstance(block.skip, nn.Sequential):
            # Another scale and shift, but the same groups of the same values.
            norm, conv = norm_and_conv(block.skip)
            skip = self.conv(conv, self._activate(norm, normal))
        return Maps(self.graph.add("Add", joined, skip.name), skip.channels, x.side)

    def halved_block(self, block: Block, x: Maps) -> Maps:
        return self.with_half(self.block(block, x))[1]

    def with_half(self, x: Maps) -> tuple[Maps, Maps]:
        half = self.graph.add("AveragePool", x.name, kernel_shape=[2, 2], strides=[2, 2])
        return x, Maps(half, x.channels, x.side // 2)

    def add_doubled(self, here: Maps, below: Maps) -> Maps:
        doubled = self.graph.add(
            "Resize",
            below.name,
            "",
            _floats([1, 1, 2, 2]),
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return Maps(self.graph.add("Add", here.name, doubled), here.channels, here.side)

    def mix(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Maps) -> Maps:
        return self._norm_relu(norm, self.conv(conv, x))

    def last(self, conv: nn.Conv2d, x: Maps) -> Maps:
        return self.conv(conv, x)

    def both(self, aside: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        return aside(), main()

    # --- what they are made of ------------------------------------------------------------------------

    def conv(self, conv: nn.Conv2d, x: Maps, scale: float = 1.0) -> Maps:
        """The convolution of `scale` times x."""
        parameters = [scale * array(conv.weight)]
        if conv.bias is not None:
            parameters.append(array(conv.bias))
        result = self.graph.add("Conv", x.name, *parameters, **conv_attributes(conv))
        return Maps(result, conv.out_channels, x.side // conv.stride[0])

    def _norm_relu(self, norm: nn.GroupNorm, x: Maps) -> Maps:
        return self._activate(norm, self._normalise(norm, x))

    def _normalise(self, norm: nn.GroupNorm, x: Maps) -> Maps:
        """Each group of channels with mean 0 and variance 1."""
        groups = norm.num_groups
        grouped = self.graph.add(
            "Reshape", x.name, _integers([0, groups, x.channels // groups * x.side * x.side])
        )
        one, none = np.ones(groups, np.float32), np.zeros(groups, np.float32)
        normal = self.graph.add("InstanceNormalization", grouped, one, none, epsilon=norm.eps)
        apart = self.graph.add("Reshape", normal, _integers([0, x.channels, x.side, x.side]))
        return Maps(apart, x.channels, x.side)

    def _activate(self, norm: nn.GroupNorm, x: Maps) -> Maps:
        """relu(scale x + shift) with the scale and shift of the norm; `fold_scales` may have made scale 1."""
        scale, shift = array(norm.weight), array(norm.bias)
        if (scale == 1).all():
            moved = self.graph.add("Add", x.name, shift.reshape(-1, 1, 1))
        else:
            moved = self.graph.add(
                "Conv", x.name, scale.reshape(-1, 1, 1, 1), shift, group=x.channels, kernel_shape=[1, 1]
            )
        return Maps(self.graph.add("Relu", moved), x.channels, x.side)


def add_maps(recorder: Recorder, psi: Psi, images: str, size: int) -> Maps:
    """Psi's K heatmaps of images [B, 3, size, size] uint8."""
    floats = Maps(recorder.graph.add("Cast", images, to=_float_type()), 3, size)
    maps: Maps = psi.head(psi.backbone(floats, recorder), recorder)
    return maps


def add_mirrored_maps(recorder: Recorder, psi: Psi, images: str, size: int, mirror: tuple[int, ...]) -> Maps:
    """The mean of the images' heatmaps and their mirror images', mirrored back, partners exchanged."""
    graph = recorder.graph
    maps = add_maps(recorder, psi, graph.add("Concat", images, _mirrored(graph, images), axis=0), size)
    here, there = graph.add_several("Split", 2, maps.name, axis=0, num_outputs=2)
    back = graph.add("Gather", _mirrored(graph, there), _integers(mirror), axis=1)
    total = graph.add("Add", here, back)
    return Maps(graph.add("Mul", total, _floats(0.5)), maps.channels, maps.side)


def _mirrored(graph: Graph, value: str) -> str:
    """[B, C, H, W] with the columns reversed."""
    beyond = np.iinfo(np.int64).min
    return graph.add("Slice", value, _integers([-1]), _integers([beyond]), _integers([3]), _integers([-1]))


def add_places(graph: Graph, maps: Maps, reading: Reading) -> tuple[str, str]:
    """One place for each map as `heatmaps.read` finds it: xy [B, K, 2] in pixels, score [B, K]."""
    cells = _centroids(graph, maps) if reading == "centroid" else _peaks(graph, maps, reading)
    # (cells + 0.5) * STRIDE - 0.5, see heatmaps.to_pixels
    xy = graph.add("Add", graph.add("Mul", cells, _floats(STRIDE)), _floats(0.5 * STRIDE - 0.5))
    score = graph.add("ReduceMax", maps.name, _integers([2, 3]), keepdims=0)
    return xy, graph.add("Clip", score, _floats(0), _floats(1))


def _centroids(graph: Graph, maps: Maps) -> str:
    """The mean cell, weighted by the squared heat: [B, K, 2]."""
    heat = graph.add("Max", maps.name, _floats(0))
    weight = graph.add("Add", graph.add("Mul", heat, heat), _floats(1e-12))
    total = graph.add("ReduceSum", weight, _integers([2, 3]), keepdims=0)
    numbers = np.arange(maps.side, dtype=np.float32)

    def mean(position: npt.NDArray[np.float32]) -> str:
        moment = graph.add("ReduceSum", graph.add("Mul", weight, position), _integers([2, 3]), keepdims=0)
        return graph.add("Unsqueeze", graph.add("Div", moment, total), _integers([2]))

    return graph.add("Concat", mean(numbers), mean(numbers[:, None]), axis=2)


def _peaks(graph: Graph, maps: Maps, refine: Refine) -> str:
    """The highest cell and the step to its neighbours' peak: [B, K, 2]."""
    side = maps.side
    flat = graph.add("Reshape", maps.name, _integers([0, maps.channels, side * side]))
    index = graph.add("ArgMax", flat, axis=2, keepdims=1)
    column, row = graph.add("Mod", index, _integers(side)), graph.add("Div", index, _integers(side))

    def moved(along: str, steps: list[int]) -> str:
        """Steps along columns or rows that end at the border, where the outermost value goes on."""
        return graph.add("Clip", graph.add("Add", along, _integers(steps)), _integers(0), _integers(side - 1))

    # Here, left and above, right and below.
    columns, rows = moved(column, [0, -1, 0, 1, 0]), moved(row, [0, 0, -1, 0, 1])
    places = graph.add("Add", graph.add("Mul", rows, _integers(side)), columns)
    here, before, after = graph.add_several(
        "Split", 3, graph.add("GatherElements", flat, places, axis=2), _integers([1, 2, 2]), axis=2
    )
    offset = (_quarter if refine == "quarter" else _parabola)(graph, here, before, after)
    cells = graph.add("Cast", graph.add("Concat", column, row, axis=2), to=_float_type())
    return graph.add("Clip", graph.add("Add", cells, offset), _floats(0), _floats(side - 1))


def _quarter(graph: Graph, here: str, before: str, after: str) -> str:
    """A quarter of a cell towards the higher neighbour."""
    return graph.add("Mul", graph.add("Sign", graph.add("Sub", after, before)), _floats(0.25))


def _parabola(graph: Graph, here: str, before: str, after: str) -> str:
    """The vertex of the parabola through three logarithms."""
    left, mid, right = (
        graph.add("Log", graph.add("Max", value, _floats(1e-4))) for value in (before, here, after)
    )
    sides = graph.add("Add", left, right)
    bend = graph.add("Sub", graph.add("Mul", mid, _floats(2)), sides)
    slope = graph.add("Mul", graph.add("Sub", right, left), _floats(0.5))
    vertex = graph.add("Div", slope, graph.add("Max", bend, _floats(1e-6)))
    return graph.add("Clip", vertex, _floats(-0.5), _floats(0.5))


def norm_and_conv(skip: nn.Sequential) -> tuple[nn.GroupNorm, nn.Conv2d]:
    """What a block's skip connection consists of, its ReLU apart."""
    norm, _, conv = skip
    if not isinstance(norm, nn.GroupNorm) or not isinstance(conv, nn.Conv2d):
        raise ValueError(f"a skip connection is a norm, a ReLU and a convolution, not {skip}")
    return norm, conv


def conv_attributes(conv: nn.Conv2d) -> dict[str, list[int]]:
    """Kernel, strides and padding as the operator `Conv` wants them."""
    rows, columns = (int(value) for value in conv.padding)
    return {
        "kernel_shape": list(conv.kernel_size),
        "strides": list(conv.stride),
        "pads": [rows, columns, rows, columns],
    }


def array(parameter: Tensor) -> npt.NDArray[np.float32]:
    return np.asarray(parameter.detach().cpu().float().contiguous().numpy())


def _floats(value: float | list[float]) -> npt.NDArray[np.float32]:
    return np.array(value, np.float32)


def _integers(value: int | list[int] | tuple[int, ...]) -> npt.NDArray[np.int64]:
    return np.array(value, np.int64)


def _float_type() -> int:
    from onnx import TensorProto

    return int(TensorProto.FLOAT)
