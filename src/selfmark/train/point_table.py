"""Store points in one padded row per image on the training device, so that a batch is a simple lookup."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfmark.errors import CollapsedTraining
from selfmark.points import Keypoints, LabeledPoints
from selfmark.wording import choose_form, describe_count


@dataclass(frozen=True)
class PointTable:
    """Points of N images in P slots per image; images with fewer points have empty slots.

    xy:             [N, P, 2] float32, network pixels
    valid:          [N, P] bool, slots that contain a point
    label:          [N, P] int64, pseudo-label; -1 for none
    mirrored_label: [N, P] int64, pseudo-label when the image is flipped; -1 for none
    usable:         [U] int64, images with enough points to train on
    """

    xy: Tensor
    valid: Tensor
    label: Tensor
    mirrored_label: Tensor
    usable: Tensor


def build_point_table(
    labeled: LabeledPoints, num_images: int, min_points: int, device: torch.device
) -> PointTable:
    """Arrange labeled points in padded rows; images with fewer than `min_points` points are not `usable`.

    Raises:
        CollapsedTraining: if fewer than two images are usable.
    """
    points = labeled.points
    count = points.counts(num_images)
    usable = torch.nonzero(count >= min_points).flatten()
    if len(usable) < 2:
        raise CollapsedTraining(
            f"only {len(usable)} of {describe_count(num_images, 'image')} "
            f"{choose_form(len(usable), 'has', 'have')} {min_points} or more keypoints. "
            "Try another --detector or a lower heatmaps.threshold"
        )
    num_slots = int(count.max())
    row, slot = points.image_index, _slot_in_image(points, count)

    def pad(values: Tensor, empty: float) -> Tensor:
        table = torch.full(
            (num_images, num_slots, *values.shape[1:]), empty, dtype=values.dtype, device=values.device
        )
        table[row, slot] = values
        return table.to(device)

    return PointTable(
        xy=pad(points.xy, 0),
        valid=pad(torch.ones_like(row, dtype=torch.bool), 0),
        label=pad(labeled.label, -1),
        mirrored_label=pad(labeled.mirrored_label, -1),
        usable=usable.to(device),
    )


def label_by_index(points: Keypoints, num_images: int) -> LabeledPoints:
    """Label each point with its index in the image, for the warm-up (Sec. 3.5 of the paper).

    Point i of every image has label i. Points of different images are never compared, because each pair of
    the warm-up is two deformations of one image. So point i matches only itself in the other deformation.
    """
    count = points.counts(num_images)
    slot = _slot_in_image(points, count)
    return LabeledPoints(points, slot, slot, clusters=int(count.max()) if num_images else 0)


def _slot_in_image(points: Keypoints, count: Tensor) -> Tensor:
    """Return the index of each point within its image.

    The points must be sorted by image; `count` [N] is the number of points per image.
    """
    start = torch.cumsum(count, dim=0) - count
    return torch.arange(len(points), device=points.xy.device) - start[points.image_index]
