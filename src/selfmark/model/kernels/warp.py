"""Warp images, change their colors, blur them and add noise, in two passes over the pixels.

Up to rounding, the result equals that of `warp_images` and `apply_color_changes` of `images.augment`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfmark.model.kernels.launch import Recordable

_PIXELS_PER_PROGRAM = 1024


@Recordable
@triton.jit
def _warp_kernel(pixels, inverse, color, out, partial, size, BLACK: tl.constexpr, BLOCK: tl.constexpr):
    """Warp bilinearly and multiply colors by a matrix; also write the sum of each program's pixels.

    Outside the image, pixels repeat the border or, if BLACK, are black. If BLACK, the image fades to
    black within one pixel outside its border, because the interpolation between four neighbors counts those
    outside as black.
    """
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    area = size * size
    pixel = part * BLOCK + tl.arange(0, BLOCK)
    live = pixel < area
    px, py = (pixel % size).to(tl.float32), (pixel // size).to(tl.float32)
    matrix = inverse + image * 6
    x = tl.load(matrix) * px + tl.load(matrix + 1) * py + tl.load(matrix + 2)
    y = tl.load(matrix + 3) * px + tl.load(matrix + 4) * py + tl.load(matrix + 5)
    weight = tl.full([BLOCK], 1.0, tl.float32)
    if BLACK:
        # This is the sum of the interpolation weights of those neighbors that are inside the image. It is a
        # product of one factor per axis.
        weight = tl.maximum(tl.minimum(tl.minimum(x + 1, size - x), 1.0), 0.0)
        weight *= tl.maximum(tl.minimum(tl.minimum(y + 1, size - y), 1.0), 0.0)
    x = tl.minimum(tl.maximum(x, 0.0), size - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), size - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    fx, fy = x - left, y - top
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    x1, y1 = tl.minimum(x0 + 1, size - 1), tl.minimum(y0 + 1, size - 1)
    at = pixels + image * (3 * area)
    red, green, blue = 0.0, 0.0, 0.0
    for channel in tl.static_range(3):
        base = at + channel * area
        value = tl.load(base + y0 * size + x0, mask=live, other=0).to(tl.float32) * ((1 - fx) * (1 - fy))
        value += tl.load(base + y0 * size + x1, mask=live, other=0).to(tl.float32) * (fx * (1 - fy))
        value += tl.load(base + y1 * size + x0, mask=live, other=0).to(tl.float32) * ((1 - fx) * fy)
        value += tl.load(base + y1 * size + x1, mask=live, other=0).to(tl.float32) * (fx * fy)
        value = value * weight / 255
        c = color + image * 9 + channel
        red += tl.load(c) * value
        green += tl.load(c + 3) * value
        blue += tl.load(c + 6) * value
    to = out + image * 3 * area + pixel
    tl.store(to, red, mask=live)
    tl.store(to + area, green, mask=live)
    tl.store(to + 2 * area, blue, mask=live)
    total = tl.sum(tl.where(live, red + green + blue, 0.0), 0)
    tl.store(partial + image * tl.num_programs(1) + part, total)


@Recordable
@triton.jit
def _blur_kernel(planes, mean, contrast, brightness, taps, noise, sigma, out, size, BLOCK: tl.constexpr):
    """Blur, change contrast and brightness, add noise and clamp to 0..1; write channels-last.

    There is no blur if the middle tap is 1.
    """
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    area = size * size
    pixel = part * BLOCK + tl.arange(0, BLOCK)
    live = pixel < area
    px, py = pixel % size, pixel // size
    image_mean, gain = tl.load(mean + image), tl.load(contrast + image)
    shift = image_mean * tl.load(brightness + image) - image_mean * gain
    strength = tl.load(sigma + image)
    center = tl.load(taps + image * 5 + 2)
    for channel in tl.static_range(3):
        base = planes + (image * 3 + channel) * area
        if center == 1.0:
            value = tl.load(base + pixel, mask=live, other=0.0)
        else:
            value = tl.zeros([BLOCK], tl.float32)
            for dy in tl.static_range(5):
                row = tl.minimum(tl.maximum(py + dy - 2, 0), size - 1) * size
                line = tl.zeros([BLOCK], tl.float32)
                for dx in tl.static_range(5):
                    column = tl.minimum(tl.maximum(px + dx - 2, 0), size - 1)
                    line += tl.load(taps + image * 5 + dx) * tl.load(
                        base + row + column, mask=live, other=0.0
                    )
                value += tl.load(taps + image * 5 + dy) * line
        value = value * gain + shift
        value += strength * tl.load(noise + (image * 3 + channel) * area + pixel, mask=live, other=0.0)
        value = tl.minimum(tl.maximum(value, 0.0), 1.0)
        tl.store(out + (image * area + pixel) * 3 + channel, value, mask=live)


def warp_and_mix_colors(
    pixels: Tensor, inverse: Tensor, color: Tensor, is_border_black: bool
) -> tuple[Tensor, Tensor]:
    """Warp images [B, 3, S, S] uint8 and multiply their colors by a matrix.

    Args:
        pixels: [B, 3, S, S] uint8.
        inverse: [B, 2, 3] from pixels of the result to pixels of the given image.
        color: [B, 3, 3], matrix applied to RGB.
        is_border_black: whether pixels outside the given images are black; otherwise, they repeat the
            border pixels.

    Returns:
        Images [B, 3, S, S] float32, where 1 is white, and the mean of each, [B].
    """
    count, size = len(pixels), pixels.shape[-1]
    parts = triton.cdiv(size * size, _PIXELS_PER_PROGRAM)
    planes = torch.empty((count, 3, size, size), device=pixels.device)
    partial = torch.empty((count, parts), device=pixels.device)
    _warp_kernel[(count, parts)](
        pixels.contiguous(),
        inverse.contiguous(),
        color.contiguous(),
        planes,
        partial,
        size,
        BLACK=is_border_black,
        BLOCK=_PIXELS_PER_PROGRAM,
    )
    return planes, partial.sum(dim=1) / (3 * size * size)


def blur_and_add_noise(
    planes: Tensor,
    mean: Tensor,
    contrast: Tensor,
    brightness: Tensor,
    taps: Tensor,
    noise: Tensor,
    noise_sigma: Tensor,
) -> Tensor:
    """Blur, change contrast and brightness, add noise, and clamp to 0..1.

    Args:
        planes: [B, 3, S, S] float32, where 1 is white.
        mean: [B], mean over the pixels and colors of each image.
        contrast: [B], factor on the difference from the mean.
        brightness: [B], factor on the mean.
        taps: [B, 5], one-dimensional blur kernel for both axes; its sum is 1.
        noise: [B, 3, S, S], standard normal.
        noise_sigma: [B], factor on the noise.

    Returns:
        [B, 3, S, S] float32 in 0..1, channels-last.
    """
    count, size = len(planes), planes.shape[-1]
    parts = triton.cdiv(size * size, _PIXELS_PER_PROGRAM)
    contrast, brightness, taps, noise, noise_sigma = (
        t.contiguous() for t in (contrast, brightness, taps, noise, noise_sigma)
    )
    out = torch.empty((count, 3, size, size), device=planes.device, memory_format=torch.channels_last)
    _blur_kernel[(count, parts)](
        planes, mean, contrast, brightness, taps, noise, noise_sigma, out, size, BLOCK=_PIXELS_PER_PROGRAM
    )
    return out
