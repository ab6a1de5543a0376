"""Augment a batch of images and their points at random, on the device that holds them.

One affine matrix per image combines flip, scale, rotation and shift. The image is resampled once, and its
points are transformed by the same matrix. Matrices act on (x, y, 1) in pixels and map positions in the given
image to positions in the augmented one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Augment


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) * (high - low) + low


def _bernoulli(count: int, fraction: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) < fraction


def random_affine(count: int, size: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """Draw matrices [count, 2, 3] that scale each axis and rotate about the image center, then shift.

    Args:
        count: number of matrices.
        size: side of the images, pixels.
        settings: ranges of rotation (degrees), scale (factor) and shift (fraction of `size`).
        generator: random generator; the matrices are on its device.
    """
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


def prepend_flip(matrix: Tensor, flip: Tensor, size: int) -> Tensor:
    """Return matrices [B, 2, 3] that mirror the images where `flip` [B] is set, then apply `matrix`.

    Mirroring maps x to size - 1 - x.
    """
    column = matrix[:, :, 0]
    mirrored = torch.stack([-column, matrix[:, :, 1], matrix[:, :, 2] + column * (size - 1)], dim=-1)
    return torch.where(flip[:, None, None], mirrored, matrix)


def move_points(xy: Tensor, matrix: Tensor) -> Tensor:
    """Transform points [B, P, 2], pixels, by matrices [B, 2, 3]."""
    return xy @ matrix[:, :, :2].transpose(1, 2) + matrix[:, None, :, 2]


def points_inside(xy: Tensor, size: int) -> Tensor:
    """Return a mask [B, P] of the points [B, P, 2] that lie on an image of side `size`, pixels."""
    return ((xy > -0.5) & (xy < size - 0.5)).all(dim=-1)


def invert_affine(matrix: Tensor) -> Tensor:
    """Invert affine matrices [B, 2, 3]."""
    a, b, c, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 0], matrix[:, 1, 1]
    # The inverse is written out, because torch.linalg.inv cannot be captured in a CUDA graph.
    linear = torch.stack([d, -b, -c, a], dim=-1).view(-1, 2, 2) / (a * d - b * c)[:, None, None]
    return torch.cat([linear, -linear @ matrix[:, :, 2:]], dim=-1)


def warp_images(images: Tensor, matrix: Tensor, padding: Literal["border", "zeros"] = "border") -> Tensor:
    """Warp images [B, C, S, S] so that pixel p moves to `matrix` @ (p, 1).

    Args:
        images: [B, C, S, S].
        matrix: [B, 2, 3].
        padding: values outside the given images: "border" repeats the nearest border pixel, "zeros" is black.
    """
    size = images.shape[-1]
    inverse = invert_affine(matrix)
    # Convert pixels to the coordinates of grid_sample: -1 and 1 are the outer edges of the border pixels.
    to_grid = 2.0 / size
    linear = inverse[:, :, :2]
    offset = (inverse[:, :, 2] + 0.5 + linear.sum(dim=-1) * (size - 1) / 2) * to_grid - 1
    theta = torch.cat([linear, offset[..., None]], dim=-1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=False)


@dataclass(frozen=True)
class ColorChanges:
    """Color changes of B images, whose values are between 0 and 1.

    color:       [B, 3, 3], matrix that multiplies RGB
    contrast:    [B], factor on the difference from the image's mean
    brightness:  [B], factor on the image's mean
    taps:        [B, 5], one-dimensional blur kernel; 0, 0, 1, 0, 0 leaves the image as it is
    noise_sigma: [B], standard deviation of the added noise
    """

    color: Tensor
    contrast: Tensor
    brightness: Tensor
    taps: Tensor
    noise_sigma: Tensor


def random_color_changes(count: int, settings: Augment, generator: torch.Generator) -> ColorChanges:
    """Draw independent color changes for `count` images."""
    contrast = _uniform(count, *settings.contrast, generator)
    # If the fraction is 0, draw no random numbers, so that a seed gives the same changes as in versions of
    # selfmark without this setting.
    if settings.negative_fraction > 0:
        contrast = torch.where(_bernoulli(count, settings.negative_fraction, generator), -contrast, contrast)
    brightness = _uniform(count, *settings.brightness, generator)
    color = _random_color_matrix(count, settings, generator)
    taps = _random_blur_taps(count, settings, generator)
    noise_sigma = _uniform(count, 0.0, settings.noise, generator)
    if settings.noise_fraction < 1:  # If it is 1, draw no random numbers: see `negative_fraction` above.
        noise_sigma = noise_sigma * _bernoulli(count, settings.noise_fraction, generator)
    return ColorChanges(color, contrast, brightness, taps, noise_sigma)


def random_noise(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw Gaussian noise [count, 3, size, size] with standard deviation 1."""
    return torch.randn((count, 3, size, size), generator=generator, device=generator.device)


def apply_color_changes(images: Tensor, changes: ColorChanges, noise: Tensor) -> Tensor:
    """Apply color, contrast, brightness, blur and noise, in this order.

    Args:
        images: [B, 3, S, S], values in 0..1.
        changes: color changes of the B images.
        noise: [B, 3, S, S], standard deviation 1.

    Returns:
        Images [B, 3, S, S], clamped to 0..1.
    """
    images = torch.einsum("bij,bjhw->bihw", changes.color, images)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    contrast, brightness, sigma = (
        value[:, None, None, None] for value in (changes.contrast, changes.brightness, changes.noise_sigma)
    )
    images = (images - mean) * contrast + mean * brightness
    return (_blur(images, changes.taps) + sigma * noise).clamp(0, 1)


def augment_colors(images: Tensor, settings: Augment, generator: torch.Generator) -> Tensor:
    """Apply random color changes and noise to each of the images [B, 3, S, S], values in 0..1."""
    count, size = len(images), images.shape[-1]
    changes = random_color_changes(count, settings, generator)
    return apply_color_changes(images, changes, random_noise(count, size, generator))


def _random_color_matrix(count: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """Draw RGB matrices [count, 3, 3] that change hue and saturation.

    A rotation about the gray axis changes the hue. A factor on the distance from this axis changes the
    saturation.
    """
    chosen = _bernoulli(count, settings.color_fraction, generator)
    hue = _uniform(count, -math.radians(settings.hue), math.radians(settings.hue), generator) * chosen
    saturation = torch.where(chosen, _uniform(count, *settings.saturation, generator), 1.0)
    device = generator.device
    gray = torch.full((3, 3), 1 / 3, device=device)
    # Rodrigues' formula. A rotation by 120 degrees maps red to green and green to blue.
    rotation_120 = torch.eye(3, device=device).roll(1, 0)
    cross_product = (rotation_120 - rotation_120.T) / math.sqrt(3)
    perpendicular = torch.eye(3, device=device) - gray
    rotation = torch.cos(hue)[:, None, None] * perpendicular + torch.sin(hue)[:, None, None] * cross_product
    return gray + saturation[:, None, None] * rotation


def _random_blur_taps(count: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """Draw blur kernels [count, 5]: a Gaussian for a random subset of the images, no blur for the rest."""
    sigma = _uniform(count, *settings.blur_sigma, generator)
    chosen = _bernoulli(count, settings.blur_fraction, generator)
    offset = torch.arange(-2, 3, device=generator.device)
    taps = torch.exp(-(offset**2) / (2 * sigma[:, None] ** 2))
    taps = torch.where(chosen[:, None], taps, (offset == 0).to(taps.dtype))
    return taps / taps.sum(dim=1, keepdim=True)


def _blur(images: Tensor, taps: Tensor) -> Tensor:
    """Blur each image [B, C, S, S] with its kernel [B, 5] along both axes; border pixels are repeated."""
    count, channels, size, _ = images.shape
    kernel = taps.repeat_interleave(channels, dim=0)
    flat = F.pad(images.reshape(1, count * channels, size, size), (2, 2, 2, 2), mode="replicate")
    flat = F.conv2d(flat, kernel[:, None, None, :], groups=count * channels)
    flat = F.conv2d(flat, kernel[:, None, :, None], groups=count * channels)
    return flat.reshape(images.shape)


def random_cutout(count: int, size: int, side: int, fraction: float, generator: torch.Generator) -> Tensor:
    """Draw masks [count, size, size] of random squares to erase, for a fraction of the images (Stage 2).

    Args:
        count: number of images.
        size: side of the images, pixels.
        side: side of the squares, pixels.
        fraction: fraction of the images that get one square; the masks of the others are empty.
        generator: random generator; the masks are on its device.
    """
    chosen = _bernoulli(count, fraction, generator)
    corner = torch.stack([_uniform(count, 0, max(size - side, 1), generator) for _ in range(2)], dim=-1)
    line = torch.arange(size, device=generator.device)
    within = (line >= corner[..., None]) & (line < corner[..., None] + side)  # [count, 2, size]
    return within[:, 1, :, None] & within[:, 0, None, :] & chosen[:, None, None]


def erase(images: Tensor, mask: Tensor, brightness: float) -> Tensor:
    """Return images [B, 3, S, S] with the value `brightness`, 0..1, where the mask [B, S, S] is set."""
    return images.masked_fill(mask[:, None], brightness)
