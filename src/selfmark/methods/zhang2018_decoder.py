"""Build the decoder of Zhang et al. 2018: it makes an image from positions and descriptors of landmarks.

Positions are in units of half the image side, like all positions in `selfmark.methods`. Standard deviations
are in units of the image side.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import Zhang2018Settings as Settings
from selfmark.methods.warps import cell_positions

# Channels at each resolution, as multiples of the decoder's width, from fine to coarse.
_CHANNEL_FACTORS = (1, 2, 4, 8, 8)


class LandmarkDecoder(nn.Module):
    """Decoder that reconstructs images from Gaussian maps of the landmarks, filled with their descriptors."""

    def __init__(self, settings: Settings, landmarks: int, channels: int, norm_groups: int) -> None:
        """Create the layers of the descriptors and the hourglass.

        Args:
            settings: sizes of the decoder.
            landmarks: number of landmarks K.
            channels: channels of the features that are pooled.
            norm_groups: groups of GroupNorm; if they do not divide the channels, the greatest common divisor
                is used.
        """
        super().__init__()
        self.settings = settings
        width = max(1, round(settings.decoder_width * channels))
        self.compress = SeparateLinear(landmarks + 1, channels, settings.descriptor)
        self.expand = SeparateLinear(landmarks + 1, settings.descriptor, width)
        level_widths = [width * factor for factor in _CHANNEL_FACTORS]
        inputs = [settings.levels * (width + landmarks + 1), *level_widths]
        self.down = nn.ModuleList(LeakyConvBlock(*pair, norm_groups) for pair in pairwise(inputs))
        self.up = nn.ModuleList(
            LeakyConvBlock(coarse, fine, norm_groups) for fine, coarse in pairwise(level_widths)
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, positions: Tensor, pooled: Tensor) -> Tensor:
        """Return images [B, 3, side, side] in 0..1.

        Args:
            positions: [B, K, 2], positions of the landmarks.
            pooled: [B, K + 1, channels], features pooled at the landmarks and in the background.
        """
        settings = self.settings
        descriptors = F.leaky_relu(self.expand(self.compress(pooled)))
        sigmas = [settings.sigma * settings.sigma_ratio**level for level in range(settings.levels)]
        maps = assign_pixels(positions, settings.side, sigmas)
        x = torch.cat([maps, fill_maps(maps, descriptors)], dim=2).flatten(1, 2)
        skips = []
        for depth, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2, ceil_mode=True) if depth else x)
            skips.append(x)
        for skip, block in zip(skips[-2::-1], list(self.up)[::-1], strict=True):
            x = skip + block(F.interpolate(x, size=skip.shape[-2:], mode="nearest"))
        return torch.sigmoid(self.last(x))


class SeparateLinear(nn.Module):
    """A linear layer with separate weights for each landmark and for the background."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        """Create `count` layers from `inputs` to `outputs` numbers."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, inputs, outputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.zeros(count, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, count, inputs] to [B, count, outputs]."""
        return torch.einsum("bki,kio->bko", x, self.weight) + self.bias


class LeakyConvBlock(nn.Module):
    """A 3x3 convolution, GroupNorm and leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, norm_groups: int) -> None:
        """Create a block from `inputs` to `outputs` channels."""
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(math.gcd(norm_groups, outputs), outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H, W]."""
        return F.leaky_relu(self.norm(self.conv(x)))


def assign_pixels(positions: Tensor, side: int, sigmas: list[float]) -> Tensor:
    """Return the fraction of each pixel that belongs to each landmark and to the background.

    A landmark has a Gaussian density and the background a density of 1 per image area. The fractions are the
    densities divided by their sum.

    Args:
        positions: [B, K, 2], in units of half the image side.
        side: height and width of the maps.
        sigmas: L standard deviations, in units of the image side.

    Returns:
        Maps [B, L, K + 1, side, side]; the background is last, and the K + 1 maps sum to 1 at each pixel.
    """
    line = cell_positions(1, side, positions.device)[:, 0]
    squared = ((positions[..., None] - line) / 2).square()  # [B, K, 2, side]
    levels = []
    for sigma in sigmas:
        x, y = torch.exp(-squared / (2 * sigma**2)).unbind(2)
        density = y[..., :, None] * x[..., None, :] / (2 * math.pi * sigma**2)
        densities = torch.cat([density, torch.ones_like(density[:, :1])], dim=1)
        levels.append(densities / densities.sum(dim=1, keepdim=True))
    return torch.stack(levels, dim=1)


def fill_maps(maps: Tensor, descriptors: Tensor) -> Tensor:
    """Return feature maps [B, L, C, h, w]: at each pixel, the mean descriptor, weighted by the fractions.

    Args:
        maps: [B, L, K + 1, h, w], fractions of each pixel.
        descriptors: [B, K + 1, C].
    """
    return torch.einsum("blkhw,bkc->blchw", maps, descriptors)
