"""The pixels of a training batch: moved by given matrices, colors changed at random."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from selfmark.config import Augment
from selfmark.images.augment import ColorChanges, random_color_changes, random_noise
from selfmark.model.operations import Operations
from selfmark.train.batch_plan import BatchSlice


def make_views(
    pixels: Tensor,
    matrix: Tensor,
    settings: Augment,
    generator: torch.Generator,
    part: BatchSlice,
    operations: Operations,
) -> Tensor:
    """Images [B, 3, S, S] uint8, this process's `part` of a batch, through matrices [B, 2, 3]."""
    views = len(pixels) // part.count
    drawn = random_color_changes(views * part.whole, settings, generator)
    changes = ColorChanges(**{field.name: part.of(getattr(drawn, field.name)) for field in fields(drawn)})
    noise = part.of(random_noise(views * part.whole, pixels.shape[-1], generator))
    return operations.deform(pixels, matrix, changes, noise)
