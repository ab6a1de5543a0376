"""Random deformations of images and points, on whatever device they are on, for a whole batch at once.

One affine matrix per image holds flip, scale, rotation and shift, so an image is resampled once and its
points go through the very same matrix. Matrices act on (x, y, 1) in pixels and lead from the given image to
the augmented one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Augment


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) * (high - low) + low


def _chance(count: int, share: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) < share


def random_affine(count: int, size: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """Matrices [count, 2, 3]: scale per axis, then rotate, about the center, then shift."""
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
    center = torch.full((2,), (size - 1) / 2, device=generator.device)
    offset = center - linear @ center + shift
    return torch.cat([linear, offset[..., None]], dim=-1)


def with_flip(matrix: Tensor, flip: Tensor, size: int) -> Tensor:
    """Matrices that first mirror the images where `flip` [B] says so (x to size-1-x), then do as before."""
    column = matrix[:, :, 0]
    mirrored = torch.stack([-column, matrix[:, :, 1], matrix[:, :, 2] + column * (size - 1)], dim=-1)
    return torch.where(flip[:, None, None], mirrored, matrix)


def move_points(xy: Tensor, matrix: Tensor) -> Tensor:
    """Points [B, P, 2] through matrices [B, 2, 3]."""
    return xy @ matrix[:, :, :2].transpose(1, 2) + matrix[:, None, :, 2]


def points_inside(xy: Tensor, size: int) -> Tensor:
    """Mask [B, P] of the points that lie on the image."""
    return ((xy > -0.5) & (xy < size - 0.5)).all(dim=-1)


def invert_affine(matrix: Tensor) -> Tensor:
    """The inverse [B, 2, 3] of each matrix."""
    a, b, c, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 0], matrix[:, 1, 1]
    # By hand: library inverses cannot be recorded in a CUDA graph.
    linear = torch.stack([d, -b, -c, a], dim=-1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
    return torch.cat([linear, -linear @ matrix[:, :, 2:]], dim=-1)


def warp_images(images: Tensor, matrix: Tensor) -> Tensor:
    """Resample images [B, 3, S, S] so that a point at x lands at matrix * x; borders are repeated."""
    size = images.shape[-1]
    back = invert_affine(matrix)
    # From pixels to grid_sample's coordinates, where -1 and 1 are the outer edges of the border pixels.
    to_grid = 2.0 / size
    linear = back[:, :, :2]
    offset = (back[:, :, 2] + 0.5 + linear.sum(dim=-1) * (size - 1) / 2) * to_grid - 1
    theta = torch.cat([linear, offset[..., None]], dim=-1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


@dataclass(frozen=True)
class ColorChanges:
    """How the colors of B images change; `noise_sigma` is the strength of the noise that comes on top.

    color:      [B, 3, 3], acting on RGB
    contrast:    [B], factor on what differs from the image's mean
    brightness:  [B], factor on the mean
    taps:        [B, 5], one-dimensional blur; 0, 0, 1, 0, 0 for none
    noise_sigma: [B]
    """

    color: Tensor
    contrast: Tensor
    brightness: Tensor
    taps: Tensor
    noise_sigma: Tensor


def random_color_changes(count: int, settings: Augment, generator: torch.Generator) -> ColorChanges:
    """Changes for `count` images, drawn anew for each."""
    contrast = _uniform(count, *settings.contrast, generator)
    if settings.negative_fraction > 0:  # nothing is drawn for nothing: seeds keep their meaning
        contrast = torch.where(_chance(count, settings.negative_fraction, generator), -contrast, contrast)
    brightness = _uniform(count, *settings.brightness, generator)
    color = _color_matrix(count, settings, generator)
    taps = _blur_taps(count, settings, generator)
    return ColorChanges(color, contrast, brightness, taps, _uniform(count, 0.0, settings.noise, generator))


def random_noise(count: int, size: int, generator: torch.Generator) -> Tensor:
    """[count, 3, size, size] of deviation 1."""
    return torch.randn((count, 3, size, size), generator=generator, device=generator.device)


def apply_color_changes(images: Tensor, changes: ColorChanges, noise: Tensor) -> Tensor:
    """Color, contrast and brightness, blur, noise: images [B, 3, S, S] in 0..1 to images in 0..1."""
    images = torch.einsum("bij,bjhw->bihw", changes.color, images)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    contrast, brightness, sigma = (
        value[:, None, None, None] for value in (changes.contrast, changes.brightness, changes.noise_sigma)
    )
    images = (images - mean) * contrast + mean * brightness
    return (_blur(images, changes.taps) + sigma * noise).clamp(0, 1)


def augment_colors(images: Tensor, settings: Augment, generator: torch.Generator) -> Tensor:
    """Color, contrast, brightness, blur and noise, drawn anew for each image [B, 3, S, S] in 0..1."""
    count, size = len(images), images.shape[-1]
    changes = random_color_changes(count, settings, generator)
    return apply_color_changes(images, changes, random_noise(count, size, generator))


def _color_matrix(count: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """[count, 3, 3]: hue is a turn about the gray axis, saturation a stretch away from it."""
    chosen = _chance(count, settings.color_fraction, generator)
    hue = _uniform(count, -math.radians(settings.hue), math.radians(settings.hue), generator) * chosen
    stretch = torch.where(chosen, _uniform(count, *settings.saturation, generator), 1.0)
    device = generator.device
    gray = torch.full((3, 3), 1 / 3, device=device)
    third = torch.eye(3, device=device).roll(1, 0)  # red to green to blue: a turn by 120 degrees
    cross = (third - third.T) / math.sqrt(3)
    around = torch.eye(3, device=device) - gray
    turn = torch.cos(hue)[:, None, None] * around + torch.sin(hue)[:, None, None] * cross
    return gray + stretch[:, None, None] * turn


def _blur_taps(count: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """[count, 5]: a Gaussian of its own width for each chosen image; the others get a delta."""
    sigma = _uniform(count, *settings.blur_sigma, generator)
    chosen = _chance(count, settings.blur_fraction, generator)
    place = torch.arange(-2, 3, device=generator.device)
    taps = torch.exp(-(place**2) / (2 * sigma[:, None] ** 2))
    taps = torch.where(chosen[:, None], taps, (place == 0).to(taps.dtype))
    return taps / taps.sum(dim=1, keepdim=True)


def _blur(images: Tensor, taps: Tensor) -> Tensor:
    """Each image [B, C, S, S] by its own taps [B, 5], along rows and then columns; borders are repeated."""
    count, channels, size, _ = images.shape
    kernel = taps.repeat_interleave(channels, dim=0)
    flat = F.pad(images.reshape(1, count * channels, size, size), (2, 2, 2, 2), mode="replicate")
    flat = F.conv2d(flat, kernel[:, None, None, :], groups=count * channels)
    flat = F.conv2d(flat, kernel[:, None, :, None], groups=count * channels)
    return flat.reshape(images.shape)


def random_cutout(count: int, size: int, side: int, share: float, generator: torch.Generator) -> Tensor:
    """Masks [count, size, size] of a random square of that side in a share of the images (Stage 2)."""
    chosen = _chance(count, share, generator)
    corner = torch.stack([_uniform(count, 0, max(size - side, 1), generator) for _ in range(2)], dim=-1)
    line = torch.arange(size, device=generator.device)
    within = (line >= corner[..., None]) & (line < corner[..., None] + side)  # [B, 2, S]
    return within[:, 1, :, None] & within[:, 0, None, :] & chosen[:, None, None]


def fill_gray(images: Tensor, mask: Tensor) -> Tensor:
    """Images [B, 3, S, S], gray where the mask [B, S, S] is set."""
    return images.masked_fill(mask[:, None], 0.5)
