"""relu(group_norm(x)) on channels-last maps as one differentiable operation; statistics in float32.

Small maps need one launch (a program sums its slab and then applies), large ones two (sums by chunk, then
apply).
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from selfmark.model.kernels import norm_kernels

PLAN = (1024, 64, 4096, 8)  # most rows and channels of one program, elements at a time, warps
EPS = 1e-5  # torch's default


def _plan(x: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Grid (slabs, chunks, images) and the sizes of a program's work."""
    images, channels, height, width = x.shape
    area = height * width
    most_rows, slab, elements, warps = PLAN
    slab = min(channels, slab)
    if area <= most_rows:
        elements *= 2
    chunk_rows = min(area, most_rows)
    rows = min(triton.next_power_of_2(area), elements // slab)
    sizes = {"area": area, "channels": channels, "chunk_rows": chunk_rows, "ROWS": rows, "WIDTH": slab}
    return (channels // slab, triton.cdiv(area, chunk_rows), images), sizes | {"num_warps": warps}


def rows_of(x: Tensor) -> int:
    """Elements from one pixel to the next of a map that is channels-last, or a slice of channels of one."""
    if x.stride(1) != 1 or x.stride(2) != x.shape[3] * x.stride(3):
        raise ValueError(f"a channels-last map is needed, not strides {x.stride()}")
    return x.stride(3)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """relu(group_norm(x + before)), and statistics [images, 3, channels] for the backward pass.

    The statistics are, by channel: mean of its group less `before`, 1/deviation, sum of normalized values.
    """
    grid, sizes = _plan(x)
    group, chunks = x.shape[1] // groups, triton.next_power_of_2(grid[1])
    y = torch.empty_like(x)
    stats = x.new_empty((x.shape[0], 3, x.shape[1]), dtype=torch.float32)
    partial = stats
    if grid[1] > 1:
        partial = x.new_empty((grid[2], grid[1], 2, x.shape[1]), dtype=torch.float32)
        norm_kernels.forward_partial[grid](x, partial, **sizes)
    norm_kernels.forward_apply[grid](
        x, partial, weight if before is None else before, weight, bias, y, stats, **sizes, eps=EPS,
        GROUP=group, CHUNKS=chunks, BEFORE=before is not None,
    )  # fmt: skip
    return y, stats


def again(x: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, pooled: bool) -> Tensor:
    """As `forward`, of an input whose statistics are known; then 2x2 average pooling if so wished."""
    images, channels, height, width = x.shape
    if pooled:
        height, width = height // 2, width // 2
    y = torch.empty(
        (images, channels, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    grid, sizes = _plan(y)
    norm_kernels.activate[grid](x, stats, weight, bias, y, **sizes, width=width, POOL=pooled)
    return y


def backward(
    dy: Tensor, x: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, groups: int, affine: Tensor,
    add: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """dx, plus `add`, which may be a slice of channels.

    Either of `dy` and `add` may be half as large as x, as the gradient behind 2x2 average pooling is, and is
    then spread out. Each image's gradients of weight, bias and `before` are left in `affine`
    [images, 3 * channels], to be summed.
    """
    if rows_of(dy) != dy.shape[1]:
        raise ValueError("the gradient must be channels-last")
    grid, sizes = _plan(x)
    group, chunks = x.shape[1] // groups, triton.next_power_of_2(grid[1])
    width = x.shape[3]
    halved = dy.shape[3] < width
    dx = torch.empty_like(x)
    partial = affine
    if grid[1] > 1:
        partial = x.new_empty((grid[2], grid[1], 2, x.shape[1]), dtype=torch.float32)
        norm_kernels.backward_partial[grid](
            x, dy, stats, weight, bias, partial, width=width, HALVED=halved, **sizes
        )
    norm_kernels.backward_apply[grid](
        x, dy, stats, weight, bias, partial, x if add is None else add, dx, affine, **sizes, width=width,
        add_stride=0 if add is None else rows_of(add), affine_stride=affine.stride(0), GROUP=group,
        CHUNKS=chunks, HALVED=halved, ADD=add is not None,
        ADD_HALVED=add is not None and add.shape[3] < width,
    )  # fmt: skip
    return dx


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, before, weight, bias, groups):
        y, stats = forward(x, weight, bias, groups, before)
        ctx.save_for_backward(x, stats, weight, bias)
        ctx.groups, ctx.before = groups, None if before is None else before.dtype
        return y

    @staticmethod
    def backward(ctx, dy):
        x, stats, weight, bias = ctx.saved_tensors
        affine = x.new_empty((x.shape[0], 3 * x.shape[1]), dtype=torch.float32)
        dx = backward(
            dy.contiguous(memory_format=torch.channels_last), x, stats, weight, bias, ctx.groups, affine
        )
        dweight, dbias, dbefore = affine.sum(dim=0).view(3, -1)
        return dx, None if ctx.before is None else dbefore.to(ctx.before), dweight, dbias, None


def norm_relu(x: Tensor, weight: Tensor, bias: Tensor, groups: int, before: Tensor | None = None) -> Tensor:
    """relu(group_norm(x + before)) for a channels-last map [B, C, H, W]; weight and bias are float32.

    before: [C], the bias of the convolution that made x; added here, it costs no pass of its own.
    """
    return _NormReLU.apply(x.contiguous(memory_format=torch.channels_last), before, weight, bias, groups)
