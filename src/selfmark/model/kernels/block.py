"""The hierarchical residual block as one differentiable operation on channels-last maps.

As one operation its backward pass can add the residual gradients where the norm's gradient is written, and
its forward pass writes the concatenation of the three convolutions and the skip at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfmark.model.kernels import norm
from selfmark.model.kernels.pool import empty, spread

_conv = torch.ops.aten.convolution.default
_conv_backward = torch.ops.aten.convolution_backward.default


@triton.jit
def _pieces(first, second, third, rows, column, live, HALF: tl.constexpr, QUARTER: tl.constexpr):
    total = tl.load(first + rows * HALF + column, mask=live & (column < HALF), other=0.0).to(tl.float32)
    middle = live & (column >= HALF) & (column < HALF + QUARTER)
    total += tl.load(second + rows * QUARTER + column - HALF, mask=middle, other=0.0).to(tl.float32)
    end = live & (column >= HALF + QUARTER)
    total += tl.load(third + rows * QUARTER + column - HALF - QUARTER, mask=end, other=0.0).to(tl.float32)
    return total


@triton.jit
def _join(
    first, second, third, skip, out, pixels, width, HALF: tl.constexpr, ROWS: tl.constexpr, POOL: tl.constexpr
):  # fmt: skip
    WIDTH: tl.constexpr = 2 * HALF
    QUARTER: tl.constexpr = HALF // 2
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    live = rows < pixels
    total = tl.load(skip + rows * WIDTH + column, mask=live, other=0.0).to(tl.float32)
    if POOL:  # `width` is that of the pooled map
        corner = (rows // width) * (4 * width) + (rows % width) * 2
        four = _pieces(first, second, third, corner, column, live, HALF, QUARTER)
        four += _pieces(first, second, third, corner + 1, column, live, HALF, QUARTER)
        four += _pieces(first, second, third, corner + 2 * width, column, live, HALF, QUARTER)
        four += _pieces(first, second, third, corner + 2 * width + 1, column, live, HALF, QUARTER)
        total += 0.25 * four
    else:
        total += _pieces(first, second, third, rows, column, live, HALF, QUARTER)
    tl.store(out + rows * WIDTH + column, total.to(out.dtype.element_ty), mask=live)


def join(first: Tensor, second: Tensor, third: Tensor, skip: Tensor) -> Tensor:
    """cat([first, second, third], 1) + skip, added in float32; pooled first if skip is half as large."""
    out = torch.empty_like(skip)
    pixels, half = skip.numel() // skip.shape[1], first.shape[1]
    rows = 4096 // (2 * half)
    _join[(triton.cdiv(pixels, rows),)](
        first, second, third, skip, out, pixels, skip.shape[3], HALF=half, ROWS=rows,
        POOL=skip.shape[3] < first.shape[3], num_warps=4,
    )  # fmt: skip
    return out


def _conv_forward(x: Tensor, weight: Tensor) -> Tensor:
    reach = weight.shape[-1] // 2
    return _conv(x, weight, None, [1, 1], [reach, reach], [1, 1], False, [0, 0], 1)


def _conv_gradients(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    reach = weight.shape[-1] // 2
    dx, dweight, _ = _conv_backward(
        dy, x, weight, None, [1, 1], [reach, reach], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return dx, dweight


@triton.jit
def _tail(x, out, pixels, stride, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    value = tl.load(x + rows * stride + column, mask=rows < pixels, other=0.0)
    tl.store(out + rows * WIDTH + column, value, mask=rows < pixels)


def last_channels(x: Tensor, count: int) -> Tensor:
    """A copy of the last `count` channels of a channels-last map."""
    out = empty(x, (x.shape[0], count, *x.shape[2:]))
    pixels, rows = out.numel() // count, 4096 // count
    _tail[(triton.cdiv(pixels, rows),)](
        x[:, x.shape[1] - count :], out, pixels, x.shape[1], WIDTH=count, ROWS=rows, num_warps=4
    )
    return out


class _Block(torch.autograd.Function):
    """Without skip weight the skip is the input itself, with it norm, ReLU and a 1x1 convolution."""

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
            # Pooling commutes with a 1x1 convolution and comes first, where there is less to do.
            across = norm.again(x, s1, gs, bs, pooled)
            skip = _conv_forward(across, ws)
            saved += [across, ws, gs, bs]
        ctx.save_for_backward(*saved)
        return join(first, second, third, skip)

    @staticmethod
    def backward(ctx, dout):
        saved = ctx.saved_tensors
        inputs, active, stats, weights, gains, biases = (saved[i : i + 3] for i in range(0, 18, 3))
        dout = dout.contiguous(memory_format=torch.channels_last)
        widths = [v.shape[1] for v in (*inputs, *inputs[: ctx.projected])]
        affine = dout.new_empty((len(dout), 3 * sum(widths)), dtype=torch.float32)
        parts = affine.split([3 * w for w in widths], dim=1)
        dskip, dprojection = dout, []
        if ctx.projected:
            across, ws, gs, bs = saved[18:]
            dacross, dws = _conv_gradients(dout, across, ws)
            dskip = norm.backward(dacross, inputs[0], stats[0], gs, bs, ctx.groups, parts[3])
            dprojection = [dws]
        half, quarter = weights[0].shape[0], weights[1].shape[0]
        straight = [dskip, dout[:, :half], dout[:, half : half + quarter]]
        flowing = last_channels(dout, quarter)
        if ctx.pooled:
            flowing = spread(flowing, 0.25)
        dweights: list[Tensor | None] = [None] * 3
        for i in (2, 1, 0):
            dactive, dweights[i] = _conv_gradients(flowing, active[i], weights[i])
            flowing = norm.backward(
                dactive, inputs[i], stats[i], gains[i], biases[i], ctx.groups, parts[i], add=straight[i]
            )
        sums = affine.sum(dim=0).split([w for w in widths for _ in range(3)])
        affines = [s for i, s in enumerate(sums) if i % 3 < 2]
        gradients = [flowing, None, None, *dweights, *affines[:6], *dprojection, *affines[6:]]
        return *gradients, *[None] * (15 - len(gradients))


def block(
    x: Tensor, groups: int, weights: list[Tensor], affine: list[Tensor], halved: bool = False
) -> Tensor:
    """weights: of the three 3x3 convolutions, and of the skip's if it has one; affine: of the norms, flat.

    halved: 2x2 average pooling of the result; only with a projected skip
    """
    return _Block.apply(x, groups, halved, *weights[:3], *affine[:6], *weights[3:], *affine[6:])
