"""Points laid out for training: one padded row per image, on the training device, so batches are gathers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfmark.errors import TrainingError
from selfmark.points import Keypoints, LabeledPoints


@dataclass(frozen=True)
class PointTable:
    """Padded points of N images, P slots each.

    xy:             [N, P, 2] float32, network pixels
    valid:          [N, P] bool, slots that hold a point
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
    labeled: LabeledPoints, images: int, least_points: int, device: torch.device
) -> PointTable:
    """Lay flat labeled points out in rows; images with fewer than `least_points` are not `usable`."""
    points = labeled.points
    count = points.counts(images)
    usable = torch.nonzero(count >= least_points).flatten()
    if len(usable) < 2:
        raise TrainingError(
            f"only {len(usable)} of {images} images have {least_points} or more points: "
            "the detector found too little; try another --detector, or lower heatmaps.threshold"
        )
    slots = int(count.max())
    start = torch.cumsum(count, dim=0) - count
    slot = torch.arange(len(points), device=points.xy.device) - start[points.image_index]
    row = points.image_index

    def laid_out(values: Tensor, empty: float) -> Tensor:
        table = torch.full(
            (images, slots, *values.shape[1:]), empty, dtype=values.dtype, device=values.device
        )
        table[row, slot] = values
        return table.to(device)

    return PointTable(
        xy=laid_out(points.xy, 0),
        valid=laid_out(torch.ones_like(row, dtype=torch.bool), 0),
        label=laid_out(labeled.label, -1),
        mirrored_label=laid_out(labeled.mirrored_label, -1),
        usable=usable.to(device),
    )


def label_by_index(points: Keypoints, images: int) -> LabeledPoints:
    """Labels for the warm-up: point i of an image matches point i of its deformation, and nothing else."""
    count = points.counts(images)
    start = torch.cumsum(count, dim=0) - count
    slot = torch.arange(len(points), device=points.xy.device) - start[points.image_index]
    return LabeledPoints(points, slot, slot, clusters=int(count.max()) if images else 0)
