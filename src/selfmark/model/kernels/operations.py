"""The networks' operations in bf16 on CUDA, few kernels each, with float32 where it matters.

Statistics of norms, sums of residuals, reading between cells and losses are float32. Without gradients, when
positions are read off the maps, the last layers are too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.images.augment import ColorChanges
from selfmark.model.kernels import pool, target, warp
from selfmark.model.kernels.block import block
from selfmark.model.kernels.norm import norm_relu
from selfmark.model.kernels.sample import sample
from selfmark.model.kernels.stem import stem
from selfmark.model.network import Block

A = TypeVar("A")
B = TypeVar("B")


class Fused:
    """See `operations.Operations`."""

    copy_dtype = torch.bfloat16
    recordable = True

    def __init__(self) -> None:
        self._copies: dict[Tensor, Tensor] = {}
        self._kept_elsewhere = False
        self._streams: list[torch.cuda.Stream] = []
        self._depth = 0

    def adopt(self, copies: dict[Tensor, Tensor]) -> None:
        self._copies, self._kept_elsewhere = copies, True

    def running(self, network: nn.Module) -> AbstractContextManager[None]:
        if not self._kept_elsewhere:
            if torch.is_grad_enabled():
                raise ValueError("to train a network, make its optimizer first: it keeps the bf16 weights")
            if not self._copies:
                convs = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
                parameters = [p for conv in convs for p in conv.parameters()]
                self._copies = {p: torch.empty_like(p, dtype=torch.bfloat16) for p in parameters}
            # A few launches; so the copies are right even if weights were loaded in the meantime.
            torch._foreach_copy_(list(self._copies.values()), list(self._copies))
        return nullcontext()

    def stem(self, conv: nn.Conv2d, norm: nn.GroupNorm, images: Tensor) -> Tensor:
        return self._norm(norm, stem(images, self._copies[conv.weight]), conv)

    def block(self, block: Block, x: Tensor) -> Tensor:
        return self._block(block, x, halved=False)

    def halved_block(self, block: Block, x: Tensor) -> Tensor:
        return self._block(block, x, halved=True)

    def with_half(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return pool.with_half(x)

    def add_doubled(self, here: Tensor, below: Tensor) -> Tensor:
        return pool.add_doubled(here, below)

    def mix(self, conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        return self._norm(norm, F.conv2d(x, self._copies[conv.weight]), conv)

    def last(self, conv: nn.Conv2d, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.conv2d(x, self._copies[conv.weight], self._bias(conv))
        # As a product of matrices: convolutions would round float32 to TF32.
        maps = F.linear(x.permute(0, 2, 3, 1).float(), conv.weight.flatten(1), conv.bias)
        return maps.permute(0, 3, 1, 2)

    def describe(self, conv: nn.Conv2d, features: Tensor, cells: Tensor) -> Tensor:
        weight, bias = conv.weight, conv.bias
        if torch.is_grad_enabled():
            weight, bias = self._copies[weight], self._bias(conv)
        read = sample(features, cells).to(weight.dtype)
        return F.normalize(F.linear(read, weight.flatten(1), bias).float(), dim=-1)

    def both(self, aside: Callable[[], A], main: Callable[[], B]) -> tuple[A, B]:
        """On two streams. What the first makes is used after the streams have met again, so memory is safe:
        whoever reuses it has waited for both.
        """
        if self._depth == len(self._streams):
            self._streams.append(torch.cuda.Stream())
        here, other = torch.cuda.current_stream(), self._streams[self._depth]
        other.wait_stream(here)
        with torch.cuda.stream(other):
            first = aside()
        self._depth += 1
        try:
            second = main()
        finally:
            self._depth -= 1
        here.wait_stream(other)
        return first, second

    def targets(self, cells: Tensor, valid: Tensor, size: int, sigma: float) -> Tensor:
        return target.draw_together(cells, valid, size, sigma)

    def deform(self, pixels: Tensor, matrix: Tensor, changes: ColorChanges, noise: Tensor) -> Tensor:
        return warp.deform(pixels, matrix, changes, noise)

    def _bias(self, conv: nn.Conv2d) -> Tensor | None:
        return None if conv.bias is None else self._copies[conv.bias]

    def _norm(self, norm: nn.GroupNorm, x: Tensor, conv: nn.Conv2d) -> Tensor:
        """relu(norm(x + bias of the convolution that made x)); there the bias costs no pass of its own."""
        return norm_relu(x, norm.weight, norm.bias, norm.num_groups, self._bias(conv))

    def _block(self, module: Block, x: Tensor, halved: bool) -> Tensor:
        norms, convs = [module.norm1, module.norm2, module.norm3], [module.conv1, module.conv2, module.conv3]
        if isinstance(module.skip, nn.Sequential):
            norm, _, conv = module.skip
            norms, convs = [*norms, cast(nn.GroupNorm, norm)], [*convs, cast(nn.Conv2d, conv)]
        weights = [self._copies[conv.weight] for conv in convs]
        affine: list[Tensor] = [p for norm in norms for p in (norm.weight, norm.bias)]
        return block(x, module.norm1.num_groups, weights, affine, halved)
