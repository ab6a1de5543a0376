"""2x2 pooling and doubling of channels-last maps, the sums around them included."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A channels-last map of this shape."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


@triton.jit
def _pool(x, out, pixels, half_width, scale, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Sum of each 2x2 square times scale; rows of `out` are numbered over all images."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    live = (row < pixels)[:, None]
    corner = ((row // half_width) * (4 * half_width) + (row % half_width) * 2).to(tl.int64)[:, None]
    at = x + corner * WIDTH + column
    below = at + 2 * half_width * WIDTH
    total = tl.load(at, mask=live, other=0.0).to(tl.float32)
    total += tl.load(at + WIDTH, mask=live, other=0.0).to(tl.float32)
    total += tl.load(below, mask=live, other=0.0).to(tl.float32)
    total += tl.load(below + WIDTH, mask=live, other=0.0).to(tl.float32)
    at_out = row.to(tl.int64)[:, None] * WIDTH + column
    tl.store(out + at_out, (total * scale).to(out.dtype.element_ty), mask=live)


@triton.jit
def _spread(x, add, out, pixels, width, scale, WIDTH: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr):
    """Each pixel of x to a 2x2 square, times scale, plus `add`; rows of `out` numbered over all images."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, :]
    live = (row < pixels)[:, None]
    source = ((row // width) // 2) * (width // 2) + (row % width) // 2
    value = tl.load(x + source.to(tl.int64)[:, None] * WIDTH + column, mask=live, other=0.0).to(tl.float32)
    value *= scale
    at = row.to(tl.int64)[:, None] * WIDTH + column
    if ADD:
        value += tl.load(add + at, mask=live, other=0.0).to(tl.float32)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=live)


def pool(x: Tensor, scale: float) -> Tensor:
    """The sum of each 2x2 square times `scale`."""
    images, channels, height, width = x.shape
    out = empty(x, (images, channels, height // 2, width // 2))
    pixels, rows = out.numel() // channels, max(1, 2048 // channels)
    _pool[(triton.cdiv(pixels, rows),)](x, out, pixels, width // 2, scale, WIDTH=channels, ROWS=rows)
    return out


def spread(x: Tensor, scale: float, add: Tensor | None = None) -> Tensor:
    """Each cell times `scale` at each of four, plus `add`."""
    images, channels, height, width = x.shape
    out = empty(x, (images, channels, 2 * height, 2 * width))
    pixels, rows = out.numel() // channels, 4096 // channels
    _spread[(triton.cdiv(pixels, rows),)](
        x, x if add is None else add, out, pixels, 2 * width, scale, WIDTH=channels, ROWS=rows,
        ADD=add is not None,
    )  # fmt: skip
    return out


class _WithHalf(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x), pool(x, 0.25)

    @staticmethod
    def backward(ctx, dx, dhalf):
        dx, dhalf = (d.contiguous(memory_format=torch.channels_last) for d in (dx, dhalf))
        return spread(dhalf, 0.25, dx)


class _AddDoubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, here, below):
        return spread(below, 1.0, here)

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous(memory_format=torch.channels_last)
        return dy, pool(dy, 1.0)


def with_half(x: Tensor) -> tuple[Tensor, Tensor]:
    """x and its 2x2 average pooling, so that their gradients are added where the second is spread out."""
    return _WithHalf.apply(x)


def add_doubled(here: Tensor, below: Tensor) -> Tensor:
    """here + nearest-neighbor upsampling of below."""
    return _AddDoubled.apply(here, below)
