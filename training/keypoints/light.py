"""Changes of light, sharpness and noise that leave every point where it is; all views at once.

Whatever works on lines of pixels is a product with a matrix as wide as the view, for on a GPU such products
cost nothing beside convolutions with a kernel for each view.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from training.keypoints.homography import uniform
from training.keypoints.settings import Light

BLOCK = 8  # side of a compressed block
SIZES = 4  # different losses of resolution in one batch


def relight(views: Tensor, light: Light, generator: torch.Generator, invert: Tensor | None = None) -> Tensor:
    """Views [B, 1, S, S] in 0..1 under other conditions, drawn for each view on its own.

    Args:
        invert: [B] bool, views to be shown as their negative.
    """

    def drawn(low: float, high: float, count: int) -> Tensor:
        return uniform((count,), low, high, generator)

    if invert is not None:
        views = torch.where(invert[:, None, None, None], 1 - views, views)
    views = _tone(views, light, generator)
    changes: tuple[tuple[float, Callable[[Tensor], Tensor]], ...] = (
        (light.field_share, lambda some: _field(some, light.field, generator)),
        (light.blur_share, lambda some: blur(some, drawn(*light.blur, len(some)))),
        (light.streak_share, lambda some: _streak(some, light.streak, generator)),
        (light.coarse_share, lambda some: _coarse(some, light)),
        (light.block_share, lambda some: compress(some, drawn(0.01, light.block_step, len(some)))),
        (light.noise_share, lambda some: _noise(some, light.noise, generator)),
    )
    for share, change in changes:
        views = _on_some(views, share, change, generator)
    return views.clamp(0, 1)


def _on_some(
    views: Tensor, share: float, change: Callable[[Tensor], Tensor], generator: torch.Generator
) -> Tensor:
    """Change a share of the views, drawn at random; always as many, so that nothing is computed in vain."""
    count = round(share * len(views))
    if count == 0:
        return views
    lots = torch.rand(len(views), generator=generator, device=views.device)
    chosen = lots.topk(count).indices
    return views.index_copy(0, chosen, change(views[chosen]))


def _noise(views: Tensor, largest: float, generator: torch.Generator) -> Tensor:
    sigma = uniform((len(views), 1, 1, 1), 0, largest, generator)
    return views + sigma * torch.randn(views.shape, generator=generator, device=views.device)


def _tone(views: Tensor, light: Light, generator: torch.Generator) -> Tensor:
    """Gamma, contrast and brightness."""
    count = len(views)
    gamma = uniform((count, 1, 1, 1), math.log(light.gamma[0]), math.log(light.gamma[1]), generator).exp()
    contrast = uniform((count, 1, 1, 1), *light.contrast, generator)
    brightness = uniform((count, 1, 1, 1), -light.brightness, light.brightness, generator)
    views = views.clamp(1e-4, 1) ** gamma
    mean = views.mean(dim=(1, 2, 3), keepdim=True)
    return ((views - mean) * contrast + mean + brightness).clamp(0, 1)


def _field(views: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Smooth lighting: brighter here, darker there, by a random surface of 4 x 4 knots."""
    knots = uniform((len(views), 1, 4, 4), -strength, strength, generator)
    surface = F.interpolate(knots, views.shape[-2:], mode="bicubic", align_corners=True)
    return (views * (1 + surface) + 0.3 * surface).clamp(0, 1)


def blur(views: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of square views with [B] sigmas in pixels, 0 for none; edges reflect, as in OpenCV."""
    last = views.shape[-1] - 1
    steps = torch.arange(last + 1, device=views.device, dtype=views.dtype)
    here, there = steps[:, None], steps[None]
    narrow = -0.5 / sigma.clamp_min(1e-2)[:, None, None] ** 2

    def weight(distance: Tensor) -> Tensor:
        return torch.exp(distance**2 * narrow)

    # A pixel also counts where the mirrors at both edges show it; the edge itself is shown by none.
    lines = weight(here - there)
    lines = lines + weight(here + there) * (there > 0) + weight(2 * last - here - there) * (there < last)
    lines = (lines / lines.sum(dim=2, keepdim=True))[:, None]
    return lines @ views @ lines.transpose(2, 3)


def _streak(views: Tensor, longest: float, generator: torch.Generator) -> Tensor:
    """Motion blur: a straight line of some pixels in a random direction."""
    count, _, height, width = views.shape
    reach = math.ceil(longest / 2)
    steps = torch.arange(-reach, reach + 1, device=views.device, dtype=views.dtype)
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    angle = uniform((count, 1, 1), 0, math.pi, generator)
    half = uniform((count, 1, 1), 0.5, longest / 2, generator)
    along = (columns * angle.cos() + rows * angle.sin()).abs()
    across = (rows * angle.cos() - columns * angle.sin()).abs()
    kernel = (half + 0.5 - along).clamp(0, 1) * (1 - across).clamp(0, 1)
    kernel = kernel / kernel.sum(dim=(1, 2), keepdim=True)
    together = views.reshape(1, count, height, width)  # views as channels, so that each has its kernel
    padded = F.pad(together, [reach] * 4, mode="reflect")
    return F.conv2d(padded, kernel[:, None], groups=count).reshape(views.shape)


def _coarse(views: Tensor, light: Light) -> Tensor:
    """Resolution lost: shrunk and enlarged again; sizes go round the batch, whose order means nothing."""
    side, result = views.shape[-1], []
    for part, group in enumerate(views.chunk(SIZES)):
        share = light.coarse[0] + (light.coarse[1] - light.coarse[0]) * (part + 0.5) / SIZES
        small = F.interpolate(group, (round(side * share),) * 2, mode="bilinear", antialias=True)
        result.append(F.interpolate(small, (side, side), mode="bicubic").clamp(0, 1))
    return torch.cat(result)


def compress(views: Tensor, step: Tensor) -> Tensor:
    """Block artifacts: coefficients of the cosine transform of 8 x 8 blocks rounded, as JPEG does.

    Args:
        views: [B, 1, S, S], S a multiple of 8.
        step: [B] rounding step of the middle frequencies. Higher frequencies are rounded more.
    """
    index = torch.arange(BLOCK, device=views.device, dtype=views.dtype)
    cosines = torch.cos(math.pi * (index[None] + 0.5) * index[:, None] / BLOCK) * math.sqrt(2 / BLOCK)
    cosines[0] /= math.sqrt(2)
    blocks = views.shape[-1] // BLOCK
    transform = torch.kron(torch.eye(blocks, device=views.device, dtype=views.dtype), cosines)
    spectrum = transform @ views @ transform.T  # of all blocks, each in its place
    coarser = (0.5 + (index[:, None] + index[None]) / 4).repeat(blocks, blocks)
    steps = step[:, None, None, None] * coarser
    return (transform.T @ ((spectrum / steps).round() * steps) @ transform).clamp(0, 1)
