"""Change light, sharpness and noise of a batch of views without moving any point.

Operations along rows or columns are products with a matrix as wide as the view. On a GPU this is much faster
than convolutions with a separate kernel for each view.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from training.keypoints.homography import draw_uniform
from training.keypoints.settings import Light

BLOCK = 8  # side of a compressed block, pixels
SIZES = 4  # number of different reduced resolutions in one batch


def relight(views: Tensor, light: Light, generator: torch.Generator, invert: Tensor | None = None) -> Tensor:
    """Change light, sharpness and noise of each view at random.

    Args:
        views: Views [B, 1, S, S] in 0..1.
        light: Ranges of the changes.
        generator: Random generator.
        invert: Mask [B] of views that are shown as photographic negatives.
    """

    def draw(low: float, high: float, count: int) -> Tensor:
        return draw_uniform((count,), low, high, generator)

    if invert is not None:
        views = torch.where(invert[:, None, None, None], 1 - views, views)
    views = _change_tone(views, light, generator)
    changes: tuple[tuple[float, Callable[[Tensor], Tensor]], ...] = (
        (light.field_fraction, lambda part: _change_lighting(part, light.field, generator)),
        (light.blur_fraction, lambda part: blur(part, draw(*light.blur, len(part)))),
        (light.streak_fraction, lambda part: _blur_motion(part, light.streak, generator)),
        (light.coarse_fraction, lambda part: _reduce_resolution(part, light)),
        (light.block_fraction, lambda part: compress(part, draw(0.01, light.block_step, len(part)))),
        (light.noise_fraction, lambda part: _add_noise(part, light.noise, generator)),
    )
    for fraction, change in changes:
        views = _apply_to_fraction(views, fraction, change, generator)
    return views.clamp(0, 1)


def _apply_to_fraction(
    views: Tensor, fraction: float, change: Callable[[Tensor], Tensor], generator: torch.Generator
) -> Tensor:
    """Apply a change to a random subset of the views.

    The subset has a fixed size, so that only its views need to be computed.
    """
    count = round(fraction * len(views))
    if count == 0:
        return views
    priority = torch.rand(len(views), generator=generator, device=views.device)
    rows = priority.topk(count).indices
    return views.index_copy(0, rows, change(views[rows]))


def _add_noise(views: Tensor, max_sigma: float, generator: torch.Generator) -> Tensor:
    sigma = draw_uniform((len(views), 1, 1, 1), 0, max_sigma, generator)
    return views + sigma * torch.randn(views.shape, generator=generator, device=views.device)


def _change_tone(views: Tensor, light: Light, generator: torch.Generator) -> Tensor:
    """Change gamma, contrast and brightness."""
    count = len(views)
    gamma = draw_uniform(
        (count, 1, 1, 1), math.log(light.gamma[0]), math.log(light.gamma[1]), generator
    ).exp()
    contrast = draw_uniform((count, 1, 1, 1), *light.contrast, generator)
    brightness = draw_uniform((count, 1, 1, 1), -light.brightness, light.brightness, generator)
    views = views.clamp(1e-4, 1) ** gamma
    mean = views.mean(dim=(1, 2, 3), keepdim=True)
    return ((views - mean) * contrast + mean + brightness).clamp(0, 1)


def _change_lighting(views: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Change the lighting smoothly across each view, by a random surface of 4 x 4 knots."""
    knots = draw_uniform((len(views), 1, 4, 4), -strength, strength, generator)
    surface = F.interpolate(knots, views.shape[-2:], mode="bicubic", align_corners=True)
    return (views * (1 + surface) + 0.3 * surface).clamp(0, 1)


def blur(views: Tensor, sigma: Tensor) -> Tensor:
    """Blur square views [B, C, S, S] with Gaussians of sigma [B] in pixels. Edges reflect as in OpenCV."""
    last = views.shape[-1] - 1
    steps = torch.arange(last + 1, device=views.device, dtype=views.dtype)
    row, column = steps[:, None], steps[None]
    exponent = -0.5 / sigma.clamp_min(1e-2)[:, None, None] ** 2

    def compute_weight(distance: Tensor) -> Tensor:
        return torch.exp(distance**2 * exponent)

    # Add the weights of each pixel's mirror images at both edges; edge pixels themselves are not mirrored.
    weights = compute_weight(row - column)
    weights = weights + compute_weight(row + column) * (column > 0)
    weights = weights + compute_weight(2 * last - row - column) * (column < last)
    weights = (weights / weights.sum(dim=2, keepdim=True))[:, None]
    return weights @ views @ weights.transpose(2, 3)


def _blur_motion(views: Tensor, max_length: float, generator: torch.Generator) -> Tensor:
    """Apply motion blur along a straight line of random direction, at most `max_length` pixels long."""
    count, _, height, width = views.shape
    radius = math.ceil(max_length / 2)
    steps = torch.arange(-radius, radius + 1, device=views.device, dtype=views.dtype)
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    angle = draw_uniform((count, 1, 1), 0, math.pi, generator)
    half_length = draw_uniform((count, 1, 1), 0.5, max_length / 2, generator)
    distance_along = (columns * angle.cos() + rows * angle.sin()).abs()
    distance_across = (rows * angle.cos() - columns * angle.sin()).abs()
    kernel = (half_length + 0.5 - distance_along).clamp(0, 1) * (1 - distance_across).clamp(0, 1)
    kernel = kernel / kernel.sum(dim=(1, 2), keepdim=True)
    # Views become channels, so that each has its own kernel.
    channels = views.reshape(1, count, height, width)
    padded = F.pad(channels, [radius] * 4, mode="reflect")
    return F.conv2d(padded, kernel[:, None], groups=count).reshape(views.shape)


def _reduce_resolution(views: Tensor, light: Light) -> Tensor:
    """Shrink and enlarge views. The views are in random order, and each quarter of them gets its own size."""
    side, result = views.shape[-1], []
    for part, group in enumerate(views.chunk(SIZES)):
        scale = light.coarse[0] + (light.coarse[1] - light.coarse[0]) * (part + 0.5) / SIZES
        reduced = F.interpolate(group, (round(side * scale),) * 2, mode="bilinear", antialias=True)
        result.append(F.interpolate(reduced, (side, side), mode="bicubic").clamp(0, 1))
    return torch.cat(result)


def compress(views: Tensor, step: Tensor) -> Tensor:
    """Add block artifacts by rounding the cosine transform of 8 x 8 blocks, as JPEG does.

    Args:
        views: Views [B, 1, S, S]; S is a multiple of 8.
        step: Rounding step [B] of the middle frequencies, for views in 0..1. Higher frequencies have larger
            steps.
    """
    index = torch.arange(BLOCK, device=views.device, dtype=views.dtype)
    cosines = torch.cos(math.pi * (index[None] + 0.5) * index[:, None] / BLOCK) * math.sqrt(2 / BLOCK)
    cosines[0] /= math.sqrt(2)
    blocks = views.shape[-1] // BLOCK
    transform = torch.kron(torch.eye(blocks, device=views.device, dtype=views.dtype), cosines)
    spectrum = transform @ views @ transform.T  # spectra of all blocks, in place of the blocks
    relative_step = (0.5 + (index[:, None] + index[None]) / 4).repeat(blocks, blocks)
    rounding_steps = step[:, None, None, None] * relative_step
    return (transform.T @ ((spectrum / rounding_steps).round() * rounding_steps) @ transform).clamp(0, 1)
