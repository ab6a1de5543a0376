"""Normalize colors in the way that networks trained on ImageNet expect."""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of the colors of ImageNet, RGB in 0..1."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of the colors of ImageNet."""


class ColorNormalizer(nn.Module):
    """Layer that subtracts ImageNet's mean color and divides by the standard deviation.

    The constants move with the module to its device, but are not part of its state dict.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Normalize images [B, 3, H, W] RGB in 0..1."""
        return (images - self.mean) / self.std
