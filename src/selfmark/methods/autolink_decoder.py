"""Build the decoder of AutoLink: a U-Net that completes a masked image with the help of an edge map."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_SLOPE = 0.2  # slope of the leaky ReLUs for negative inputs, as in the authors' code
# Channels at each resolution, divided by `width`, from fine to coarse, as in the authors' code.
_MULTIPLES = (1, 2, 4, 8, 8)


class UNetDecoder(nn.Module):
    """U-Net with five resolutions, each half of the previous one."""

    def __init__(self, inputs: int, outputs: int, width: int, groups: int) -> None:
        """Create the convolutions.

        Args:
            inputs: channels of the input.
            outputs: channels of the output.
            width: channels at the finest resolution, a multiple of `groups`.
            groups: groups of GroupNorm.
        """
        super().__init__()
        level_widths = [multiple * width for multiple in _MULTIPLES]
        self.first = nn.Conv2d(inputs, width, 3, padding=1)
        self.down = nn.ModuleList(_Block(fine, coarse, groups) for fine, coarse in pairwise(level_widths))
        # The input of each upward block, except the first, is the output of the previous upward block,
        # concatenated with the map of the same resolution from the downward path.
        upward = [_Block(level_widths[-1], level_widths[-2], groups)]
        upward += [_Block(2 * coarse, fine, groups) for coarse, fine in pairwise(level_widths[-2::-1])]
        self.up = nn.ModuleList(upward)
        self.last = nn.Conv2d(2 * width, outputs, 3, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                init_like_authors(module)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, S, S] to [B, outputs, S, S], for any S of at least 16."""
        x = F.leaky_relu(self.first(x), _SLOPE)
        skips = []
        for block in self.down:
            skips.append(x)
            x = F.avg_pool2d(block(x), 2)
        for block in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = torch.cat([block(x), skip], dim=1)
        result: Tensor = self.last(x)
        return result


class _Block(nn.Module):
    """Two 3x3 convolutions, each followed by a norm and a leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, S, S] to [B, outputs, S, S]."""
        x = F.leaky_relu(self.norm1(self.conv1(x)), _SLOPE)
        return F.leaky_relu(self.norm2(self.conv2(x)), _SLOPE)


def init_like_authors(conv: nn.Conv2d) -> None:
    """Initialize a convolution like the authors: weights by He initialization (normal), bias 0."""
    nn.init.kaiming_normal_(conv.weight, a=_SLOPE)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
