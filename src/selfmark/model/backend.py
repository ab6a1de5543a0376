"""Define the interfaces between the networks and the code that computes their layers.

A network keeps its parameters and defines the order of its layers. A `Backend` defines how each layer is
computed (`NetworkOps`), how training images are augmented (`AugmentOps`) and how a pass is executed
(`ExecutionPolicy`). `plain_backend` implements these interfaces in torch for any device, `cpu_backend` in
torch for float32 on a CPU, and `fused_backend` with Triton kernels for CUDA. `network.prepare_network`
chooses the backend.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor, nn

from selfmark.config import BorderColor
from selfmark.images.augment import ColorChanges

if TYPE_CHECKING:
    from selfmark.model.network import ResidualBlock

A = TypeVar("A")
B = TypeVar("B")


class NetworkOps(Protocol):
    """Layers of the networks on maps [B, C, H, W]; `conv`, `norm` and `block` provide the weights."""

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        """Return relu(norm(conv(images - 0.5))) for a 7x7 convolution with stride 2."""

    def residual_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """Return the output of a hierarchical residual block."""

    def pooled_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """Return the 2x2 average pooling of the output of a block; the block must have a skip convolution."""

    def identity_and_pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and its 2x2 average pooling."""

    def upsample_add(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Return fine [B, C, 2H, 2W] plus the nearest-neighbor upsampling of coarse [B, C, H, W]."""

    def conv_norm_relu(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """Return relu(norm(conv(x))) for a 1x1 convolution."""

    def output_conv(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """Return conv(x) for the 1x1 convolution that ends a head."""

    def sample_conv(self, conv: nn.Conv2d, features: Tensor, cells: Tensor) -> Tensor:
        """Sample features [B, C, h, w] at cells [B, P, 2] and apply a 1x1 convolution: [B, P, d] float32."""


class AugmentOps(Protocol):
    """Augment training images, and draw heatmap targets."""

    def augment(
        self, pixels: Tensor, matrix: Tensor, changes: ColorChanges, noise: Tensor, border: BorderColor
    ) -> Tensor:
        """Warp images and change their colors.

        Args:
            pixels: [B, 3, S, S] uint8.
            matrix: [B, 2, 3] from pixels of the given image to pixels of the augmented image.
            changes: color changes of each image.
            noise: [B, 3, S, S] standard normal noise, scaled by `changes.noise_sigma`.
            border: how to fill the area outside the given images: by repeating their border pixels, or black.

        Returns:
            [B, 3, S, S] float32 in 0..1.
        """

    def draw_targets(self, cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
        """Draw target heatmaps [B, 1, size, size] of points [B, P, 2], in cells; see `draw_target`."""


class ExecutionPolicy(Protocol):
    """Precision, CUDA streams and CUDA graph capture of the passes through a network."""

    @property
    def weight_dtype(self) -> torch.dtype | None:
        """Return the type of the weight copies that convolutions use; None if they use the parameters."""

    @property
    def is_capturable(self) -> bool:
        """Return True if a training step can be captured as a CUDA graph."""

    def use_weight_copies(self, copies: dict[Tensor, Tensor]) -> None:
        """Use copies of the parameters from now on.

        Args:
            copies: mapping from each parameter to its copy, which the caller keeps up to date.
        """

    def forward_context(self, network: nn.Module) -> AbstractContextManager[None]:
        """Return the context in which to run the forward pass of `network`."""

    def parallel(self, side: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        """Run two independent computations, possibly at the same time, and return both results."""


@dataclass(frozen=True)
class Backend:
    """Implementation of layers, augmentation and execution."""

    layers: NetworkOps
    augmentation: AugmentOps
    execution: ExecutionPolicy
