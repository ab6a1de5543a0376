"""Build convolutional blocks for methods that generate images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


def conv_norm_relu(inputs: int, outputs: int, groups: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Create a convolution, a GroupNorm and a ReLU.

    Args:
        inputs: channels of the input.
        outputs: channels of the output.
        groups: norm groups; if they do not divide `outputs`, the greatest common divisor is used.
        kernel: side of the convolution's kernel, odd.
        stride: stride of the convolution.
    """
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        nn.GroupNorm(math.gcd(groups, outputs), outputs),
        nn.ReLU(inplace=True),
    )


class Decoder(nn.Module):
    """Blocks of two convolutions, with bilinear upsampling by 2 between blocks, and a last convolution."""

    def __init__(self, inputs: int, channels: Sequence[int], groups: int, outputs: int = 3) -> None:
        """Create the blocks.

        Args:
            inputs: channels of the input.
            channels: channels of each block, from coarse to fine.
            groups: norm groups.
            outputs: channels of the generated image.
        """
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_norm_relu(before, after, groups), conv_norm_relu(after, after, groups))
            for before, after in pairwise([inputs, *channels])
        )
        self.last = nn.Conv2d(channels[-1], outputs, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, h, w] to [B, outputs, f * h, f * w], where f = 2 ** (number of blocks - 1)."""
        for number, block in enumerate(self.blocks):
            if number:
                x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = block(x)
        result: Tensor = self.last(x)
        return result
