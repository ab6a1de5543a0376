"""Build an ONNX graph of the network with 8-bit convolutions, for CPUs with VNNI instructions.

The value ranges before and after each convolution are measured on sample images. Weights and outputs are
quantized per channel, inputs per tensor. In an hourglass, the convolutions of the residual blocks are
quantized; norms, additions and the layers before and after the blocks stay in float32. In a network with
an encoder, the 3x3 convolutions of the head are quantized, because they take more than half of the time. The
encoder itself stays in float32, because 8-bit features move the landmarks too far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from selfmark.export.onnx_graph import Maps, Recorder, get_conv_attributes, to_array, unpack_skip
from selfmark.export.onnx_nodes import Graph
from selfmark.model.feature_network import FeaturePsi, ZeroShotPsi
from selfmark.model.network import Psi, ResidualBlock
from selfmark.model.turned_network import TurnedPsi

Floats = npt.NDArray[np.float32]

# A norm is folded only if its smallest scale is above this fraction of its largest scale. Then all scales are
# positive, as `fold_scales` requires.
_MIN_NORM_RATIO = 0.1
_BATCH_SIZE = 8  # images per forward pass while ranges are measured
_MAX_LEVEL = 255  # largest unsigned 8-bit value
_MAX_WEIGHT_LEVEL = 127  # largest signed 8-bit value
_ZERO_POINT = 128  # zero point that all output channels share in ONNX Runtime, see `QuantizedConv`
_MAX_BIAS = 2**30  # keeps the bias and the sums of the convolution within 32 bits
_MIN_SCALE_RATIO = 1e-4  # smallest quantization scale of a channel, relative to the largest of all channels


@dataclass(frozen=True)
class ValueRange:
    """Ranges of the inputs and outputs of a convolution after a ReLU; the inputs are therefore >= 0.

    Attributes:
        max_input: Largest input.
        low: [O] smallest value of each output channel, at most 0.
        high: [O] largest value of each output channel, at least 0.
    """

    max_input: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def measure(cls, inputs: Tensor, outputs: Tensor) -> ValueRange:
        """Return the ranges of one batch of inputs and outputs [B, C, H, W]."""
        low, high = outputs.amin((0, 2, 3)), outputs.amax((0, 2, 3))
        return cls(inputs.amax(), low.clamp_max(0), high.clamp_min(0))

    def union(self, other: ValueRange) -> ValueRange:
        """Return the smallest ranges that contain those of this object and of `other`."""
        return ValueRange(
            torch.maximum(self.max_input, other.max_input),
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
        )


Ranges = dict[nn.Module, ValueRange]


def fold_scales(psi: Psi) -> None:
    """Move the scale of each norm into the convolution after it, without changing the output of psi.

    A norm multiplies a normalized value z by a scale s and adds a bias t. For s > 0,
    relu(s z + t) = s relu(z + t / s). The convolution can multiply by s, so the norm only has to add t / s. A
    norm keeps its scales if the smallest of them is too small or negative, see `_MIN_NORM_RATIO`.
    """
    for norm, conv in [*_norm_conv_pairs(psi), (psi.head.norm, psi.head.last)]:
        _fold(norm, conv)


@torch.no_grad()
def _fold(norm: nn.GroupNorm, conv: nn.Conv2d) -> None:
    scale = norm.weight.clone()
    if scale.min() <= _MIN_NORM_RATIO * scale.max():
        return
    conv.weight.mul_(scale[:, None, None])
    norm.bias.div_(scale)
    norm.weight.fill_(1)


def _norm_conv_pairs(psi: Psi) -> Iterator[tuple[nn.GroupNorm, nn.Conv2d]]:
    """Yield pairs of a norm and the convolution after it, for all convolutions of the residual blocks."""
    for block in psi.modules():
        if isinstance(block, ResidualBlock):
            yield block.norm1, block.conv1
            yield block.norm2, block.conv2
            yield block.norm3, block.conv3
            if isinstance(block.skip, nn.Sequential):
                yield unpack_skip(block.skip)


def find_block_convs(psi: Psi) -> list[nn.Conv2d]:
    """Return the convolutions of the residual blocks."""
    return [conv for _, conv in _norm_conv_pairs(psi)]


def find_head_convs(network: FeaturePsi | ZeroShotPsi | TurnedPsi) -> list[nn.Conv2d]:
    """Return the convolutions of the head except the first and the last; empty if there is no head.

    A ReLU precedes each returned convolution.
    """
    if isinstance(network, TurnedPsi):
        return find_head_convs(network.psi)
    if isinstance(network, ZeroShotPsi):
        return []
    return [layer for layer in network.head if isinstance(layer, nn.Conv2d)][1:-1]


@torch.no_grad()
def observe_ranges(network: nn.Module, convs: list[nn.Conv2d], images: Tensor, mirrored: bool) -> Ranges:
    """Measure the value ranges at the given convolutions.

    Args:
        network: Network to observe.
        convs: Convolutions of the network whose inputs follow a ReLU.
        images: [N, 3, S, S] uint8.
        mirrored: Whether to observe the mirror images, too.
    """
    ranges: Ranges = {}

    def widen(conv: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        measured = ValueRange.measure(inputs[0], outputs)
        ranges[conv] = measured.union(ranges[conv]) if conv in ranges else measured

    with _forward_hooks(convs, widen):
        for start in range(0, len(images), _BATCH_SIZE):
            batch = images[start : start + _BATCH_SIZE].float() / 255
            network(batch)
            if mirrored:
                network(batch.flip(-1))
    return ranges


@contextmanager
def _forward_hooks(modules: list[nn.Conv2d], hook: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Int8Recorder(Recorder):
    """Recorder that adds convolutions in quantize-dequantize form, which ONNX Runtime runs in 8 bits."""

    def __init__(self, graph: Graph, ranges: Ranges) -> None:
        """Record into `graph`; quantize the convolutions in `ranges`."""
        super().__init__(graph)
        self._ranges = ranges

    def conv(self, conv: nn.Conv2d, x: Maps) -> Maps:
        """Add a convolution; it is in 8 bits if its value ranges were measured."""
        if conv not in self._ranges:
            return super().conv(conv, x)
        bias = None if conv.bias is None else to_array(conv.bias)
        quantized = quantize_conv(to_array(conv.weight), self._ranges[conv], bias)
        graph = self.graph
        input_quantization = quantized.input_scale, np.array(0, np.uint8)  # scale and zero point
        input_levels = graph.add("QuantizeLinear", x.name, *input_quantization)
        inputs = graph.add("DequantizeLinear", input_levels, *input_quantization)
        zeros = np.zeros(conv.out_channels, np.int8)
        weight = graph.add("DequantizeLinear", quantized.weight, quantized.weight_scale, zeros, axis=0)
        bias_scale = quantized.input_scale * quantized.weight_scale
        offset = graph.add("DequantizeLinear", quantized.bias, bias_scale, zeros.astype(np.int32), axis=0)
        result = graph.add("Conv", inputs, weight, offset, **get_conv_attributes(conv))
        output_quantization = np.array(1, np.float32), np.array(_ZERO_POINT, np.uint8)  # scale and zero point
        levels = graph.add("QuantizeLinear", result, *output_quantization)
        floats = graph.add(
            "DequantizeLinear", levels, quantized.output_scale, quantized.output_zero_point, axis=1
        )
        return Maps(floats, conv.out_channels, x.side // conv.stride[0])


@dataclass(frozen=True)
class QuantizedConv:
    """A quantized convolution.

    ONNX Runtime supports only one output scale and zero point for all channels. But the GroupNorm of an
    hourglass amplifies channels with small values, so each channel needs its own scale and zero point. The
    output scale of a channel is therefore folded into its weight scale, and its zero point into its bias. For
    ONNX Runtime, all channels then have the output scale 1 and the zero point `_ZERO_POINT`. The last node
    restores the values: in channel o, the level q becomes (q - output_zero_point[o]) * output_scale[o].

    Attributes:
        input_scale: [] scale of the inputs; their zero point is 0.
        weight: [O, I, h, w] int8.
        weight_scale: [O] scale of the weights, divided by output_scale.
        bias: [O] int32, in units of input_scale x weight_scale.
        output_scale: [O] scale of the outputs.
        output_zero_point: [O] uint8 zero point of the outputs.
    """

    input_scale: Floats
    weight: npt.NDArray[np.int8]
    weight_scale: Floats
    bias: npt.NDArray[np.int32]
    output_scale: Floats
    output_zero_point: npt.NDArray[np.uint8]


def quantize_conv(weight: Floats, values: ValueRange, bias: Floats | None = None) -> QuantizedConv:
    """Quantize a convolution with weights [O, I, h, w] and bias [O]; None means no bias."""
    input_scale = np.array(_raise_small_scales(to_array(values.max_input) / _MAX_LEVEL), np.float32)
    output_scale = _raise_small_scales((to_array(values.high) - to_array(values.low)) / _MAX_LEVEL)
    output_zero_point = np.clip(np.round(-to_array(values.low) / output_scale), 0, _MAX_LEVEL)
    weight_scale = _raise_small_scales(np.abs(weight).max(axis=(1, 2, 3)) / _MAX_WEIGHT_LEVEL)
    offset = (output_zero_point - _ZERO_POINT) * output_scale + (0 if bias is None else bias)
    offset = offset / (input_scale * weight_scale)
    return QuantizedConv(
        input_scale=input_scale,
        weight=np.round(weight / weight_scale[:, None, None, None]).astype(np.int8),
        weight_scale=weight_scale / output_scale,
        bias=np.round(np.clip(offset, -_MAX_BIAS, _MAX_BIAS)).astype(np.int32),
        output_scale=output_scale,
        output_zero_point=output_zero_point.astype(np.uint8),
    )


def _raise_small_scales(scales: npt.NDArray[np.floating]) -> Floats:
    """Raise very small scales: even a channel that is always 0 needs a positive scale."""
    smallest = max(_MIN_SCALE_RATIO * float(scales.max()), 1e-12)
    return np.asarray(np.maximum(scales, smallest), np.float32)
