"""Provide an encoder that is small enough for tests: one convolution per cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selfmark.features.encoder import CELL, Encoder, FeatureInfo


class TinyEncoder(Encoder):
    """Encoder whose features are random linear functions of the pixels of a cell.

    Args:
        channels: number of features.
        is_symmetric: whether features depend only on the mean color of a cell, so that turning or mirroring
            the cell does not change them.
    """

    def __init__(self, channels: int = 8, is_symmetric: bool = False) -> None:
        super().__init__()
        self.info = FeatureInfo("tiny", "none", "nothing")
        self.channels = self.part_channels = channels
        self.cells = nn.Conv2d(3, channels, CELL, stride=CELL)
        generator = torch.Generator().manual_seed(3)
        side = 1 if is_symmetric else CELL
        with torch.no_grad():
            self.cells.weight.copy_(torch.randn(channels, 3, side, side, generator=generator) / CELL)
            self.cells.bias.copy_(torch.randn(channels, generator=generator) / 10)

    def compute_maps(self, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the same map for `forward` and for `describe`."""
        maps = [self.cells(images - 0.5)]
        return maps, maps
