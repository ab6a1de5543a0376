"""Compute a hierarchical residual block as one differentiable operation on channels-last maps.

In the forward pass, one kernel concatenates the outputs of the three convolutions and adds the skip
connection. In the backward pass, the kernel that writes the gradient of a norm also adds the gradient of the
residual connection.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfmark.model.kernels import norm
from selfmark.model.kernels.launch import Recordable
from selfmark.model.kernels.pool import empty_channels_last, spread

_conv = torch.ops.aten.convolution.default
_conv_backward = torch.ops.aten.convolution_backward.default


@triton.jit
def _load_joined(first, second, third, rows, column, live, HALF: tl.constexpr, QUARTER: tl.constexpr):
    """Load rows (pixels) of cat([first, second, third], 1) as float32; `live` masks valid rows."""
    total = tl.load(first + rows * HALF + column, mask=live & (column < HALF), other=0.0).to(tl.float32)
    middle = live & (column >= HALF) & (column < HALF + QUARTER)
    total += tl.load(second + rows * QUARTER + column - HALF, mask=middle, other=0.0).to(tl.float32)
    end = live & (column >= HALF + QUARTER)
    total += tl.load(third + rows * QUARTER + column - HALF - QUARTER, mask=end, other=0.0).to(tl.float32)
    return total


@Recordable
@triton.jit
def _concatenate_add_kernel(
    first, second, third, skip, out, pixels, width, HALF: tl.constexpr, ROWS: tl.constexpr, POOL: tl.constexpr
):  # fmt: skip
    """Write cat([first, second, third], 1), pooled 2x2 if POOL, plus skip; a row is one pixel of `out`."""
    WIDTH: tl.constexpr = 2 * HALF
    QUARTER: tl.constexpr = HALF // 2
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    live = rows < pixels
    total = tl.load(skip + rows * WIDTH + column, mask=live, other=0.0).to(tl.float32)
    if POOL:  # `width` is the width of the pooled map
        corner = (rows // width) * (4 * width) + (rows % width) * 2
        square = _load_joined(first, second, third, corner, column, live, HALF, QUARTER)
        square += _load_joined(first, second, third, corner + 1, column, live, HALF, QUARTER)
        square += _load_joined(first, second, third, corner + 2 * width, column, live, HALF, QUARTER)
        square += _load_joined(first, second, third, corner + 2 * width + 1, column, live, HALF, QUARTER)
        total += 0.25 * square
    else:
        total += _load_joined(first, second, third, rows, column, live, HALF, QUARTER)
    tl.store(out + rows * WIDTH + column, total.to(out.dtype.element_ty), mask=live)


def concatenate_add(first: Tensor, second: Tensor, third: Tensor, skip: Tensor) -> Tensor:
    """Return cat([first, second, third], 1) + skip, added in float32.

    If `skip` has half the height and width of the other maps, the other maps are average-pooled 2x2 before
    the addition.
    """
    out = torch.empty_like(skip)
    pixels, half = skip.numel() // skip.shape[1], first.shape[1]
    rows = 4096 // (2 * half)
    _concatenate_add_kernel[(triton.cdiv(pixels, rows),)](
        first, second, third, skip, out, pixels, skip.shape[3], HALF=half, ROWS=rows,
        POOL=skip.shape[3] < first.shape[3], num_warps=4,
    )  # fmt: skip
    return out


def _conv_forward(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve with stride 1 and zero padding that keeps the size of the map."""
    padding = weight.shape[-1] // 2
    y = _conv(x, weight, None, [1, 1], [padding, padding], [1, 1], False, [0, 0], 1)
    return _as_channels_last(y)


def _conv_gradients(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight of `_conv_forward`, given the gradient of its output."""
    padding = weight.shape[-1] // 2
    dx, dweight, _ = _conv_backward(
        dy, x, weight, None, [1, 1], [padding, padding], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return _as_channels_last(dx), dweight


def _as_channels_last(x: Tensor) -> Tensor:
    """Return x in the channels-last format, which convolutions keep on a GPU but not on the meta device."""
    return x.contiguous(memory_format=torch.channels_last)


@Recordable
@triton.jit
def _last_channels_kernel(x, out, pixels, stride, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Copy WIDTH channels of each row (pixel).

    `x` points to the first of these channels; `stride` is the number of all channels of the map.
    """
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    value = tl.load(x + rows * stride + column, mask=rows < pixels, other=0.0)
    tl.store(out + rows * WIDTH + column, value, mask=rows < pixels)


def last_channels(x: Tensor, count: int) -> Tensor:
    """Return a copy of the last `count` channels of a channels-last map."""
    out = empty_channels_last(x, (x.shape[0], count, *x.shape[2:]))
    pixels, rows = out.numel() // count, 4096 // count
    _last_channels_kernel[(triton.cdiv(pixels, rows),)](
        x[:, x.shape[1] - count :], out, pixels, x.shape[1], WIDTH=count, ROWS=rows, num_warps=4
    )
    return out


class _Block(torch.autograd.Function):
    """Residual block. The skip connection is the input or, if `ws` is not None, conv1x1(relu(norm(input))).

    The arguments w1, w2, w3 and ws are the weights of the convolutions; g and b are the weight (gain) and
    bias of the norm before each convolution. In `forward`, a1 to a3 are the activations after the norms, and
    s1 to s3 the statistics of the norms.
    """

    @staticmethod
    def forward(ctx, x, groups, pooled, w1, w2, w3, g1, b1, g2, b2, g3, b3, ws=None, gs=None, bs=None):
        a1, s1 = norm.forward(x, g1, b1, groups)
        first = _conv_forward(a1, w1)
        a2, s2 = norm.forward(first, g2, b2, groups)
        second = _conv_forward(a2, w2)
        a3, s3 = norm.forward(second, g3, b3, groups)
        third = _conv_forward(a3, w3)
        saved = [x, first, second, a1, a2, a3, s1, s2, s3, w1, w2, w3, g1, g2, g3, b1, b2, b3]
        ctx.groups, ctx.pooled, ctx.projected = groups, pooled, ws is not None
        skip = x
        if ws is not None:
            # Pooling commutes with a 1x1 convolution; pooling first makes the convolution cheaper.
            projected = norm.normalize_again(x, s1, gs, bs, pooled)
            skip = _conv_forward(projected, ws)
            saved += [projected, ws, gs, bs]
        ctx.save_for_backward(*saved)
        return concatenate_add(first, second, third, skip)

    @staticmethod
    def backward(ctx, dout):
        saved = ctx.saved_tensors
        inputs, activations, stats, weights, gains, biases = (saved[i : i + 3] for i in range(0, 18, 3))
        dout = dout.contiguous(memory_format=torch.channels_last)
        # One norm per convolution; the norm of the skip connection has the same input as the first norm.
        widths = [v.shape[1] for v in (*inputs, *inputs[: ctx.projected])]
        # `norm.backward` writes the gradients of weight, bias and `conv_bias` of each norm side by side.
        norm_gradients = dout.new_empty((len(dout), 3 * sum(widths)), dtype=torch.float32)
        parts = norm_gradients.split([3 * w for w in widths], dim=1)
        dskip, dskip_weights = dout, []
        if ctx.projected:
            projected, ws, gs, bs = saved[18:]
            dprojected, dws = _conv_gradients(dout, projected, ws)
            dskip = norm.backward(dprojected, inputs[0], stats[0], gs, bs, ctx.groups, parts[3])
            dskip_weights = [dws]
        half, quarter = weights[0].shape[0], weights[1].shape[0]
        residual = [dskip, dout[:, :half], dout[:, half : half + quarter]]
        gradient = last_channels(dout, quarter)
        if ctx.pooled:
            gradient = spread(gradient, 0.25)
        dweights: list[Tensor | None] = [None] * 3
        for i in (2, 1, 0):
            dactivation, dweights[i] = _conv_gradients(gradient, activations[i], weights[i])
            gradient = norm.backward(
                dactivation, inputs[i], stats[i], gains[i], biases[i], ctx.groups, parts[i], add=residual[i]
            )
        sums = norm_gradients.sum(dim=0).split([w for w in widths for _ in range(3)])
        # The convolutions have no bias, so the gradient of `conv_bias`, the third of each norm, is unused.
        used_sums = [s for i, s in enumerate(sums) if i % 3 < 2]
        gradients = [gradient, None, None, *dweights, *used_sums[:6], *dskip_weights, *used_sums[6:]]
        return *gradients, *[None] * (15 - len(gradients))


def block(
    x: Tensor, groups: int, weights: list[Tensor], norm_parameters: list[Tensor], pooled: bool = False
) -> Tensor:
    """Return the output of a residual block for a channels-last map [B, C, H, W].

    Args:
        x: the input.
        groups: norm groups.
        weights: weights of the three 3x3 convolutions, then of the skip convolution if there is one.
        norm_parameters: weight and bias of each norm, in the order of the convolutions.
        pooled: whether to average-pool the result 2x2; requires a skip convolution.
    """
    parameters = (*weights[:3], *norm_parameters[:6], *weights[3:], *norm_parameters[6:])
    return _Block.apply(x, groups, pooled, *parameters)
