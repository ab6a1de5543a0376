"""Build batches of image pairs for Stage 1: augment images and their points on the training device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.images.augment import move_points, points_inside, prepend_flip, random_affine
from selfmark.images.flow import PropagatedPoints
from selfmark.model.backend import AugmentOps
from selfmark.train.batch_plan import BatchSlice
from selfmark.train.point_table import PointTable
from selfmark.train.views import make_views


@dataclass(frozen=True)
class PairBatch:
    """2B augmented views of images with P point slots; rows b and B + b are the two views of pair b.

    images:       [2B, 3, S, S] float32 in 0..1
    target_xy:    [2B, P, 2] keypoints that the detector head must find, in network pixels
    target_valid: [2B, P] bool, slots that contain a keypoint inside the view
    xy:           [2B, P, 2] points whose descriptors are compared, in network pixels
    valid:        [2B, P] bool, slots that contain such a point inside the view
    label:        [2B, P] int64; points of the two views with equal labels are positive pairs, -1 matches
                  nothing
    """

    images: Tensor
    target_xy: Tensor
    target_valid: Tensor
    xy: Tensor
    valid: Tensor
    label: Tensor


@dataclass(frozen=True)
class PairSettings:
    """How the pairs of a phase are built.

    same_image_fraction: among the pairs that are not temporal, the fraction whose views show the same image
    flip:                mirror views at random
    flip_together:       mirror both views of a pair or neither; a mirrored pair uses the mirrored labels of
                         both views
    """

    same_image_fraction: float
    flip: bool
    flip_together: bool


@dataclass(frozen=True)
class PairSource:
    """Data from which the pairs of a phase are built.

    table:      points and pseudo-labels of all images
    settings:   how pairs are built
    propagated: points propagated to nearby frames by optical flow; None without temporal pairs
    """

    table: PointTable
    settings: PairSettings
    propagated: PropagatedPoints | None = None


def build_pair_batch(
    pixels: Tensor,
    planned: Tensor,
    source: PairSource,
    config: Config,
    generator: torch.Generator,
    part: BatchSlice,
    augmentation: AugmentOps,
) -> PairBatch:
    """Augment one batch of images and their points, without waiting for the device.

    Args:
        pixels: [2B, 3, S, S] uint8, the first images of all pairs, then the second images.
        planned: [3, B] int64, rows `first`, `second` and `slot` of `PlannedPairs`.
        source: points, labels and settings of the pairs.
        config: image size and augmentation.
        generator: source of the random numbers.
        part: position of these pairs in the whole batch.
        augmentation: implementation of the image augmentation.
    """
    size, device = config.images.size, generator.device
    table, settings, propagated = source.table, source.settings, source.propagated
    first, second, slot = planned

    def draw_flips() -> Tensor:
        probability = 0.5 if settings.flip else 0.0
        return part.take(torch.rand(part.total, generator=generator, device=device) < probability)

    flip_first = draw_flips()
    flip_second = flip_first if settings.flip_together else draw_flips()
    if propagated is not None:
        flip_second = torch.where(slot >= 0, flip_first, flip_second)
    images, flip = torch.cat([first, second]), torch.cat([flip_first, flip_second])
    target_xy, target_valid = table.xy[images], table.valid[images]
    xy, valid = target_xy, target_valid
    label = torch.where(flip[:, None], table.mirrored_label[images], table.label[images])
    if propagated is not None:
        # If the second image is a nearby frame, its point i is point i of the first image, propagated by
        # optical flow (Sec. 4.2 of the paper). Both points then have the label i.
        column = slot.clamp_min(0)
        is_near = (slot >= 0)[:, None]
        xy = torch.cat(
            [table.xy[first], torch.where(is_near[..., None], propagated.xy[first, column], table.xy[second])]
        )
        valid = torch.cat(
            [table.valid[first], torch.where(is_near, propagated.valid[first, column], table.valid[second])]
        )
        point_index = torch.arange(table.xy.shape[1], device=device)
        label = torch.where(is_near.repeat(2, 1), point_index, label)

    matrix = part.take(random_affine(2 * part.total, size, config.augment, generator))
    matrix = prepend_flip(matrix, flip, size)
    moved, moved_target = move_points(xy, matrix), move_points(target_xy, matrix)
    return PairBatch(
        images=make_views(pixels, matrix, config.augment, generator, part, augmentation),
        target_xy=moved_target,
        target_valid=target_valid & points_inside(moved_target, size),
        xy=moved,
        valid=valid & points_inside(moved, size),
        label=label,
    )
