"""Find out which way objects face, to turn the images so that all objects face the same way.

Animals seen from above face any direction. Rotated copies of an image are compared with a template, which is
the mean of the features of objects that face the same way. The image must be turned by the rotation that
matches best. The template is found without labels, as in K-means with one cluster. Two steps alternate: each
image is rotated to match the template best, then the template becomes the mean of the rotated images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Features
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.orientation import rotation_matrices
from selfmark.images.augment import warp_images


class DirectionTemplate(NamedTuple):
    """Features of objects that face the common direction.

    template:    [D, g, g] mean of the features after the mean over all images and rotations was subtracted;
                 scaled to unit length
    offset:      angle in radians that is added to all rotations. It makes the common direction vertical, so
                 that mirroring a turned image does not change the direction of its object
    consistency: how well the directions of images and of their mirror images agree, from 0 (unrelated) to 1
    """

    template: Tensor
    offset: Tensor
    consistency: float


def describe_rotations(encoder: Encoder, images: Tensor, settings: Features) -> Tensor:
    """Reduce the images, rotate them, and describe every copy on a coarse grid.

    Args:
        encoder: pretrained network.
        images: [B, 3, S, S] in 0..1.
        settings: number of rotations R, size of the reduced images, side g of the grid.

    Returns:
        [B, R, D, g, g] float32; copy r is rotated by r/R of a full turn.
    """
    reduction, pooling = choose_reductions(images.shape[-1], encoder.size_multiple, settings)
    small = F.avg_pool2d(images, reduction)
    views = [
        F.avg_pool2d(encoder.describe(copy).float(), pooling)
        for copy in _rotated_copies(small, settings.rotations, "border")
    ]
    return torch.stack(views, dim=1)


def _rotated_copies(maps: Tensor, rotations: int, padding: Literal["border", "zeros"]) -> Iterator[Tensor]:
    """Yield maps [B, C, S, S] rotated by 0/R, 1/R, 2/R, ... of a full turn, where R is `rotations`."""
    for number in range(rotations):
        angle = maps.new_full((len(maps),), 2 * math.pi * number / rotations)
        yield warp_images(maps, rotation_matrices(angle, maps.shape[-1]), padding)


def choose_reductions(size: int, size_multiple: int, settings: Features) -> tuple[int, int]:
    """Return the factors by which images of `size` pixels, and then their feature maps, are reduced.

    The first factor is 1 if the encoder cannot divide the reduced images into cells.
    """
    reduction = max(1, size // settings.direction_size)
    if size % (reduction * size_multiple):
        reduction = 1
    return reduction, max(1, size // (reduction * CELL * settings.direction_cells))


def template_shape(encoder: Encoder, size: int, settings: Features) -> tuple[int, int, int]:
    """Return the shape [D, g, g] of the template for images of `size` pixels."""
    reduction, pooling = choose_reductions(size, encoder.size_multiple, settings)
    grid = size // reduction // CELL // pooling
    return encoder.part_channels, grid, grid


def rotate_mask(mask: Tensor, settings: Features, grid: int) -> Tensor:
    """Rotate the mask of the object; return the fraction of each cell that belongs to the object.

    Args:
        mask: [N, h, w] bool, cells of the object.
        settings: number of rotations R.
        grid: side g of the grid of the rotated copies.

    Returns:
        [N, R, 1, g, g] between 0 and 1.
    """
    copies = _rotated_copies(mask[:, None].float(), settings.rotations, "zeros")
    return torch.stack([F.adaptive_avg_pool2d(copy, grid) for copy in copies], dim=1)


def fit_template(
    views: Tensor, mirrored: Tensor, settings: Features, generator: torch.Generator
) -> DirectionTemplate:
    """Find the template with the highest mean similarity to the images and mirror images.

    Each image counts with the rotation that matches the template best.

    Args:
        views: [N, R, D, g, g] features of rotated images, see `describe_rotations`. They must be 0 in the
            background; otherwise the template may match, for example, the walls of a cage.
        mirrored: [N, R, D, g, g] features of the rotated mirror images.
        settings: number of initial templates, and maximum number of iterations for each.
        generator: chooses the initial templates.
    """
    window = _build_disk_mask(views.shape[-1], views.device)
    all_views = torch.cat([views, mirrored]) * window
    centered = (all_views - all_views.mean(dim=(0, 1))).flatten(2)
    centered = F.normalize(centered, dim=-1)  # [2 N, R, D g g]
    rows = torch.arange(len(centered), device=views.device)
    starts = torch.randperm(len(centered), generator=generator, device=generator.device)
    best_template, best_similarity = centered[0, 0], torch.tensor(-torch.inf, device=views.device)
    for start in starts[: settings.direction_starts].tolist():
        template, chosen = centered[start, 0], torch.full_like(rows, -1)
        for _ in range(settings.iterations):
            previous_choice, chosen = chosen, (centered @ template).argmax(dim=1)
            if torch.equal(previous_choice, chosen):
                break
            template = F.normalize(centered[rows, chosen].mean(dim=0), dim=0)
        similarity = (centered @ template).amax(dim=1).mean()
        if similarity > best_similarity:
            best_template, best_similarity = template, similarity
    best_template = best_template.view(views.shape[2:])
    plain, flipped = match_template(all_views, best_template).chunk(2)
    # Suppose that an image is turned by `plain`, so that it matches the template, and is then mirrored. To
    # match the template again, the mirrored image must be turned by `plain + flipped`. This angle becomes 0
    # on average if half of its mean is subtracted from all rotations.
    mean_turn = torch.polar(torch.ones_like(plain), plain + flipped).mean()
    return DirectionTemplate(best_template, -mean_turn.angle() / 2, float(mean_turn.abs()))


def match_template(views: Tensor, template: Tensor) -> Tensor:
    """Return the angle in radians, [N], at which each image matches the template best.

    Args:
        views: [N, R, D, g, g] features of rotated images, see `describe_rotations`.
        template: [D, g, g].
    """
    return best_angles(views.float().flatten(2) @ template.float().flatten())


def best_angles(similarity: Tensor) -> Tensor:
    """Return the angle of the highest similarity in radians, [N], interpolated by a parabola.

    Args:
        similarity: [N, R]; column r belongs to r/R of a full turn.
    """
    rotations = similarity.shape[1]
    if rotations < 3:
        return similarity.argmax(dim=1) * (2 * math.pi / rotations)
    peak = similarity.argmax(dim=1, keepdim=True)
    before, at_peak, after = (similarity.gather(1, (peak + step) % rotations)[:, 0] for step in (-1, 0, 1))
    curvature = (2 * at_peak - before - after).clamp_min(1e-9)
    fraction = (0.5 * (after - before) / curvature).clamp(-0.5, 0.5)
    return (peak[:, 0] + fraction) * (2 * math.pi / rotations)


def _build_disk_mask(grid: int, device: torch.device) -> Tensor:
    """Return a mask [g, g] of the largest disk in the grid.

    The disk shows the same part of an image, however the image is rotated.
    """
    offset = torch.arange(grid, device=device) - (grid - 1) / 2
    return (offset.square()[:, None] + offset.square() <= (grid / 2) ** 2).float()
