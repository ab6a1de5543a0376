"""Implement the backend with Triton: bf16 on CUDA, with few kernel launches per layer.

Norm statistics, residual sums, bilinear sampling and losses are computed in float32. In passes without
gradients, the output layers are computed in float32 too, for precise landmark positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import BorderColor
from selfmark.images.augment import ColorChanges, invert_affine
from selfmark.model.backend import Backend
from selfmark.model.kernels import pool, target, warp
from selfmark.model.kernels.block import block as fused_block
from selfmark.model.kernels.launch import Launch as Launch  # re-exported, like `record_launches`
from selfmark.model.kernels.launch import record_launches as record_launches
from selfmark.model.kernels.norm import norm_relu
from selfmark.model.kernels.sample import sample
from selfmark.model.kernels.stem import stem_conv

if TYPE_CHECKING:
    from selfmark.model.network import ResidualBlock

A = TypeVar("A")
B = TypeVar("B")


class WeightCopies:
    """bf16 copies of the parameters of all convolutions, shared by the layers and the execution policy.

    During training, the optimizer owns the copies and keeps them up to date. Otherwise, `refresh` creates and
    updates them.
    """

    def __init__(self) -> None:
        """Start without copies."""
        self._copies: dict[Tensor, Tensor] = {}
        self._has_owner = False

    def __getitem__(self, parameter: Tensor) -> Tensor:
        """Return the copy of a parameter."""
        return self._copies[parameter]

    def replace(self, copies: dict[Tensor, Tensor]) -> None:
        """Replace all copies by the given ones, which the caller owns and keeps up to date."""
        self._copies, self._has_owner = copies, True

    def refresh(self, network: nn.Module) -> None:
        """Copy the parameters of `network` unless the copies have an owner."""
        if self._has_owner:
            return
        if torch.is_grad_enabled():
            raise ValueError("create the optimizer before training; it keeps the bf16 weights up to date")
        if not self._copies:
            convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
            parameters = [p for conv in convs for p in conv.parameters()]
            self._copies = {p: torch.empty_like(p, dtype=torch.bfloat16) for p in parameters}
        # Copy before every pass, because weights may have been loaded since the last pass; this is fast.
        torch._foreach_copy_(list(self._copies.values()), list(self._copies))


class FusedNetworkOps:
    """Layers computed by Triton kernels on channels-last maps; see `NetworkOps`."""

    def __init__(self, copies: WeightCopies) -> None:
        """Read convolution weights from `copies`."""
        self._copies = copies

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        """Return relu(norm(conv(images - 0.5)))."""
        return self._norm_relu(norm, stem_conv(images, self._copies[conv.weight]), conv)

    def residual_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """Return the output of the block, computed by one differentiable operation."""
        return self._block(block, x, pooled=False)

    def pooled_block(self, block: ResidualBlock, x: Tensor) -> Tensor:
        """Return the 2x2 average pooling of the block's output; block and pooling are one operation."""
        return self._block(block, x, pooled=True)

    def identity_and_pool(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and its 2x2 average pooling."""
        return pool.identity_and_pool(x)

    def upsample_add(self, fine: Tensor, coarse: Tensor) -> Tensor:
        """Return fine + nearest-neighbor upsampling of coarse."""
        return pool.upsample_add(fine, coarse)

    def conv_norm_relu(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """Return relu(norm(conv(x)))."""
        return self._norm_relu(norm, F.conv2d(x, self._copies[conv.weight]), conv)

    def output_conv(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        """Return conv(x), in float32 when no gradients are needed."""
        if torch.is_grad_enabled():
            return F.conv2d(x, self._copies[conv.weight], self._bias(conv))
        # A matrix product keeps float32 precision; a convolution would round to TF32.
        maps = F.linear(x.permute(0, 2, 3, 1).float(), conv.weight.flatten(1), conv.bias)
        return maps.permute(0, 3, 1, 2)

    def sample_conv(self, conv: nn.Conv2d, features: Tensor, cells: Tensor) -> Tensor:
        """Sample the features at the cells and apply the 1x1 convolution."""
        weight, bias = conv.weight, conv.bias
        if torch.is_grad_enabled():
            weight, bias = self._copies[weight], self._bias(conv)
        sampled = sample(features, cells).to(weight.dtype)
        return F.linear(sampled, weight.flatten(1), bias).float()

    def _bias(self, conv: nn.Conv2d) -> Tensor | None:
        return None if conv.bias is None else self._copies[conv.bias]

    def _norm_relu(self, norm: nn.GroupNorm, x: Tensor, conv: nn.Conv2d) -> Tensor:
        """Return relu(norm(x + bias of `conv`)); adding the bias here saves a separate pass over the map."""
        return norm_relu(x, norm.weight, norm.bias, norm.num_groups, self._bias(conv))

    def _block(self, module: ResidualBlock, x: Tensor, pooled: bool) -> Tensor:
        """Collect the weights of the block and compute it as one operation."""
        norms, convs = [module.norm1, module.norm2, module.norm3], [module.conv1, module.conv2, module.conv3]
        if isinstance(module.skip, nn.Sequential):
            norm, _, conv = module.skip
            norms, convs = [*norms, cast(nn.GroupNorm, norm)], [*convs, cast(nn.Conv2d, conv)]
        weights = [self._copies[conv.weight] for conv in convs]
        norm_parameters: list[Tensor] = [p for norm in norms for p in (norm.weight, norm.bias)]
        return fused_block(x, module.norm1.num_groups, weights, norm_parameters, pooled)


class FusedAugmentOps:
    """Augmentation and targets computed by Triton kernels; see `AugmentOps`."""

    def augment(
        self, pixels: Tensor, matrix: Tensor, changes: ColorChanges, noise: Tensor, border: BorderColor
    ) -> Tensor:
        """Warp images and change their colors; the result is channels-last."""
        inverse = invert_affine(matrix)
        planes, mean = warp.warp_and_mix_colors(pixels, inverse, changes.color, border == "black")
        return warp.blur_and_add_noise(
            planes, mean, changes.contrast, changes.brightness, changes.taps, noise, changes.noise_sigma
        )

    def draw_targets(self, cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
        """Draw the target heatmaps of the detector head."""
        return target.draw_target_fused(cells, valid, size, sigma)


class FusedExecution:
    """Execution in bf16 on several CUDA streams; see `ExecutionPolicy`."""

    weight_dtype = torch.bfloat16
    is_capturable = True

    def __init__(self, copies: WeightCopies) -> None:
        """Refresh `copies` before each forward pass."""
        self._copies = copies
        self._streams: list[torch.cuda.Stream] = []  # one per level of nested calls of `parallel`
        self._depth = 0

    def use_weight_copies(self, copies: dict[Tensor, Tensor]) -> None:
        """Use copies that the optimizer keeps up to date."""
        self._copies.replace(copies)

    def forward_context(self, network: nn.Module) -> AbstractContextManager[None]:
        """Refresh the weight copies and return a context that does nothing."""
        self._copies.refresh(network)
        return nullcontext()

    def parallel(self, side: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        """Run `main` on the current stream and `side` on a side stream.

        At the end, the current stream waits for the side stream. At the start of the next call, the side
        stream waits for the current stream. Each stream can therefore reuse memory that the other has read.
        """
        if self._depth == len(self._streams):
            self._streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        current, side_stream = torch.cuda.current_stream(), self._streams[self._depth]
        side_stream.wait_stream(current)
        with torch.cuda.stream(side_stream):
            side_result = side()
        self._depth += 1
        try:
            main_result = main()
        finally:
            self._depth -= 1
        current.wait_stream(side_stream)
        return side_result, main_result


class MetaExecution(FusedExecution):
    """Execution on the meta device, which has no streams."""

    def parallel(self, side: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        """Run one computation after the other."""
        return side(), main()


def create_fused_backend(is_on_meta_device: bool = False) -> Backend:
    """Create a Triton backend for one network; on the meta device, it records the launches of kernels."""
    copies = WeightCopies()
    execution = MetaExecution(copies) if is_on_meta_device else FusedExecution(copies)
    return Backend(FusedNetworkOps(copies), FusedAugmentOps(), execution)


def hash_kernel_sources() -> str:
    """Return a hash of the source files of all kernels."""
    sources = sorted(Path(pool.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
