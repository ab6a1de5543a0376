"""Build two networks of Lorenz et al. 2019.

`AppearanceNetwork` computes the appearance of each part. `PartDecoder` reconstructs the image from the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import Network
from selfmark.model.network import Hourglass, ResidualBlock

_HOURGLASS_DEPTH = 2  # levels of the hourglass that computes appearance features, as in the authors' code

DECODER_STRIDES = (32, 16, 8, 4, 2, 1)
"""Image pixels per cell at each resolution of the decoder, from coarse to fine."""

_APPEARANCE_STRIDES = (32, 16, 8)  # the decoder gets appearances at these strides, shapes at all
_WIDTH_DIVISORS = {32: 1, 16: 1, 8: 1, 4: 2, 2: 4, 1: 8}  # stride -> divisor of the number of channels


class AppearanceNetwork(nn.Module):
    """Network that computes features from an image and its part maps, and pools them into appearances."""

    def __init__(self, settings: Network, parts: int, features: int) -> None:
        """Create a stem, a small hourglass and an output layer.

        Args:
            settings: channels and norm groups, the same as in the landmark network.
            parts: number of part maps K.
            features: length of an appearance vector.
        """
        super().__init__()
        width, groups = settings.channels, settings.norm_groups
        self.stem = nn.Conv2d(3, width // 4, 7, stride=2, padding=3)
        self.stem_norm = nn.GroupNorm(groups, width // 4)
        self.block = ResidualBlock(width // 4, width, groups)
        self.part_projection = nn.Conv2d(parts, width, 1)
        self.hourglass = Hourglass(_HOURGLASS_DEPTH, width, groups)
        self.norm = nn.GroupNorm(groups, width)
        self.last = nn.Conv2d(width, features, 1)

    def forward(self, images: Tensor, part_maps: Tensor) -> Tensor:
        """Return one appearance vector per part.

        Args:
            images: [B, 3, S, S], values in 0..1.
            part_maps: [B, K, S/4, S/4], each sums to 1.

        Returns:
            Appearance vectors [B, K, F].
        """
        x = F.relu(self.stem_norm(self.stem(images - 0.5)))
        x = self.block(F.avg_pool2d(x, 2))
        # Divide by the maximum, because the values of a distribution depend on the number of cells.
        x = x + self.part_projection(part_maps / part_maps.amax(dim=(2, 3), keepdim=True))
        x = self.last(F.relu(self.norm(self.hourglass(x))))
        return pool_appearance(x, part_maps)


class PartDecoder(nn.Module):
    """Network that reconstructs an image from the positions and appearances of parts, coarse to fine."""

    def __init__(self, parts: int, features: int, channels: int, groups: int) -> None:
        """Create one block per resolution and an output layer.

        Args:
            parts: number of parts K.
            features: length of an appearance vector.
            channels: channels at the coarse resolutions; fine resolutions have fewer.
            groups: norm groups; if they do not divide the channels, the greatest common divisor is used.
        """
        super().__init__()
        blocks = []
        inputs = 0
        for stride in DECODER_STRIDES:
            outputs = channels // _WIDTH_DIVISORS[stride]
            part_channels = parts + features * (stride in _APPEARANCE_STRIDES)
            blocks.append(
                nn.Sequential(
                    nn.Conv2d(inputs + part_channels, outputs, 3, padding=1),
                    nn.GroupNorm(gcd(groups, outputs), outputs),
                    nn.ReLU(),
                )
            )
            inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Conv2d(inputs, 3, 3, padding=1)

    def forward(self, bells: Sequence[Tensor], appearance: Tensor) -> Tensor:
        """Return images [B, 3, S, S], values in 0..1.

        Args:
            bells: bell-shaped maps of the parts [B, K, S/stride, S/stride], one for each of DECODER_STRIDES.
            appearance: [B, K, F].
        """
        x = bells[0][:, :0]  # the first block has no input from a coarser block
        for stride, block, maps in zip(DECODER_STRIDES, self.blocks, bells, strict=True):
            inputs = [F.interpolate(x, size=maps.shape[-2:], mode="nearest"), maps] if x.shape[1] else [maps]
            if stride in _APPEARANCE_STRIDES:
                inputs.append(spread_appearance(maps, appearance))
            x = block(torch.cat(inputs, dim=1))
        return torch.sigmoid(self.last(x))


def pool_appearance(features: Tensor, part_maps: Tensor) -> Tensor:
    """Return the mean feature of each part, weighted by its map.

    Args:
        features: [B, F, h, w].
        part_maps: [B, K, h, w], each sums to 1.

    Returns:
        Appearance vectors [B, K, F].
    """
    return part_maps.flatten(2) @ features.flatten(2).transpose(1, 2)


def spread_appearance(bells: Tensor, appearance: Tensor) -> Tensor:
    """Place the appearance of each part where its bell-shaped map is high.

    At each cell, the maps are divided by 1 plus their sum, so that overlapping parts share the cell.

    Args:
        bells: [B, K, h, w].
        appearance: [B, K, F].

    Returns:
        Feature maps [B, F, h, w].
    """
    weights = bells / (1 + bells.sum(dim=1, keepdim=True))
    return torch.einsum("bkhw,bkf->bfhw", weights, appearance)
