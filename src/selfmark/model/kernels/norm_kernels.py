"""Define the Triton kernels of `norm`: GroupNorm and ReLU over channels-last maps, forward and backward.

A program works on one image, on a slab of channels that consists of whole groups, and on a chunk of rows. A
row is one pixel, a column one channel. Kernels that compute sums go from the last image to the first; kernels
that use the sums go from the first to the last. Each kernel therefore starts with data that the previous
kernel left in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from selfmark.model.kernels.launch import Recordable


@triton.jit
def _load_tile(pointer, rows, stop, stride, columns):
    """Load rows x columns of a map as float32; rows from `stop` on are zero."""
    at = rows.to(tl.int64)[:, None] * stride + columns[None, :]
    return tl.load(pointer + at, mask=(rows < stop)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _load_spread_tile(pointer, rows, stop, stride, columns, width):
    """Load a tile of a map of half the size; a quarter of each pixel goes to each pixel of a 2x2 square."""
    source = ((rows // width) // 2) * (width // 2) + (rows % width) // 2
    at = source.to(tl.int64)[:, None] * stride + columns[None, :]
    return 0.25 * tl.load(pointer + at, mask=(rows < stop)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _sum_over_group(value, SLAB: tl.constexpr, GROUP: tl.constexpr):
    """Return, for each channel, the sum over the channels of its group."""
    total = tl.sum(tl.reshape(value, [SLAB // GROUP, GROUP]), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], [SLAB // GROUP, GROUP]), [SLAB])


@triton.jit
def _add_chunks(partial, chunks, columns, channels, CHUNKS: tl.constexpr):
    """Add up the sums [2, channels] of all chunks and return them as two vectors."""
    chunk = tl.arange(0, CHUNKS)
    at = chunk[:, None] * (2 * channels) + columns[None, :]
    within = (chunk < chunks)[:, None]
    first_sum = tl.sum(tl.load(partial + at, mask=within, other=0.0), 0)
    second_sum = tl.sum(tl.load(partial + at + channels, mask=within, other=0.0), 0)
    return first_sum, second_sum


@triton.jit
def _forward_sums(x, first, stop, channels, columns, ROWS: tl.constexpr, SLAB: tl.constexpr):
    """Return the sum and the sum of squares of each channel over rows `first` to `stop` - 1."""
    total = tl.zeros([ROWS, SLAB], tl.float32)
    squares = tl.zeros([ROWS, SLAB], tl.float32)
    for start in range(first, stop, ROWS):
        value = _load_tile(x, start + tl.arange(0, ROWS), stop, channels, columns)
        total += value
        squares += value * value
    return tl.sum(total, 0), tl.sum(squares, 0)


@Recordable
@triton.jit
def forward_partial(x, partial, area, channels, chunk_rows, ROWS: tl.constexpr, SLAB: tl.constexpr):
    """Write the sum and the sum of squares of each channel over a chunk of rows."""
    image = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)  # the image written last is cached
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    columns = tl.program_id(0) * SLAB + tl.arange(0, SLAB)
    first = chunk * chunk_rows
    stop = tl.minimum(first + chunk_rows, area)
    total, squares = _forward_sums(x + image * area * channels, first, stop, channels, columns, ROWS, SLAB)
    out = partial + (image * chunks + chunk) * 2 * channels + columns
    tl.store(out, total)
    tl.store(out + channels, squares)


@Recordable
@triton.jit
def forward_apply(
    x, partial, conv_bias, weight, bias, y, stats, area, channels, chunk_rows, eps, ROWS: tl.constexpr,
    SLAB: tl.constexpr, GROUP: tl.constexpr, CHUNKS: tl.constexpr, HAS_CONV_BIAS: tl.constexpr,
):  # fmt: skip
    """Write relu(group_norm(x + conv_bias)); the first chunk also writes the statistics."""
    image, chunk, chunks = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    columns = tl.program_id(0) * SLAB + tl.arange(0, SLAB)
    first = chunk * chunk_rows
    stop = tl.minimum(first + chunk_rows, area)
    x += image * area * channels
    y += image * area * channels
    if CHUNKS == 1:
        total, squares = _forward_sums(x, first, stop, channels, columns, ROWS, SLAB)
    else:
        total, squares = _add_chunks(
            partial + image * chunks * 2 * channels, chunks, columns, channels, CHUNKS
        )
    count = area * GROUP
    added = tl.zeros([SLAB], tl.float32)
    x_total = total
    if HAS_CONV_BIAS:  # derive the sums of x + conv_bias from those of x
        added = tl.load(conv_bias + columns).to(tl.float32)
        squares += added * (2 * total + area * added)
        total += area * added
    mean = _sum_over_group(total, SLAB, GROUP) / count
    variance = tl.maximum(_sum_over_group(squares, SLAB, GROUP) / count - mean * mean, 0.0)
    rstd = 1 / tl.sqrt(variance + eps)
    mean -= added
    if chunk == 0:
        out = stats + image * 3 * channels + columns
        tl.store(out, mean)
        tl.store(out + channels, rstd)
        tl.store(out + 2 * channels, (x_total - area * mean) * rstd)
    scale = rstd * tl.load(weight + columns)
    shift = tl.load(bias + columns) - mean * scale
    for start in range(first, stop, ROWS):
        rows = start + tl.arange(0, ROWS)
        value = _load_tile(x, rows, stop, channels, columns) * scale[None, :] + shift[None, :]
        at = rows.to(tl.int64)[:, None] * channels + columns[None, :]
        tl.store(y + at, tl.maximum(value, 0.0).to(y.dtype.element_ty), mask=(rows < stop)[:, None])


@triton.jit
def _load_activated_tile(x, rows, stop, channels, columns, scale, shift):
    """Load a tile and return relu(scale * tile + shift)."""
    value = _load_tile(x, rows, stop, channels, columns) * scale[None, :] + shift[None, :]
    return tl.maximum(value, 0.0)


@Recordable
@triton.jit
def activate(
    x, stats, weight, bias, y, area, channels, chunk_rows, width, ROWS: tl.constexpr, SLAB: tl.constexpr,
    POOL: tl.constexpr,
):  # fmt: skip
    """Normalize with known statistics, apply ReLU and pool if POOL; `area` and `width` are those of y."""
    image = tl.program_id(2).to(tl.int64)
    columns = tl.program_id(0) * SLAB + tl.arange(0, SLAB)
    first = tl.program_id(1) * chunk_rows
    stop = tl.minimum(first + chunk_rows, area)
    stats += image * 3 * channels + columns
    scale = tl.load(stats + channels) * tl.load(weight + columns)
    shift = tl.load(bias + columns) - tl.load(stats) * scale
    y += image * area * channels
    x += image * (area * 4 if POOL else area) * channels
    for start in range(first, stop, ROWS):
        rows = start + tl.arange(0, ROWS)
        if POOL:
            corner, end = (rows // width) * (4 * width) + (rows % width) * 2, 4 * area
            value = _load_activated_tile(x, corner, end, channels, columns, scale, shift)
            value += _load_activated_tile(x, corner + 1, end, channels, columns, scale, shift)
            value += _load_activated_tile(x, corner + 2 * width, end, channels, columns, scale, shift)
            value += _load_activated_tile(x, corner + 2 * width + 1, end, channels, columns, scale, shift)
            value *= 0.25
        else:
            value = _load_activated_tile(x, rows, stop, channels, columns, scale, shift)
        at = rows.to(tl.int64)[:, None] * channels + columns[None, :]
        tl.store(y + at, value.to(y.dtype.element_ty), mask=(rows < stop)[:, None])


@triton.jit
def _backward_terms(
    x, dy, rows, stop, channels, columns, mean, rstd, weight, bias, width, HALVED: tl.constexpr
):
    """Return the gradient at the input of the ReLU, and the normalized input of the norm."""
    normalized = (_load_tile(x, rows, stop, channels, columns) - mean[None, :]) * rstd[None, :]
    if HALVED:
        gradient = _load_spread_tile(dy, rows, stop, channels, columns, width)
    else:
        gradient = _load_tile(dy, rows, stop, channels, columns)
    return tl.where(normalized * weight[None, :] + bias[None, :] > 0, gradient, 0.0), normalized


@triton.jit
def _backward_sums(
    x, dy, mean, rstd, weight, bias, first, stop, channels, columns, width, ROWS: tl.constexpr,
    SLAB: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """Return the gradients of bias and weight, summed over rows `first` to `stop` - 1."""
    dbias = tl.zeros([ROWS, SLAB], tl.float32)
    dweight = tl.zeros([ROWS, SLAB], tl.float32)
    for start in range(first, stop, ROWS):
        rows = start + tl.arange(0, ROWS)
        gradient, normalized = _backward_terms(
            x, dy, rows, stop, channels, columns, mean, rstd, weight, bias, width, HALVED
        )
        dbias += gradient
        dweight += gradient * normalized
    return tl.sum(dbias, 0), tl.sum(dweight, 0)


@Recordable
@triton.jit
def backward_partial(
    x, dy, stats, weight_in, bias_in, partial, area, channels, chunk_rows, width,
    ROWS: tl.constexpr, SLAB: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """Write the sums of the gradient, and of gradient times normalized input, over a chunk of rows."""
    image = (tl.num_programs(2) - 1 - tl.program_id(2)).to(tl.int64)  # the image written last is cached
    chunk, chunks = tl.program_id(1), tl.num_programs(1)
    columns = tl.program_id(0) * SLAB + tl.arange(0, SLAB)
    first = chunk * chunk_rows
    stop = tl.minimum(first + chunk_rows, area)
    stats += image * 3 * channels + columns
    mean, rstd = tl.load(stats), tl.load(stats + channels)
    weight, bias = tl.load(weight_in + columns), tl.load(bias_in + columns)
    x += image * area * channels
    dy += image * (area // 4 if HALVED else area) * channels
    dbias, dweight = _backward_sums(
        x, dy, mean, rstd, weight, bias, first, stop, channels, columns, width, ROWS, SLAB, HALVED
    )
    out = partial + (image * chunks + chunk) * 2 * channels + columns
    tl.store(out, dbias)
    tl.store(out + channels, dweight)


@Recordable
@triton.jit
def backward_apply(
    x, dy, stats, weight_in, bias_in, partial, add, dx, gradients, area, channels, chunk_rows,
    width, add_stride, gradients_stride, ROWS: tl.constexpr, SLAB: tl.constexpr, GROUP: tl.constexpr,
    CHUNKS: tl.constexpr, HALVED: tl.constexpr, ADD: tl.constexpr, ADD_HALVED: tl.constexpr,
):  # fmt: skip
    """Write dx, plus `add` if ADD; the first chunk also writes `gradients`: of weight, bias, conv_bias."""
    image, chunk, chunks = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    columns = tl.program_id(0) * SLAB + tl.arange(0, SLAB)
    first = chunk * chunk_rows
    stop = tl.minimum(first + chunk_rows, area)
    stats += image * 3 * channels + columns
    mean, rstd = tl.load(stats), tl.load(stats + channels)
    weight, bias = tl.load(weight_in + columns), tl.load(bias_in + columns)
    x += image * area * channels
    dy += image * (area // 4 if HALVED else area) * channels
    dx += image * area * channels
    add += image * (area // 4 if ADD_HALVED else area) * add_stride
    if CHUNKS == 1:
        dbias, dweight = _backward_sums(
            x, dy, mean, rstd, weight, bias, first, stop, channels, columns, width, ROWS, SLAB, HALVED
        )
    else:
        dbias, dweight = _add_chunks(
            partial + image * chunks * 2 * channels, chunks, columns, channels, CHUNKS
        )
    count = area * GROUP
    mean_gradient = _sum_over_group(weight * dbias, SLAB, GROUP) / count
    mean_product = _sum_over_group(weight * dweight, SLAB, GROUP) / count
    if chunk == 0:
        out = gradients + image * gradients_stride + columns
        tl.store(out, dweight)
        tl.store(out + channels, dbias)
        dconv_bias = rstd * (
            weight * dbias - area * mean_gradient - mean_product * tl.load(stats + 2 * channels)
        )
        tl.store(out + 2 * channels, dconv_bias)
    for start in range(first, stop, ROWS):
        rows = start + tl.arange(0, ROWS)
        gradient, normalized = _backward_terms(
            x, dy, rows, stop, channels, columns, mean, rstd, weight, bias, width, HALVED
        )
        value = rstd[None, :] * (
            gradient * weight[None, :] - mean_gradient[None, :] - normalized * mean_product[None, :]
        )
        if ADD_HALVED:
            value += _load_spread_tile(add, rows, stop, add_stride, columns, width)
        elif ADD:
            value += _load_tile(add, rows, stop, add_stride, columns)
        at = rows.to(tl.int64)[:, None] * channels + columns[None, :]
        tl.store(dx + at, value.to(dx.dtype.element_ty), mask=(rows < stop)[:, None])
