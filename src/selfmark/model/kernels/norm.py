"""Compute GroupNorm followed by ReLU on channels-last maps, as one differentiable operation.

Statistics are float32. A slab is up to 64 channels of one image. Small maps need one launch, with one program
per slab: the program sums the slab and then normalizes it. Large maps need two launches, in which several
programs share a slab, one per chunk of pixels: the first launch sums the chunks, the second one normalizes.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from selfmark.model.kernels import norm_kernels

# Limits for one kernel program: rows (pixels), channels, and elements at a time. The last value is the number
# of warps. If the map needs only one launch, the limit of elements is doubled.
LAUNCH = (1024, 64, 4096, 8)
EPS = 1e-5  # torch's default


def _launch_sizes(x: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return the launch grid (slabs, chunks, images) and the size arguments of the kernels."""
    images, channels, height, width = x.shape
    area = height * width
    max_rows, slab, elements, warps = LAUNCH
    slab = min(channels, slab)
    if area <= max_rows:
        elements *= 2
    chunk_rows = min(area, max_rows)
    rows = min(triton.next_power_of_2(area), elements // slab)
    sizes = {"area": area, "channels": channels, "chunk_rows": chunk_rows, "ROWS": rows, "SLAB": slab}
    return (channels // slab, triton.cdiv(area, chunk_rows), images), sizes | {"num_warps": warps}


def pixel_stride(x: Tensor) -> int:
    """Return the stride between pixels of a channels-last map or of a slice of its channels, in elements."""
    if x.stride(1) != 1 or x.stride(2) != x.shape[3] * x.stride(3):
        raise ValueError(f"the map must be channels-last, but its strides are {x.stride()}")
    return x.stride(3)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, conv_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return relu(group_norm(x + conv_bias)) and statistics [images, 3, channels] for the backward pass.

    The three statistics of a channel are (1) the mean of x + conv_bias over its group, minus the channel's
    `conv_bias`, (2) the inverse standard deviation of its group, and (3) the sum of the channel's normalized
    values. So the backward pass can subtract (1) from x without adding `conv_bias`.
    """
    grid, sizes = _launch_sizes(x)
    group, chunks = x.shape[1] // groups, triton.next_power_of_2(grid[1])
    y = torch.empty_like(x)
    stats = x.new_empty((x.shape[0], 3, x.shape[1]), dtype=torch.float32)
    partial = stats  # a placeholder, which the kernel does not read if there is only one chunk
    if grid[1] > 1:
        partial = x.new_empty((grid[2], grid[1], 2, x.shape[1]), dtype=torch.float32)
        norm_kernels.forward_partial[grid](x, partial, **sizes)
    # Without `conv_bias`, `weight` stands in for it; the kernel does not read it.
    norm_kernels.forward_apply[grid](
        x, partial, weight if conv_bias is None else conv_bias, weight, bias, y, stats, **sizes, eps=EPS,
        GROUP=group, CHUNKS=chunks, HAS_CONV_BIAS=conv_bias is not None,
    )  # fmt: skip
    return y, stats


def normalize_again(x: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, pooled: bool) -> Tensor:
    """Return relu(group_norm(x)) with the statistics of `forward`, average-pooled 2x2 if `pooled`."""
    images, channels, height, width = x.shape
    if pooled:
        height, width = height // 2, width // 2
    y = torch.empty(
        (images, channels, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    grid, sizes = _launch_sizes(y)
    norm_kernels.activate[grid](x, stats, weight, bias, y, **sizes, width=width, POOL=pooled)
    return y


def backward(
    dy: Tensor, x: Tensor, stats: Tensor, weight: Tensor, bias: Tensor, groups: int, gradients: Tensor,
    add: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the gradient of x, plus `add`, given the gradient `dy` of the output.

    `add` may be a slice of the channels of a map. `dy` and `add` may each have half the height and width of
    x, as the gradient of 2x2 average pooling does; a quarter of each value then goes to each of 2x2 pixels.
    The gradients of weight, bias and `conv_bias` are written to `gradients` [images, 3 * channels]. The
    caller sums them over the images.
    """
    if pixel_stride(dy) != dy.shape[1]:
        raise ValueError("the gradient must be a whole channels-last map, not a slice of its channels")
    grid, sizes = _launch_sizes(x)
    group, chunks = x.shape[1] // groups, triton.next_power_of_2(grid[1])
    width = x.shape[3]
    halved = dy.shape[3] < width
    dx = torch.empty_like(x)
    partial = gradients  # a placeholder, as in `forward`
    if grid[1] > 1:
        partial = x.new_empty((grid[2], grid[1], 2, x.shape[1]), dtype=torch.float32)
        norm_kernels.backward_partial[grid](
            x, dy, stats, weight, bias, partial, width=width, HALVED=halved, **sizes
        )
    # Without `add`, x stands in for it; the kernel does not read it.
    norm_kernels.backward_apply[grid](
        x, dy, stats, weight, bias, partial, x if add is None else add, dx, gradients, **sizes, width=width,
        add_stride=0 if add is None else pixel_stride(add), gradients_stride=gradients.stride(0), GROUP=group,
        CHUNKS=chunks, HALVED=halved, ADD=add is not None,
        ADD_HALVED=add is not None and add.shape[3] < width,
    )  # fmt: skip
    return dx


class _NormReLU(torch.autograd.Function):
    """Differentiable relu(group_norm(x + conv_bias)), see `norm_relu`."""

    @staticmethod
    def forward(ctx, x, conv_bias, weight, bias, groups):
        y, stats = forward(x, weight, bias, groups, conv_bias)
        ctx.save_for_backward(x, stats, weight, bias)
        ctx.groups = groups
        ctx.conv_bias_dtype = None if conv_bias is None else conv_bias.dtype
        return y

    @staticmethod
    def backward(ctx, dy):
        x, stats, weight, bias = ctx.saved_tensors
        gradients = x.new_empty((x.shape[0], 3 * x.shape[1]), dtype=torch.float32)
        dx = backward(
            dy.contiguous(memory_format=torch.channels_last), x, stats, weight, bias, ctx.groups, gradients
        )
        dweight, dbias, dconv_bias = gradients.sum(dim=0).view(3, -1)
        if ctx.conv_bias_dtype is None:
            return dx, None, dweight, dbias, None
        return dx, dconv_bias.to(ctx.conv_bias_dtype), dweight, dbias, None


def norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, conv_bias: Tensor | None = None
) -> Tensor:
    """Return relu(group_norm(x + conv_bias)) of a channels-last map [B, C, H, W].

    Args:
        x: the output of a convolution, without its bias.
        weight: [C] float32, scale of the norm.
        bias: [C] float32, shift of the norm.
        groups: norm groups.
        conv_bias: [C], the bias of the convolution; adding it here saves a separate pass.
    """
    return _NormReLU.apply(x.contiguous(memory_format=torch.channels_last), conv_bias, weight, bias, groups)
