"""The losses of Sec. 3.4 and 3.6, as pure functions over padded points.

Descriptors are unit vectors, so squared distances lie between 0 and 4 and the margin m = 0.8 is an angle
of about 53 degrees. Which pairs count, and how much, follows from the batch alone; only distances need the
network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfmark.config import Loss
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Between unit vectors [..., P, d] and [..., Q, d]: [..., P, Q]."""
    return (2 - 2 * a @ b.transpose(-1, -2)).clamp_min(0)


def positive_pairs(label_a: Tensor, label_b: Tensor, valid_a: Tensor, valid_b: Tensor) -> Tensor:
    """Pairs [B, P, P] across two views with the same pseudo-label [B, P]; labels below 0 match nothing."""
    same = (label_a[:, :, None] == label_b[:, None, :]) & (label_a >= 0)[:, :, None]
    return same & valid_a[:, :, None] & valid_b[:, None, :]


def negatives_same_image(cells: Tensor, valid: Tensor, places: Tensor, least_distance: float) -> Tensor:
    """Pairs [B, P, P + R] of keypoints with keypoints and other places of the *same* image.

    They lie more than `least_distance` cells apart; each pair of keypoints counts once.

    Args:
        cells: [B, P, 2] keypoints; valid: [B, P].
        places: [B, R, 2], all valid.
    """
    away = _apart(cells, places, least_distance) & valid[:, :, None]
    between = _apart(cells, cells, least_distance) & valid[:, :, None] & valid[:, None, :]
    return torch.cat([between.triu(1), away], dim=2)


def _apart(a: Tensor, b: Tensor, least_distance: float) -> Tensor:
    return (a[:, :, None] - b[:, None]).square().sum(dim=-1) > least_distance**2


def negatives_different_cluster(label_a: Tensor, label_b: Tensor, valid_a: Tensor, valid_b: Tensor) -> Tensor:
    """Pairs [B, P, P] across two views with different pseudo-labels: the authors' earlier choice."""
    differ = label_a[:, :, None] != label_b[:, None, :]
    known = (label_a >= 0)[:, :, None] & (label_b >= 0)[:, None, :]
    return differ & known & valid_a[:, :, None] & valid_b[:, None, :]


def pair_weights(
    positive: Tensor, negative: Tensor, settings: Loss, group: ProcessGroup = SINGLE_PROCESS
) -> tuple[Tensor, Tensor]:
    """What each pair counts in `contrastive_loss`, so that sums become the means that the settings ask for.

    In a group pairs are counted over all processes, so that the mean of their losses is that of one process
    with the whole batch.
    """
    attract, repel = _counted([positive, negative], group)
    if settings.average == "together":
        attract = repel = attract + repel
    least = 1 / group.size
    return positive / attract.clamp_min(least), negative * (settings.negative_weight / repel.clamp_min(least))


def _counted(masks: list[Tensor], group: ProcessGroup) -> Tensor:
    """How many entries of each mask are set, a mean over the processes: [len(masks)]."""
    return group.all_sum(torch.stack([mask.sum() for mask in masks]).float()) / group.size


def contrastive_loss(
    between: Tensor, positive: Tensor, within: Tensor, negative: Tensor, settings: Loss
) -> Tensor:
    """L_f: squared distance of positives, hinge m - d^2 of negatives, each times its weight.

    Args:
        between: squared distances of the pairs that `positive` weighs.
        within: squared distances of the pairs that `negative` weighs.
    """
    hinge = (settings.margin - within).clamp_min(0)
    return (between * positive).sum() + (hinge * negative).sum()


def detector_loss(confidence: Tensor, target: Tensor) -> Tensor:
    """L_d: mean squared error between the confidence map and Gaussians at the keypoints (Eq. 3)."""
    return (confidence.float() - target).square().mean()


def masked_regression_loss(
    maps: Tensor, target: Tensor, present: Tensor, group: ProcessGroup = SINGLE_PROCESS
) -> Tensor:
    """Stage 2: error over the landmarks present in each image only (Sec. 3.6), mean over cells and images.

    maps, target: [B, K, h, w]; present: [B, K] bool. Images without any landmark count for nothing.
    In a group images are counted over all processes, as in `pair_weights`.
    """
    per_map = (maps.float() - target).square().mean(dim=(2, 3)) * present
    detected = present.sum(dim=1)
    per_image = per_map.sum(dim=1) / detected.clamp_min(1)
    (images,) = _counted([detected > 0], group)
    error: Tensor = per_image.sum() / images.clamp_min(1 / group.size)
    return error
