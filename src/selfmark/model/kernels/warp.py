"""Warp, recolor, blur and noise of a batch of images in two passes over the pixels.

The same numbers as `images.augment.warp` and `recolor`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from selfmark.images.augment import ColorChanges, invert_affine


@triton.jit
def _warp_color(pixels, back, color, out, partial, size, BLOCK: tl.constexpr):
    """Bilinear, borders repeated; each program also leaves the sum of its pixels for the image's mean."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    area = size * size
    pixel = part * BLOCK + tl.arange(0, BLOCK)
    live = pixel < area
    px, py = (pixel % size).to(tl.float32), (pixel // size).to(tl.float32)
    b = back + image * 6
    x = tl.load(b) * px + tl.load(b + 1) * py + tl.load(b + 2)
    y = tl.load(b + 3) * px + tl.load(b + 4) * py + tl.load(b + 5)
    x = tl.minimum(tl.maximum(x, 0.0), size - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), size - 1.0)
    left, top = tl.floor(x), tl.floor(y)
    fx, fy = x - left, y - top
    x0, y0 = left.to(tl.int32), top.to(tl.int32)
    x1, y1 = tl.minimum(x0 + 1, size - 1), tl.minimum(y0 + 1, size - 1)
    at = pixels + image * (3 * area)
    r, g, bl = 0.0, 0.0, 0.0
    for channel in tl.static_range(3):
        base = at + channel * area
        value = tl.load(base + y0 * size + x0, mask=live, other=0).to(tl.float32) * ((1 - fx) * (1 - fy))
        value += tl.load(base + y0 * size + x1, mask=live, other=0).to(tl.float32) * (fx * (1 - fy))
        value += tl.load(base + y1 * size + x0, mask=live, other=0).to(tl.float32) * ((1 - fx) * fy)
        value += tl.load(base + y1 * size + x1, mask=live, other=0).to(tl.float32) * (fx * fy)
        value = value / 255
        c = color + image * 9 + channel
        r += tl.load(c) * value
        g += tl.load(c + 3) * value
        bl += tl.load(c + 6) * value
    to = out + image * 3 * area + pixel
    tl.store(to, r, mask=live)
    tl.store(to + area, g, mask=live)
    tl.store(to + 2 * area, bl, mask=live)
    total = tl.sum(tl.where(live, r + g + bl, 0.0), 0)
    tl.store(partial + image * tl.num_programs(1) + part, total)


@triton.jit
def _blur_noise(planes, mean, contrast, brightness, taps, noise, sigma, out, size, BLOCK: tl.constexpr):
    """Contrast and brightness, 5x5 separable blur where its taps are not a delta, noise, clamp; NHWC out."""
    image, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    area = size * size
    pixel = part * BLOCK + tl.arange(0, BLOCK)
    live = pixel < area
    px, py = pixel % size, pixel // size
    middle, gain = tl.load(mean + image), tl.load(contrast + image)
    shift = middle * tl.load(brightness + image) - middle * gain
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


def deform(pixels: Tensor, matrix: Tensor, changes: ColorChanges, noise: Tensor) -> Tensor:
    """As `operations.Operations.deform`; the result is channels-last."""
    count, size, block = len(pixels), pixels.shape[-1], 1024
    parts = triton.cdiv(size * size, block)
    planes = torch.empty((count, 3, size, size), device=pixels.device)
    partial = torch.empty((count, parts), device=pixels.device)
    back, color, taps = (t.contiguous() for t in (invert_affine(matrix), changes.color, changes.taps))
    contrast, brightness, sigma = (
        t.contiguous() for t in (changes.contrast, changes.brightness, changes.noise_sigma)
    )
    _warp_color[(count, parts)](pixels.contiguous(), back, color, planes, partial, size, BLOCK=block)
    mean = partial.sum(dim=1) / (3 * size * size)
    out = torch.empty((count, 3, size, size), device=pixels.device, memory_format=torch.channels_last)
    _blur_noise[(count, parts)](
        planes, mean, contrast, brightness, taps, noise.contiguous(), sigma, out, size, BLOCK=block,
    )  # fmt: skip
    return out
