"""Implement the backend with torch, for any device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import BorderColor
from selfmark.images.augment import ColorChanges, apply_color_changes, warp_images
from selfmark.model.backend import Backend
from selfmark.model.heatmaps import draw_target, sample_maps

if TYPE_CHECKING:
    from selfmark.model.network import ResidualBlock

A = TypeVar("A")
B = TypeVar("B")


class PlainNetworkOps:
    """Layers computed by torch; see `NetworkOps`."""

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        """Return relu(norm(conv(images - 0.5)))."""
        return F.relu(norm(conv(images - 0.5)))

    def residual_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """Concatenate the outputs of the three convolutions and add the skip connection."""
        first = block.conv1(F.relu(block.norm1(x)))
        second = block.conv2(F.relu(block.norm2(first)))
        third = block.conv3(F.relu(block.norm3(second)))
        result: Tensor = torch.cat([first, second, third], dim=1) + block.skip(x)
        return result

    def pooled_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """Return the 2x2 average pooling of the output of the residual block."""
        return F.avg_pool2d(self.residual_block(block, x), 2)

    def identity_and_pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and its 2x2 average pooling."""
        return x, F.avg_pool2d(x, 2)

    def upsample_add(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Return fine + nearest-neighbor upsampling of coarse."""
        return fine + F.interpolate(coarse, scale_factor=2.0, mode="nearest")

    def conv_norm_relu(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """Return relu(norm(conv(x)))."""
        return F.relu(norm(conv(x)))

    def output_conv(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """Return conv(x)."""
        result: Tensor = conv(x)
        return result

    def sample_conv(self, conv: nn.Conv2d, features: Tensor, cells: Tensor) -> Tensor:
        """Interpolate the features at fractional `cells` and apply the 1x1 convolution."""
        sampled = sample_maps(features.float(), cells)
        return F.linear(sampled, conv.weight.flatten(1), conv.bias)


class PlainAugmentOps:
    """Augmentation and targets computed by torch; see `AugmentOps`."""

    def augment(
        self, pixels: Tensor, matrix: Tensor, changes: ColorChanges, noise: Tensor, border: BorderColor
    ) -> Tensor:
        """Warp images and change their colors."""
        padding: Literal["border", "zeros"] = "zeros" if border == "black" else "border"
        return apply_color_changes(warp_images(pixels.float() / 255, matrix, padding), changes, noise)

    def draw_targets(self, cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
        """Draw the target heatmaps of the detector head."""
        return draw_target(cells, valid, size, sigma)


class PlainExecution:
    """Eager execution on one stream, in float32 or with bf16 autocast; see `ExecutionPolicy`."""

    weight_dtype = None

    def __init__(self, bf16: bool = False, is_capturable: bool = False) -> None:
        """Set precision and capture.

        Args:
            bf16: whether to run forward passes under bf16 autocast.
            is_capturable: whether the network's training step can be captured as a CUDA graph.
        """
        self._bf16 = bf16
        self._is_capturable = is_capturable

    @property
    def is_capturable(self) -> bool:
        """Return True if a training step can be captured as a CUDA graph."""
        return self._is_capturable

    def use_weight_copies(self, copies: dict[Tensor, Tensor]) -> None:
        """Raise if there are copies, because torch's layers use the parameters."""
        if copies:
            raise ValueError("the plain backend cannot use copies of the parameters")

    def forward_context(self, network: nn.Module) -> AbstractContextManager[None]:
        """Return autocast for bf16, otherwise a context that does nothing."""
        if not self._bf16:
            return nullcontext()
        tensor = next(chain(network.parameters(), network.buffers()))  # an ONNX encoder has no parameters
        context: AbstractContextManager[None] = torch.autocast(tensor.device.type, dtype=torch.bfloat16)
        return context

    def parallel(self, side: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        """Run one computation after the other."""
        return side(), main()


def create_plain_backend(bf16: bool = False, is_capturable: bool = False) -> Backend:
    """Return the torch backend, in float32 or with bf16 autocast; see `PlainExecution`."""
    return Backend(PlainNetworkOps(), PlainAugmentOps(), PlainExecution(bf16, is_capturable))


PLAIN_BACKEND = create_plain_backend()
