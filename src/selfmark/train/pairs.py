"""Batches of image pairs for Stage 1, drawn and deformed entirely on the training device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.images.augment import inside, move_points, photometric, random_affine, warp, with_flip
from selfmark.images.flow import CarriedPoints
from selfmark.train.feed import PixelFeed
from selfmark.train.table import PointTable


@dataclass(frozen=True)
class PairBatch:
    """2B augmented views; rows b and B + b are the two sides of pair b.

    images:       [2B, 3, S, S] float32 in 0..1
    target_xy:    [2B, P, 2] where the detector should fire; target_valid [2B, P] bool
    xy:           [2B, P, 2] where descriptors are compared; valid [2B, P] bool
    label:        [2B, P] int64; points of the two sides with equal labels are positives, -1 matches nothing
    """

    images: Tensor
    target_xy: Tensor
    target_valid: Tensor
    xy: Tensor
    valid: Tensor
    label: Tensor


@dataclass(frozen=True)
class PairRecipe:
    """What pairs are made of in this phase.

    same_image: share of pairs made of one image twice; flip: mirror sides at random;
    flip_together: mirror both sides of a pair or neither (positives then need no mirrored labels)
    """

    same_image: float
    flip: bool
    flip_together: bool


def draw_pairs(
    feed: PixelFeed,
    table: PointTable,
    carried: CarriedPoints | None,
    recipe: PairRecipe,
    config: Config,
    generator: torch.Generator,
) -> PairBatch:
    """Draw one batch. Nothing here waits for the device."""
    pairs, size, device = config.runtime.batch, config.images.size, generator.device

    def chance(share: float) -> Tensor:
        return torch.rand(pairs, generator=generator, device=device) < share

    def some_images() -> Tensor:
        return table.usable[torch.randint(len(table.usable), (pairs,), generator=generator, device=device)]

    one = some_images()
    other = torch.where(chance(recipe.same_image), one, some_images())
    flip_one = chance(0.5 if recipe.flip else 0.0)
    flip_other = flip_one if recipe.flip_together else chance(0.5 if recipe.flip else 0.0)

    target_xy, target_valid = table.xy[torch.cat([one, other])], table.valid[torch.cat([one, other])]
    xy, valid = target_xy, target_valid
    label_one, label_other = _labels(table, one, flip_one), _labels(table, other, flip_other)
    if carried is not None:
        # A nearby frame: the same points, carried there by optical flow, so slot i matches slot i.
        slot = torch.randint(carried.neighbour.shape[1], (pairs,), generator=generator, device=device)
        near = carried.neighbour[one, slot]
        temporal = (other != one) & chance(config.temporal.share) & (near >= 0)
        other = torch.where(temporal, near, other)
        flip_other = torch.where(temporal, flip_one, flip_other)
        at = temporal[:, None]
        slots = torch.arange(table.xy.shape[1], device=device).expand(pairs, -1)
        target_xy, target_valid = table.xy[torch.cat([one, other])], table.valid[torch.cat([one, other])]
        xy = torch.cat([table.xy[one], torch.where(at[..., None], carried.xy[one, slot], table.xy[other])])
        valid = torch.cat([table.valid[one], torch.where(at, carried.valid[one, slot], table.valid[other])])
        label_one = torch.where(at, slots, label_one)
        label_other = torch.where(at, slots, _labels(table, other, flip_other))

    matrix = with_flip(
        random_affine(2 * pairs, size, config.augment, generator), torch.cat([flip_one, flip_other]), size
    )
    images = warp(feed.gather(torch.cat([one, other])), matrix)
    moved, moved_target = move_points(xy, matrix), move_points(target_xy, matrix)
    return PairBatch(
        images=photometric(images, config.augment, generator),
        target_xy=moved_target,
        target_valid=target_valid & inside(moved_target, size),
        xy=moved,
        valid=valid & inside(moved, size),
        label=torch.cat([label_one, label_other]),
    )


def _labels(table: PointTable, images: Tensor, flipped: Tensor) -> Tensor:
    return torch.where(flipped[:, None], table.mirrored_label[images], table.label[images])
