"""Implement the backend for float32 on a CPU: torch's layers with fewer passes over memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from selfmark.model.backend import Backend
from selfmark.model.cpu_norm import normalize_relu
from selfmark.model.plain_backend import PlainAugmentOps, PlainExecution, PlainNetworkOps

if TYPE_CHECKING:
    from selfmark.model.network import ResidualBlock


class CpuNetworkOps(PlainNetworkOps):
    """Layers whose norm and ReLU are one operation, and whose sums overwrite their first term."""

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        """Return relu(norm(conv(images - 0.5)))."""
        return normalize_relu(norm, conv(images - 0.5))

    def residual_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """Concatenate the outputs of the three convolutions and add the skip connection."""
        first = block.conv1(normalize_relu(block.norm1, x))
        second = block.conv2(normalize_relu(block.norm2, first))
        third = block.conv3(normalize_relu(block.norm3, second))
        return torch.cat([first, second, third], dim=1).add_(_skip(block, x))

    def conv_norm_relu(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """Return relu(norm(conv(x)))."""
        return normalize_relu(norm, conv(x))


def _skip(block: ResidualBlock, x: Tensor) -> Tensor:
    if not isinstance(block.skip, nn.Sequential):
        return x
    norm, _, conv = block.skip
    assert isinstance(norm, nn.GroupNorm)
    result: Tensor = conv(normalize_relu(norm, x))
    return result


def create_cpu_backend() -> Backend:
    """Return the backend for float32 on a CPU."""
    return Backend(CpuNetworkOps(), PlainAugmentOps(), PlainExecution())
