"""Sample a channels-last map bilinearly at points, with a deterministic backward pass.

In the backward pass, each program adds up the gradients of the points near its cells, in index order. There
are no atomic additions, so the result is reproducible, and the output need not be set to zero beforehand.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfmark.model.kernels.launch import Recordable


@Recordable
@triton.jit
def _sample_kernel(maps, xy, out, num_points, height, width, CHANNELS: tl.constexpr):
    """Sample all channels at one point; points outside the map are moved to its border."""
    point = tl.program_id(0).to(tl.int64)
    image = point // num_points
    channel = tl.arange(0, CHANNELS)
    x = tl.minimum(tl.maximum(tl.load(xy + 2 * point), 0.0), width - 1.0)
    y = tl.minimum(tl.maximum(tl.load(xy + 2 * point + 1), 0.0), height - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    fx, fy = x - left, y - top
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    x1, y1 = tl.minimum(x0 + 1, width - 1), tl.minimum(y0 + 1, height - 1)
    base = maps + image * height * width * CHANNELS + channel
    value = tl.load(base + (y0 * width + x0) * CHANNELS).to(tl.float32) * ((1 - fx) * (1 - fy))
    value += tl.load(base + (y0 * width + x1) * CHANNELS).to(tl.float32) * (fx * (1 - fy))
    value += tl.load(base + (y1 * width + x0) * CHANNELS).to(tl.float32) * ((1 - fx) * fy)
    value += tl.load(base + (y1 * width + x1) * CHANNELS).to(tl.float32) * (fx * fy)
    tl.store(out + point * CHANNELS + channel, value)


@Recordable
@triton.jit
def _gradient_kernel(
    dout, xy, dmaps, num_points, height, width, CHANNELS: tl.constexpr, TILE: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of TILE cells; SLOTS is `num_points` rounded up to a power of two."""
    image = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * TILE
    cell = start + tl.arange(0, TILE)
    cx, cy = (cell % width).to(tl.float32), (cell // width).to(tl.float32)
    top, bottom = (start // width).to(tl.float32), ((start + TILE - 1) // width).to(tl.float32)
    channel = tl.arange(0, CHANNELS)
    index = tl.arange(0, SLOTS)
    xy += 2 * image * num_points
    dout += image * num_points * CHANNELS + channel
    y = tl.load(xy + 2 * index + 1, mask=index < num_points, other=0.0)
    y = tl.minimum(tl.maximum(y, 0.0), height - 1.0)
    near = (index < num_points) & (y > top - 1) & (y < bottom + 1)  # few points are close to these rows
    total = tl.zeros([TILE, CHANNELS], tl.float32)
    # Visit the near points in index order; the value SLOTS means that none is left.
    point = tl.min(tl.where(near, index, SLOTS), 0)
    while point < SLOTS:
        px = tl.minimum(tl.maximum(tl.load(xy + 2 * point), 0.0), width - 1.0)
        py = tl.minimum(tl.maximum(tl.load(xy + 2 * point + 1), 0.0), height - 1.0)
        weight = tl.maximum(1 - tl.abs(cx - px), 0.0) * tl.maximum(1 - tl.abs(cy - py), 0.0)
        total += weight[:, None] * tl.load(dout + point * CHANNELS)[None, :]
        point = tl.min(tl.where(near & (index > point), index, SLOTS), 0)
    at = (image * height * width + cell)[:, None] * CHANNELS + channel[None, :]
    tl.store(dmaps + at, total.to(dmaps.dtype.element_ty), mask=(cell < height * width)[:, None])


class _Sample(torch.autograd.Function):
    """Differentiable `sample`; there is no gradient with respect to the positions."""

    @staticmethod
    def forward(ctx, maps, xy):
        images, channels, height, width = maps.shape
        xy = xy.contiguous()
        out = maps.new_empty((images, xy.shape[1], channels), dtype=torch.float32)
        _sample_kernel[(images * xy.shape[1],)](
            maps, xy, out, xy.shape[1], height, width, CHANNELS=channels, num_warps=1
        )
        ctx.save_for_backward(xy)
        ctx.shape, ctx.dtype = maps.shape, maps.dtype
        return out

    @staticmethod
    def backward(ctx, dout):
        (xy,) = ctx.saved_tensors
        images, channels, height, width = ctx.shape
        dmaps = torch.empty(ctx.shape, dtype=ctx.dtype, device=dout.device, memory_format=torch.channels_last)
        tile = 64
        _gradient_kernel[(images, triton.cdiv(height * width, tile))](
            dout.contiguous(), xy, dmaps, xy.shape[1], height, width, CHANNELS=channels, TILE=tile,
            SLOTS=triton.next_power_of_2(xy.shape[1]), num_warps=8,
        )  # fmt: skip
        return dmaps, None


def sample(maps: Tensor, xy: Tensor) -> Tensor:
    """Sample channels-last maps [B, C, H, W] bilinearly at xy [B, P, 2], in cells: [B, P, C] float32."""
    return _Sample.apply(maps.contiguous(memory_format=torch.channels_last), xy)
