"""Augment the images of a training batch: warp them by given matrices and change their colors at random."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from selfmark.config import Augment
from selfmark.images.augment import ColorChanges, random_color_changes, random_noise
from selfmark.model.backend import AugmentOps
from selfmark.train.batch_plan import BatchSlice


def make_views(
    pixels: Tensor,
    matrix: Tensor,
    settings: Augment,
    generator: torch.Generator,
    part: BatchSlice,
    augmentation: AugmentOps,
) -> Tensor:
    """Return augmented views [B, 3, S, S] float32 in 0..1.

    Args:
        pixels: [B, 3, S, S] uint8, this process's `part` of a batch.
        matrix: [B, 2, 3], affine matrices that map pixels of the images to pixels of the views.
        settings: ranges of the color changes, and how to fill the area outside the images.
        generator: source of the random numbers.
        part: position of these rows in the whole batch.
        augmentation: implementation of the image augmentation.
    """
    num_sides = len(pixels) // part.count  # images per row of the batch: 2 for pairs, otherwise 1
    drawn = random_color_changes(num_sides * part.total, settings, generator)
    changes = ColorChanges(**{field.name: part.take(getattr(drawn, field.name)) for field in fields(drawn)})
    noise = part.take(random_noise(num_sides * part.total, pixels.shape[-1], generator))
    return augmentation.augment(pixels, matrix, changes, noise, settings.border)
