"""Random deformations of images and points, on whatever device they are on, for a whole batch at once.

One affine matrix per image holds flip, scale, rotation and shift, so an image is resampled once and its
points go through the very same matrix. Matrices act on (x, y, 1) in pixels and lead from the given image to
the augmented one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Augment


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) * (high - low) + low


def _chance(count: int, share: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) < share


def random_affine(count: int, size: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """Matrices [count, 2, 3]: scale per axis, then rotate, about the centre, then shift."""
    angle = _uniform(count, -math.radians(settings.rotation), math.radians(settings.rotation), generator)
    scale_x = _uniform(count, *settings.scale, generator)
    scale_y = _uniform(count, *settings.scale, generator)
    shift = torch.stack(
        [_uniform(count, -settings.shift, settings.shift, generator) * size for _ in range(2)], dim=-1
    )
    cos, sin = torch.cos(angle), torch.sin(angle)
    linear = torch.stack(
        [torch.stack([cos * scale_x, -sin * scale_y], -1), torch.stack([sin * scale_x, cos * scale_y], -1)],
        dim=-2,
    )
    centre = torch.full((2,), (size - 1) / 2, device=generator.device)
    offset = centre - linear @ centre + shift
    return torch.cat([linear, offset[..., None]], dim=-1)


def with_flip(matrix: Tensor, flip: Tensor, size: int) -> Tensor:
    """Matrices that first mirror the images where `flip` [B] says so (x to size-1-x), then do as before."""
    column = matrix[:, :, 0]
    mirrored = torch.stack([-column, matrix[:, :, 1], matrix[:, :, 2] + column * (size - 1)], dim=-1)
    return torch.where(flip[:, None, None], mirrored, matrix)


def move_points(xy: Tensor, matrix: Tensor) -> Tensor:
    """Points [B, P, 2] through matrices [B, 2, 3]."""
    return xy @ matrix[:, :, :2].transpose(1, 2) + matrix[:, None, :, 2]


def inside(xy: Tensor, size: int) -> Tensor:
    """Mask [B, P] of the points that lie on the image."""
    return ((xy > -0.5) & (xy < size - 0.5)).all(dim=-1)


def invert(matrix: Tensor) -> Tensor:
    """The inverse [B, 2, 3] of each matrix."""
    linear = torch.linalg.inv_ex(matrix[:, :, :2]).inverse  # inv_ex: no host synchronisation
    return torch.cat([linear, -linear @ matrix[:, :, 2:]], dim=-1)


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Resample images [B, 3, S, S] so that a point at x lands at matrix * x; borders are repeated."""
    size = images.shape[-1]
    back = invert(matrix)
    # From pixels to grid_sample's coordinates, where -1 and 1 are the outer edges of the border pixels.
    to_grid = 2.0 / size
    linear = back[:, :, :2]
    offset = (back[:, :, 2] + 0.5 + linear.sum(dim=-1) * (size - 1) / 2) * to_grid - 1
    theta = torch.cat([linear, offset[..., None]], dim=-1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def photometric(images: Tensor, settings: Augment, generator: torch.Generator) -> Tensor:
    """Colour, contrast, brightness, blur and noise, drawn anew for each image [B, 3, S, S] in 0..1."""
    count = len(images)
    contrast = _uniform(count, *settings.contrast, generator)
    brightness = _uniform(count, *settings.brightness, generator)
    images = torch.einsum("bij,bjhw->bihw", _colour_matrix(count, settings, generator), images)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = (images - mean) * contrast[:, None, None, None] + mean * brightness[:, None, None, None]
    images = _blur(images, settings, generator)
    sigma = _uniform(count, 0.0, settings.noise, generator)[:, None, None, None]
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    return (images + sigma * noise).clamp(0, 1)


def _colour_matrix(count: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """[count, 3, 3]: hue is a turn about the grey axis, saturation a stretch away from it."""
    chosen = _chance(count, settings.colour_share, generator)
    hue = _uniform(count, -math.radians(settings.hue), math.radians(settings.hue), generator) * chosen
    stretch = torch.where(chosen, _uniform(count, *settings.saturation, generator), 1.0)
    device = generator.device
    grey = torch.full((3, 3), 1 / 3, device=device)
    cross = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], device=device) / math.sqrt(3)
    around = torch.eye(3, device=device) - grey
    turn = torch.cos(hue)[:, None, None] * around + torch.sin(hue)[:, None, None] * cross
    return grey + stretch[:, None, None] * turn


def _blur(images: Tensor, settings: Augment, generator: torch.Generator) -> Tensor:
    """A Gaussian of its own width for each chosen image, separable, 5 taps; the others get a delta."""
    count, channels, size, _ = images.shape
    sigma = _uniform(count, *settings.blur_sigma, generator)
    chosen = _chance(count, settings.blur_share, generator)
    taps = torch.arange(-2, 3, device=images.device)
    kernel = torch.exp(-(taps**2) / (2 * sigma[:, None] ** 2))
    kernel = torch.where(chosen[:, None], kernel, (taps == 0).to(kernel.dtype))
    kernel = (kernel / kernel.sum(dim=1, keepdim=True)).repeat_interleave(channels, dim=0)
    flat = F.pad(images.reshape(1, count * channels, size, size), (2, 2, 2, 2), mode="replicate")
    flat = F.conv2d(flat, kernel[:, None, None, :], groups=count * channels)
    flat = F.conv2d(flat, kernel[:, None, :, None], groups=count * channels)
    return flat.reshape(images.shape)


def cut_out(images: Tensor, side: int, share: float, generator: torch.Generator) -> Tensor:
    """Grey out a random square in a share of the images (Stage 2)."""
    count, _, size, _ = images.shape
    chosen = _chance(count, share, generator)
    corner = torch.stack([_uniform(count, 0, max(size - side, 1), generator) for _ in range(2)], dim=-1)
    line = torch.arange(size, device=images.device)
    within = (line >= corner[..., None]) & (line < corner[..., None] + side)  # [B, 2, S]
    square = within[:, 1, :, None] & within[:, 0, None, :] & chosen[:, None, None]
    return images.masked_fill(square[:, None], 0.5)
