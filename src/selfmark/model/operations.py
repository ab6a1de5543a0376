"""What the networks are made of, behind one interface with two implementations.

`Plain` is torch and runs anywhere; `fused.operations.Fused` does the same in a few CUDA kernels. Networks
keep their parameters and say what follows what; which implementation runs is chosen once, in `network.place`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.images.augment import ColorChanges, apply_color_changes, warp_images
from selfmark.model.heatmaps import draw_target, sample_maps

if TYPE_CHECKING:
    from selfmark.model.network import Block

A = TypeVar("A")
B = TypeVar("B")


class Operations(Protocol):
    """Maps are [B, C, H, W]. Convolutions and norms are given as modules, which hold the parameters."""

    def running(self, network: nn.Module) -> AbstractContextManager[None]:
        """What must hold while `network` runs."""

    def adopt(self, copies: dict[Tensor, Tensor]) -> None:
        """Use these low-precision copies of parameters; the caller keeps them equal to the parameters."""

    @property
    def copy_dtype(self) -> torch.dtype | None:
        """Precision in which convolutions want their weights; None: the parameters themselves."""

    @property
    def recordable(self) -> bool:
        """Whether a training step made of these operations can be recorded as a CUDA graph."""

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        """relu(norm(conv(images - 0.5))), the convolution 7x7 with stride 2."""

    def block(self, block: Block, x: Tensor) -> Tensor:
        """The hierarchical residual block."""

    def halved_block(self, block: Block, x: Tensor) -> Tensor:
        """The same, then 2x2 average pooling; only for blocks that change the number of channels."""

    def with_half(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x and its 2x2 average pooling."""

    def add_doubled(self, here: Tensor, below: Tensor) -> Tensor:
        """here + below at twice its size, each cell repeated."""

    def mix(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """relu(norm(conv(x))), the convolution 1x1."""

    def last(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """conv(x), 1x1, the last layer of a head."""

    def describe(self, conv: nn.Conv2d, features: Tensor, cells: Tensor) -> Tensor:
        """Unit vectors [B, P, d] in float32: the 1x1 convolution of the features at cells [B, P, 2]."""

    def both(self, aside: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        """Two computations that do not need each other, perhaps at the same time."""

    def targets(self, cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
        """As `heatmaps.draw_together`."""

    def deform(self, pixels: Tensor, matrix: Tensor, changes: ColorChanges, noise: Tensor) -> Tensor:
        """Images [B, 3, S, S] uint8, moved by matrices [B, 2, 3] and recolored: float32 in 0..1."""


class Plain:
    """Torch, on any device."""

    copy_dtype = None
    recordable = False

    def __init__(self, bf16: bool = False) -> None:
        """bf16: mixed precision by autocast."""
        self._bf16 = bf16

    def running(self, network: nn.Module) -> AbstractContextManager[None]:
        if not self._bf16:
            return nullcontext()
        device = next(network.parameters()).device.type
        context: AbstractContextManager[None] = torch.autocast(device, dtype=torch.bfloat16)
        return context

    def adopt(self, copies: dict[Tensor, Tensor]) -> None:
        if copies:
            raise ValueError("plain operations use the parameters themselves")

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        return F.relu(norm(conv(images - 0.5)))

    def block(self, block: Block, x: Tensor) -> Tensor:
        first = block.conv1(F.relu(block.norm1(x)))
        second = block.conv2(F.relu(block.norm2(first)))
        third = block.conv3(F.relu(block.norm3(second)))
        result: Tensor = torch.cat([first, second, third], dim=1) + block.skip(x)
        return result

    def halved_block(self, block: Block, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.block(block, x), 2)

    def with_half(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, F.avg_pool2d(x, 2)

    def add_doubled(self, here: Tensor, below: Tensor) -> Tensor:
        return here + F.interpolate(below, scale_factor=2.0, mode="nearest")

    def mix(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        return F.relu(norm(conv(x)))

    def last(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        result: Tensor = conv(x)
        return result

    def describe(self, conv: nn.Conv2d, features: Tensor, cells: Tensor) -> Tensor:
        read = sample_maps(features.float(), cells)
        return F.normalize(F.linear(read, conv.weight.flatten(1), conv.bias), dim=-1)

    def both(self, aside: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        return aside(), main()

    def targets(self, cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
        return draw_target(cells, valid, size, sigma)

    def deform(self, pixels: Tensor, matrix: Tensor, changes: ColorChanges, noise: Tensor) -> Tensor:
        return apply_color_changes(warp_images(pixels.float() / 255, matrix), changes, noise)


PLAIN = Plain()
