"""Pool (2x2) and upsample channels-last maps, fused with the additions around them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfmark.model.kernels.launch import Recordable


def empty_channels_last(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialized channels-last map with the type and device of `like`."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@Recordable
@triton.jit
def _pool_kernel(x, out, pixels, half_width, scale, CHANNELS: tl.constexpr, ROWS: tl.constexpr):
    """Write the sum of each 2x2 square times scale; a row is one pixel of `out`, in any image."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)[None, :]
    live = (row < pixels)[:, None]
    corner = ((row // half_width) * (4 * half_width) + (row % half_width) * 2).to(tl.int64)[:, None]
    at = x + corner * CHANNELS + channel
    below = at + 2 * half_width * CHANNELS
    total = tl.load(at, mask=live, other=0.0).to(tl.float32)
    total += tl.load(at + CHANNELS, mask=live, other=0.0).to(tl.float32)
    total += tl.load(below, mask=live, other=0.0).to(tl.float32)
    total += tl.load(below + CHANNELS, mask=live, other=0.0).to(tl.float32)
    at_out = row.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(out + at_out, (total * scale).to(out.dtype.element_ty), mask=live)


@Recordable
@triton.jit
def _spread_kernel(
    x, add, out, pixels, width, scale, CHANNELS: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr
):
    """Write each pixel of x times scale to a 2x2 square, plus `add`; a row is one pixel of `out`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)[None, :]
    live = (row < pixels)[:, None]
    source = (((row // width) // 2) * (width // 2) + (row % width) // 2).to(tl.int64)[:, None]
    value = tl.load(x + source * CHANNELS + channel, mask=live, other=0.0).to(tl.float32)
    value *= scale
    at = row.to(tl.int64)[:, None] * CHANNELS + channel
    if ADD:
        value += tl.load(add + at, mask=live, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=live)


def pool(x: Tensor, scale: float) -> Tensor:
    """Return the sum of each 2x2 square of x [B, C, H, W] times `scale`: [B, C, H/2, W/2]."""
    images, channels, height, width = x.shape
    out = empty_channels_last(x, (images, channels, height // 2, width // 2))
    pixels, rows = out.numel() // channels, max(1, 2048 // channels)
    _pool_kernel[(triton.cdiv(pixels, rows),)](
        x, out, pixels, width // 2, scale, CHANNELS=channels, ROWS=rows
    )
    return out


def spread(x: Tensor, scale: float, add: Tensor | None = None) -> Tensor:
    """Repeat each cell of x [B, C, H, W] 2x2, multiply by `scale`, and add `add` [B, C, 2H, 2W]."""
    images, channels, height, width = x.shape
    out = empty_channels_last(x, (images, channels, 2 * height, 2 * width))
    pixels, rows = out.numel() // channels, 4096 // channels
    _spread_kernel[(triton.cdiv(pixels, rows),)](
        x, x if add is None else add, out, pixels, 2 * width, scale, CHANNELS=channels, ROWS=rows,
        ADD=add is not None,
    )  # fmt: skip
    return out


class _IdentityAndPool(torch.autograd.Function):
    """Differentiable `identity_and_pool`."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x), pool(x, 0.25)

    @staticmethod
    def backward(ctx, dx, dpooled):
        dx, dpooled = (d.contiguous(memory_format=torch.channels_last) for d in (dx, dpooled))
        return spread(dpooled, 0.25, dx)


class _UpsampleAdd(torch.autograd.Function):
    """Differentiable `upsample_add`."""

    @staticmethod
    def forward(ctx, fine, coarse):
        return spread(coarse, 1.0, fine)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous(memory_format=torch.channels_last)
        return dy, pool(dy, 1.0)


def identity_and_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x and its 2x2 average pooling; the backward pass adds both gradients in one kernel."""
    result: tuple[Tensor, Tensor] = _IdentityAndPool.apply(x)
    return result


def upsample_add(fine: Tensor, coarse: Tensor) -> Tensor:
    """Return fine + nearest-neighbor upsampling of coarse."""
    result: Tensor = _UpsampleAdd.apply(fine, coarse)
    return result
