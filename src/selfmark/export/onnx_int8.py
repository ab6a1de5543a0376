"""The network's graph with the convolutions of its blocks in 8 bits, for CPUs that multiply bytes (VNNI).

The range of the values before and after each convolution is measured on sample images. Weights and outputs
have a quantization step for each channel, inputs have one for the whole map. Norms, sums and the layers
before and after the blocks stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from selfmark.export.onnx_graph import Maps, Recorder, conv_attributes, norm_and_conv, to_array
from selfmark.export.onnx_nodes import Graph
from selfmark.model.network import Psi, ResidualBlock

Floats = npt.NDArray[np.float32]

# A norm is not folded if its smallest scale is at most this fraction of the largest, or negative.
_MIN_SCALE = 0.1
_BATCH = 8  # images per pass while ranges are measured
_LEVELS = 255  # steps between the smallest and the largest 8-bit value
_ZERO_LEVEL = 128  # level of 0 in outputs, the same for all channels
_MAX_SHIFT = 2**30  # must fit into 32 bits
_MIN_STEP = 1e-4  # smallest step of a channel, relative to the largest step of all channels


@dataclass(frozen=True)
class ValueRange:
    """Range of the values before and after a convolution. Inputs follow a ReLU, so they are at least 0.

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
        """Return the range in one batch."""
        low, high = outputs.amin((0, 2, 3)), outputs.amax((0, 2, 3))
        return cls(inputs.amax(), low.clamp_max(0), high.clamp_min(0))

    def union(self, other: ValueRange) -> ValueRange:
        """Return the smallest range that contains both."""
        return ValueRange(
            torch.maximum(self.max_input, other.max_input),
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
        )


Ranges = dict[nn.Module, ValueRange]


def fold_scales(psi: Psi) -> None:
    """Move the scale of each norm into the convolution after it; psi computes the same function.

    relu(s z + t) = s relu(z + t / s) for s > 0, so the norm is left with a sum.
    """
    for norm, conv in [*_norm_conv_pairs(psi), (psi.head.norm, psi.head.last)]:
        _fold(norm, conv)


@torch.no_grad()
def _fold(norm: nn.GroupNorm, conv: nn.Conv2d) -> None:
    scale = norm.weight.clone()
    if scale.min() <= _MIN_SCALE * scale.max():
        return
    conv.weight.mul_(scale[:, None, None])
    norm.bias.div_(scale)
    norm.weight.fill_(1)


def _norm_conv_pairs(psi: Psi) -> Iterator[tuple[nn.GroupNorm, nn.Conv2d]]:
    """Yield the convolutions of the blocks, each with the norm before it."""
    for block in psi.modules():
        if isinstance(block, ResidualBlock):
            yield block.norm1, block.conv1
            yield block.norm2, block.conv2
            yield block.norm3, block.conv3
            if isinstance(block.skip, nn.Sequential):
                yield norm_and_conv(block.skip)


@torch.no_grad()
def observe_ranges(psi: Psi, images: Tensor, mirrored: bool) -> Ranges:
    """Measure the range at each convolution of the blocks.

    Args:
        psi: Network to observe.
        images: [N, 3, S, S] uint8.
        mirrored: Also observe the mirror images.
    """
    ranges: Ranges = {}

    def widen(conv: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        measured = ValueRange.measure(inputs[0], outputs)
        ranges[conv] = measured.union(ranges[conv]) if conv in ranges else measured

    with _forward_hooks([conv for _, conv in _norm_conv_pairs(psi)], widen):
        for start in range(0, len(images), _BATCH):
            batch = images[start : start + _BATCH].float() / 255
            psi(batch)
            if mirrored:
                psi(batch.flip(-1))
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
    """A recorder that quantizes convolutions, with the nodes that ONNX Runtime recognizes."""

    def __init__(self, graph: Graph, ranges: Ranges) -> None:
        """Record into `graph`; quantize the convolutions in `ranges`."""
        super().__init__(graph)
        self._ranges = ranges

    def conv(self, conv: nn.Conv2d, x: Maps) -> Maps:
        """Add a convolution, in 8 bits if its range is known."""
        if conv not in self._ranges:
            return super().conv(conv, x)
        quantized = quantize_conv(to_array(conv.weight), self._ranges[conv])
        graph = self.graph
        input_step = quantized.step_in, np.array(0, np.uint8)
        inputs = graph.add("DequantizeLinear", graph.add("QuantizeLinear", x.name, *input_step), *input_step)
        zeros = np.zeros(conv.out_channels, np.int8)
        weight = graph.add("DequantizeLinear", quantized.weight, quantized.step_weight, zeros, axis=0)
        step = quantized.step_in * quantized.step_weight
        shift = graph.add("DequantizeLinear", quantized.shift, step, zeros.astype(np.int32), axis=0)
        result = graph.add("Conv", inputs, weight, shift, **conv_attributes(conv))
        one, zero_level = np.array(1, np.float32), np.array(_ZERO_LEVEL, np.uint8)
        levels = graph.add("QuantizeLinear", result, one, zero_level)
        floats = graph.add("DequantizeLinear", levels, quantized.step_out, quantized.zero_out, axis=1)
        return Maps(floats, conv.out_channels, x.side // conv.stride[0])


@dataclass(frozen=True)
class QuantizedConv:
    """A convolution in integers.

    ONNX Runtime has one output step and one zero for all channels. But the GroupNorm that follows amplifies
    channels with small values, so each channel needs its own. The step of a channel is therefore folded into
    the step of its weights, and its zero into its shift. Only the last node undoes this: level y of channel o
    means (y - zero_out[o]) step_out[o].

    Attributes:
        step_in: [] step of the inputs; their zero is level 0.
        weight: [O, I, h, w] int8.
        step_weight: [O] step of the weights, chosen so that the output step is 1.
        shift: [O] int32, in steps of step_in x step_weight.
        step_out: [O] step of the outputs.
        zero_out: [O] uint8 level of 0 in the outputs.
    """

    step_in: Floats
    weight: npt.NDArray[np.int8]
    step_weight: Floats
    shift: npt.NDArray[np.int32]
    step_out: Floats
    zero_out: npt.NDArray[np.uint8]


def quantize_conv(weight: Floats, values: ValueRange) -> QuantizedConv:
    """Quantize a convolution with weights [O, I, h, w]."""
    step_in = np.array(_limit_steps(to_array(values.max_input) / _LEVELS), np.float32)
    step_out = _limit_steps((to_array(values.high) - to_array(values.low)) / _LEVELS)
    zero_out = np.clip(np.round(-to_array(values.low) / step_out), 0, _LEVELS)
    weight_step = _limit_steps(np.abs(weight).max(axis=(1, 2, 3)) / 127)
    shift = (zero_out - _ZERO_LEVEL) * step_out / (step_in * weight_step)
    return QuantizedConv(
        step_in=step_in,
        weight=np.round(weight / weight_step[:, None, None, None]).astype(np.int8),
        step_weight=weight_step / step_out,
        shift=np.round(np.clip(shift, -_MAX_SHIFT, _MAX_SHIFT)).astype(np.int32),
        step_out=step_out,
        zero_out=zero_out.astype(np.uint8),
    )


def _limit_steps(steps: npt.NDArray[np.floating]) -> Floats:
    """Raise very small steps: a channel whose values never change needs a positive step too."""
    smallest = max(_MIN_STEP * float(steps.max()), 1e-12)
    return np.asarray(np.maximum(steps, smallest), np.float32)
