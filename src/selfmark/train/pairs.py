"""Batches of image pairs for Stage 1: planned images, deformed on the training device with their points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.images.augment import move_points, points_inside, random_affine, with_flip
from selfmark.images.flow import CarriedPoints
from selfmark.model.operations import Operations
from selfmark.train.batch_plan import BatchSlice
from selfmark.train.point_table import PointTable
from selfmark.train.views import make_views


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
class PairSettings:
    """What pairs are made of in this phase.

    same_image: share of pairs made of one image twice; flip: mirror sides at random;
    flip_together: mirror both sides of a pair or neither (positives then need no mirrored labels)
    """

    same_image: float
    flip: bool
    flip_together: bool


def build_pair_batch(
    pixels: Tensor,
    planned: Tensor,
    table: PointTable,
    carried: CarriedPoints | None,
    recipe: PairSettings,
    config: Config,
    generator: torch.Generator,
    part: BatchSlice,
    operations: Operations,
) -> PairBatch:
    """Deform one batch and its points. Nothing here waits for the device.

    Args:
        pixels: [2B, 3, S, S] uint8, first sides then second sides.
        planned: [3, B] int64, rows `one`, `other` and `slot` of `plan.Planned`.
        part: which pairs of the batch these are.
    """
    size, device = config.images.size, generator.device
    one, other, slot = planned

    def flips() -> Tensor:
        share = 0.5 if recipe.flip else 0.0
        return part.of(torch.rand(part.whole, generator=generator, device=device) < share)

    flip_one = flips()
    flip_other = flip_one if recipe.flip_together else flips()
    if carried is not None:
        flip_other = torch.where(slot >= 0, flip_one, flip_other)
    images, flip = torch.cat([one, other]), torch.cat([flip_one, flip_other])
    target_xy, target_valid = table.xy[images], table.valid[images]
    xy, valid = target_xy, target_valid
    label = torch.where(flip[:, None], table.mirrored_label[images], table.label[images])
    if carried is not None:
        # A nearby frame: the same points, carried there by optical flow, so slot i matches slot i.
        frame = slot.clamp_min(0)
        near = (slot >= 0)[:, None]
        xy = torch.cat([table.xy[one], torch.where(near[..., None], carried.xy[one, frame], table.xy[other])])
        valid = torch.cat(
            [table.valid[one], torch.where(near, carried.valid[one, frame], table.valid[other])]
        )
        order = torch.arange(table.xy.shape[1], device=device)
        label = torch.where(near.repeat(2, 1), order, label)

    matrix = part.of(random_affine(2 * part.whole, size, config.augment, generator))
    matrix = with_flip(matrix, flip, size)
    moved, moved_target = move_points(xy, matrix), move_points(target_xy, matrix)
    return PairBatch(
        images=make_views(pixels, matrix, config.augment, generator, part, operations),
        target_xy=moved_target,
        target_valid=target_valid & points_inside(moved_target, size),
        xy=moved,
        valid=valid & points_inside(moved, size),
        label=label,
    )
