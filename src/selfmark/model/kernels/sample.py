"""Bilinear sampling of a channels-last map at points, with a deterministic backward pass.

In the backward pass, each tile of cells gathers from the points near it, in their order. There are no atomic
additions, so the result is reproducible, and there is no buffer to clear.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sample_kernel(maps, cells, out, points, height, width, WIDTH: tl.constexpr):
    point = tl.program_id(0).to(tl.int64)
    image = point // points
    column = tl.arange(0, WIDTH)
    x = tl.minimum(tl.maximum(tl.load(cells + 2 * point), 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(tl.load(cells + 2 * point + 1), 0.0), height - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    fx, fy = x - left, y - top
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    x1, y1 = tl.minimum(x0 + 1, width - 1), tl.minimum(y0 + 1, height - 1)
    base = maps + image * height * width * WIDTH + column
    value = tl.load(base + (y0 * width + x0) * WIDTH).to(tl.float32) * ((1 - fx) * (1 - fy))
    value += tl.load(base + (y0 * width + x1) * WIDTH).to(tl.float32) * (fx * (1 - fy))
    value += tl.load(base + (y1 * width + x0) * WIDTH).to(tl.float32) * ((1 - fx) * fy)
    value += tl.load(base + (y1 * width + x1) * WIDTH).to(tl.float32) * (fx * fy)
    tl.store(out + point * WIDTH + column, value)


@triton.jit
def _gradient_kernel(
    dout, cells, dmaps, points, height, width, WIDTH: tl.constexpr, CELLS: tl.constexpr, SLOTS: tl.constexpr
):
    """Write the gradient of CELLS cells; SLOTS is `points` rounded up to a power of two."""
    image = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * CELLS
    cell = start + tl.arange(0, CELLS)
    cx, cy = (cell % width).to(tl.float32), (cell // width).to(tl.float32)
    top, bottom = (start // width).to(tl.float32), ((start + CELLS - 1) // width).to(tl.float32)
    column = tl.arange(0, WIDTH)
    number = tl.arange(0, SLOTS)
    cells += 2 * image * points
    dout += image * points * WIDTH + column
    y = tl.load(cells + 2 * number + 1, mask=number < points, other=0.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    near = (number < points) & (y > top - 1) & (y < bottom + 1)  # few points touch these rows
    total = tl.zeros([CELLS, WIDTH], tl.float32)
    point = tl.min(tl.where(near, number, SLOTS), 0)
    while point < SLOTS:
        px = tl.minimum(tl.maximum(tl.load(cells + 2 * point), 0.0), width - 1.0)
        py = tl.minimum(tl.maximum(tl.load(cells + 2 * point + 1), 0.0), height - 1.0)
        weight = tl.maximum(1 - tl.abs(cx - px), 0.0) * tl.maximum(1 - tl.abs(cy - py), 0.0)
        total += weight[:, None] * tl.load(dout + point * WIDTH)[None, :]
        point = tl.min(tl.where(near & (number > point), number, SLOTS), 0)
    at = (image * height * width + cell)[:, None] * WIDTH + column[None, :]
    tl.store(dmaps + at, total.to(dmaps.dtype.element_ty), mask=(cell < height * width)[:, None])


class _Sample(torch.autograd.Function):
    @staticmethod
    def forward(ctx, maps, cells):
        images, channels, height, width = maps.shape
        cells = cells.contiguous()
        out = maps.new_empty((images, cells.shape[1], channels), dtype=torch.float32)
        _sample_kernel[(images * cells.shape[1],)](
            maps, cells, out, cells.shape[1], height, width, WIDTH=channels, num_warps=1
        )
        ctx.save_for_backward(cells)
        ctx.shape, ctx.dtype = maps.shape, maps.dtype
        return out

    @staticmethod
    def backward(ctx, dout):
        (cells,) = ctx.saved_tensors
        images, channels, height, width = ctx.shape
        dmaps = torch.empty(ctx.shape, dtype=ctx.dtype, device=dout.device, memory_format=torch.channels_last)
        block = 64
        _gradient_kernel[(images, triton.cdiv(height * width, block))](
            dout.contiguous(), cells, dmaps, cells.shape[1], height, width, WIDTH=channels, CELLS=block,
            SLOTS=triton.next_power_of_2(cells.shape[1]), num_warps=8,
        )  # fmt: skip
        return dmaps, None


def sample(maps: Tensor, cells: Tensor) -> Tensor:
    """Sample channels-last maps [B, C, H, W] bilinearly at cells [B, P, 2]: [B, P, C] float32."""
    return _Sample.apply(maps.contiguous(memory_format=torch.channels_last), cells)
