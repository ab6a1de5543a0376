"""EfficientNet-Lite: EfficientNet (Tan and Le 2019) without squeeze-and-excitation and swish.

Layers have the names of the published state dicts, so these load unchanged. The classifier is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

_EPSILON = 1e-3  # of all batch norms, as in the published networks
_STEM = 32  # channels after the first convolution


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
SCALES: Mapping[str, tuple[float, float]] = {"lite0": (1.0, 1.0), "lite1": (1.0, 1.1), "lite2": (1.1, 1.2)}
"""Width and depth factors of each variant."""


class SamePaddedConv(nn.Conv2d):
    """Convolution with TensorFlow's "SAME" padding: ceil(size / stride) outputs, an odd pixel at the end."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve maps [B, C, H, W]."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        pad_y, pad_x = (
            max((math.ceil(side / stride) - 1) * stride + kernel - side, 0) for side in x.shape[2:]
        )
        x = F.pad(x, (pad_x // 2, pad_x - pad_x // 2, pad_y // 2, pad_y - pad_y // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class InvertedResidual(nn.Module):
    """Inverted residual block: 1x1 expansion, depthwise convolution, 1x1 projection, skip connection."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.has_skip = stride == 1 and inputs == outputs
        self._expand_conv = SamePaddedConv(inputs, hidden, 1, bias=False) if expansion > 1 else None
        self._bn0 = nn.BatchNorm2d(hidden, eps=_EPSILON) if expansion > 1 else None
        self._depthwise_conv = SamePaddedConv(hidden, hidden, kernel, stride, groups=hidden, bias=False)
        self._bn1 = nn.BatchNorm2d(hidden, eps=_EPSILON)
        self._project_conv = SamePaddedConv(hidden, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Transform maps [B, C, H, W]."""
        y: Tensor = x
        if self._expand_conv is not None and self._bn0 is not None:
            y = F.relu6(self._bn0(self._expand_conv(y)))
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.has_skip else y


class EfficientNetLite(nn.Module):
    """Convolutional part of EfficientNet-Lite; returns the feature maps of chosen blocks."""

    def __init__(self, variant: str = "lite0") -> None:
        super().__init__()
        width, depth = SCALES[variant]
        self._conv_stem = SamePaddedConv(3, _STEM, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(_STEM, eps=_EPSILON)
        blocks: list[InvertedResidual] = []
        inputs = _STEM
        for number, stage in enumerate(_STAGES):
            outputs = _round_channels(stage.channels * width)
            is_first_or_last = number in (0, len(_STAGES) - 1)  # their depth is not scaled
            repeats = stage.repeats if is_first_or_last else math.ceil(stage.repeats * depth)
            for repeat in range(repeats):
                stride = stage.stride if repeat == 0 else 1
                blocks.append(InvertedResidual(inputs, outputs, stage.kernel, stride, stage.expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)

    def forward(self, images: Tensor, blocks: tuple[int, ...]) -> list[Tensor]:
        """Return the feature maps of these blocks, in ascending order, for images [B, 3, H, W] in 0..1."""
        x = F.relu6(self._bn0(self._conv_stem((images * 255 - 127) / 128)))
        maps = []
        for number in range(max(blocks) + 1):
            x = self._blocks[number](x)
            if number in blocks:
                maps.append(x)
        return maps


def _round_channels(channels: float, divisor: int = 8) -> int:
    """Round to a multiple of the divisor, but not down by more than 10 %."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def load_encoder(state: Mapping[str, Tensor], variant: str = "lite0") -> EfficientNetLite:
    """Build an encoder from a published state dict, whose classifier is ignored."""
    encoder = EfficientNetLite(variant).eval()
    classifier = ("_conv_head.", "_bn1.", "_fc.")
    encoder.load_state_dict({name: value for name, value in state.items() if not name.startswith(classifier)})
    return encoder
