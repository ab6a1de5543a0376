"""The detector's graph with the blocks' convolutions in 8 bits: faster where the CPU multiplies bytes (VNNI).

How far values reach before and after each convolution is observed on sample images. Weights and what comes
out have a step of their own for every channel, what goes in has one for the whole map. Norms, sums and the
layers before and after the blocks stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from selfmark.export.onnx_graph import Maps, Recorder, array, conv_attributes, norm_and_conv
from selfmark.export.onnx_nodes import Graph
from selfmark.model.network import Psi, ResidualBlock

Floats = npt.NDArray[np.float32]

_LEAST_SCALE = 0.1  # norms whose scales change sign or differ more than tenfold keep them
_BATCH = 8  # images per pass while reaches are observed
_LEVELS = 255  # steps between the least and the greatest value of 8 bits
_MIDDLE = 128  # the level that is 0 where all channels have the same
_FARTHEST = 2**30  # most a shift may be, whole numbers having 32 bits
_FINEST = 1e-4  # no channel's step is finer than this share of the coarsest one's


@dataclass(frozen=True)
class Reach:
    """How far the values before and after a convolution go; before it they are at least 0, after a ReLU.

    before:    greatest value
    low, high: [O] least and greatest value of each output channel, 0 among them
    """

    before: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, inputs: Tensor, outputs: Tensor) -> Reach:
        low, high = outputs.amin((0, 2, 3)), outputs.amax((0, 2, 3))
        return cls(inputs.amax(), low.clamp_max(0), high.clamp_min(0))

    def joined(self, other: Reach) -> Reach:
        return Reach(
            torch.maximum(self.before, other.before),
            torch.minimum(self.low, other.low),
            torch.maximum(self.high, other.high),
        )


Reaches = dict[nn.Module, Reach]


def fold_scales(psi: Psi) -> None:
    """Let norms leave their scale to the convolution they feed; psi computes the same afterwards.

    relu(s z + t) = s relu(z + t / s) for s > 0, so what is left of the norm is a sum.
    """
    for norm, conv in [*_pairs(psi), (psi.head.norm, psi.head.last)]:
        _fold(norm, conv)


@torch.no_grad()
def _fold(norm: nn.GroupNorm, conv: nn.Conv2d) -> None:
    scale = norm.weight.clone()
    if scale.min() <= _LEAST_SCALE * scale.max():
        return
    conv.weight.mul_(scale[:, None, None])
    norm.bias.div_(scale)
    norm.weight.fill_(1)


def _pairs(psi: Psi) -> Iterator[tuple[nn.GroupNorm, nn.Conv2d]]:
    """The blocks' convolutions, each with the norm before it."""
    for block in psi.modules():
        if isinstance(block, ResidualBlock):
            yield block.norm1, block.conv1
            yield block.norm2, block.conv2
            yield block.norm3, block.conv3
            if isinstance(block.skip, nn.Sequential):
                yield norm_and_conv(block.skip)


@torch.no_grad()
def observe(psi: Psi, images: Tensor, mirrored: bool) -> Reaches:
    """What the blocks' convolutions meet in images [N, 3, S, S] uint8, and perhaps in their mirror images."""
    seen: Reaches = {}

    def widen(conv: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        reach = Reach.of(inputs[0], outputs)
        seen[conv] = reach.joined(seen[conv]) if conv in seen else reach

    with _watched([conv for _, conv in _pairs(psi)], widen):
        for start in range(0, len(images), _BATCH):
            batch = images[start : start + _BATCH].float() / 255
            psi(batch)
            if mirrored:
                psi(batch.flip(-1))
    return seen


@contextmanager
def _watched(modules: list[nn.Conv2d], hook: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Int8Recorder(Recorder):
    """Writes convolutions between a `QuantizeLinear` and a `DequantizeLinear`, as ONNX Runtime expects it."""

    def __init__(self, graph: Graph, reaches: Reaches) -> None:
        super().__init__(graph)
        self._reaches = reaches

    def conv(self, conv: nn.Conv2d, x: Maps) -> Maps:
        if conv not in self._reaches:
            return super().conv(conv, x)
        plan = plan_conv(array(conv.weight), self._reaches[conv])
        graph = self.graph
        same = plan.step_in, np.array(0, np.uint8)
        whole = graph.add("DequantizeLinear", graph.add("QuantizeLinear", x.name, *same), *same)
        none = np.zeros(conv.out_channels, np.int8)
        weight = graph.add("DequantizeLinear", plan.weight, plan.step_weight, none, axis=0)
        step = plan.step_in * plan.step_weight
        shift = graph.add("DequantizeLinear", plan.shift, step, none.astype(np.int32), axis=0)
        result = graph.add("Conv", whole, weight, shift, **conv_attributes(conv))
        levels = graph.add("QuantizeLinear", result, np.array(1, np.float32), np.array(_MIDDLE, np.uint8))
        floats = graph.add("DequantizeLinear", levels, plan.step_out, plan.zero_out, axis=1)
        return Maps(floats, conv.out_channels, x.side // conv.stride[0])


@dataclass(frozen=True)
class ConvPlan:
    """A convolution in whole numbers.

    ONNX Runtime gives what comes out one step and one zero for all channels. But GroupNorm follows, which
    enlarges what is small: so every channel's own step is hidden in its weights' step, its own zero in its
    shift, and only the last node knows of them: level y of channel o means (y - zero_out[o]) step_out[o].

    step_in:     [] of what goes in, whose zero is 0
    weight:      [O, I, h, w] int8
    step_weight: [O] of the weights, so that a step of 1 comes out
    shift:       [O] int32, in steps of step_in x step_weight
    step_out:    [O]
    zero_out:    [O] uint8
    """

    step_in: Floats
    weight: npt.NDArray[np.int8]
    step_weight: Floats
    shift: npt.NDArray[np.int32]
    step_out: Floats
    zero_out: npt.NDArray[np.uint8]


def plan_conv(weight: Floats, reach: Reach) -> ConvPlan:
    """Steps, zeros and whole weights for a convolution with weights [O, I, h, w]."""
    step_in = np.array(_not_tiny(array(reach.before) / _LEVELS), np.float32)
    step_out = _not_tiny((array(reach.high) - array(reach.low)) / _LEVELS)
    zero_out = np.clip(np.round(-array(reach.low) / step_out), 0, _LEVELS)
    own_step = _not_tiny(np.abs(weight).max(axis=(1, 2, 3)) / 127)
    shift = (zero_out - _MIDDLE) * step_out / (step_in * own_step)
    return ConvPlan(
        step_in=step_in,
        weight=np.round(weight / own_step[:, None, None, None]).astype(np.int8),
        step_weight=own_step / step_out,
        shift=np.round(np.clip(shift, -_FARTHEST, _FARTHEST)).astype(np.int32),
        step_out=step_out,
        zero_out=zero_out.astype(np.uint8),
    )


def _not_tiny(steps: npt.NDArray[np.floating]) -> Floats:
    """Channels that never change need a step as well; any will do."""
    finest = max(_FINEST * float(steps.max()), 1e-12)
    return np.asarray(np.maximum(steps, finest), np.float32)
