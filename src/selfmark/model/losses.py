"""Compute the losses of Sec. 3.4 and 3.6 of the paper, as pure functions.

If descriptors are unit vectors, squared distances are between 0 and 4, and the margin m = 0.8 of the
contrastive loss corresponds to an angle of about 53 degrees. The pairs and their weights in the loss depend
on the batch, but not on the network; only the distances depend on the network.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from selfmark.config import Loss
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_MIN_SQUARED_DISTANCE = 1e-12


def squared_distances_of_units(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared distances [..., P, Q] between unit vectors [..., P, d] and [..., Q, d]."""
    return (2 - 2 * a @ b.transpose(-1, -2)).clamp_min(0)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Return the squared distances [..., P, Q] between vectors [..., P, d] and [..., Q, d] of any norm."""
    norms = a.square().sum(dim=-1)[..., :, None] + b.square().sum(dim=-1)[..., None, :]
    return (norms - 2 * a @ b.transpose(-1, -2)).clamp_min(0)


def positive_pairs(label_a: Tensor, label_b: Tensor, valid_a: Tensor, valid_b: Tensor) -> Tensor:
    """Mark the pairs of points across two views that have the same pseudo-label, [B, P, P] bool.

    Args:
        label_a: [B, P] pseudo-labels of the first view; labels below 0 match nothing.
        label_b: [B, P] pseudo-labels of the second view.
        valid_a: [B, P] bool, slots of the first view that contain a point.
        valid_b: [B, P] bool, slots of the second view that contain a point.
    """
    has_same_label = (label_a[:, :, None] == label_b[:, None, :]) & (label_a >= 0)[:, :, None]
    return has_same_label & valid_a[:, :, None] & valid_b[:, None, :]


def negatives_same_image(cells: Tensor, valid: Tensor, random_cells: Tensor, min_distance: float) -> Tensor:
    """Mark the negative pairs within each image, [B, P, P + R] bool (Sec. 3.4).

    Each keypoint forms negative pairs with the other keypoints and with the random cells of the same image
    that are more than `min_distance` away. Each pair of keypoints is marked once.

    Args:
        cells: [B, P, 2] keypoints, in cells.
        valid: [B, P] bool, slots that contain a keypoint.
        random_cells: [B, R, 2] random positions, in cells.
        min_distance: minimum distance of a negative pair, in cells.
    """
    with_random = _are_apart(cells, random_cells, min_distance) & valid[:, :, None]
    with_keypoints = _are_apart(cells, cells, min_distance) & valid[:, :, None] & valid[:, None, :]
    return torch.cat([with_keypoints.triu(1), with_random], dim=2)


def _are_apart(a: Tensor, b: Tensor, min_distance: float) -> Tensor:
    """Mark the pairs of a [B, P, 2] and b [B, Q, 2] that are more than `min_distance` apart, [B, P, Q]."""
    return (a[:, :, None] - b[:, None]).square().sum(dim=-1) > min_distance**2


def negatives_different_cluster(label_a: Tensor, label_b: Tensor, valid_a: Tensor, valid_b: Tensor) -> Tensor:
    """Mark the pairs of points across two views that have different pseudo-labels, [B, P, P] bool.

    The authors' earlier method (NeurIPS 2020) chose negative pairs like this. The arguments are those of
    `positive_pairs`.
    """
    differ = label_a[:, :, None] != label_b[:, None, :]
    are_labeled = (label_a >= 0)[:, :, None] & (label_b >= 0)[:, None, :]
    return differ & are_labeled & valid_a[:, :, None] & valid_b[:, None, :]


def pair_weights(
    positive: Tensor, negative: Tensor, settings: Loss, group: ProcessGroup = SINGLE_PROCESS
) -> tuple[Tensor, Tensor]:
    """Return weights of positive and negative pairs that turn the sums in `contrastive_loss` into means.

    Pairs are counted over all processes. The mean of the processes' losses then equals the loss that a single
    process computes for the whole batch.

    Args:
        positive: mask of positive pairs, any shape.
        negative: mask of negative pairs, any shape.
        settings: how to average, and the weight of negative pairs.
        group: the processes that share the batch.

    Returns:
        Weights in the shape of `positive`, and in the shape of `negative`.
    """
    num_positive, num_negative = _count_true([positive, negative], group)
    if settings.average == "together":
        num_positive = num_negative = num_positive + num_negative
    # Counts are means over the processes, so `min_count` stands for one pair in the whole batch. It avoids a
    # division by 0.
    min_count = 1 / group.size
    return (
        positive / num_positive.clamp_min(min_count),
        negative * (settings.negative_weight / num_negative.clamp_min(min_count)),
    )


def _count_true(masks: list[Tensor], group: ProcessGroup) -> Tensor:
    """Return the mean number of True entries of each mask over the processes, [len(masks)]."""
    return group.all_sum(torch.stack([mask.sum() for mask in masks]).float()) / group.size


def contrastive_loss(
    positive_squared: Tensor,
    positive_weight: Tensor,
    negative_squared: Tensor,
    negative_weight: Tensor,
    settings: Loss,
) -> Tensor:
    """Compute the contrastive loss L_f (Eq. 3).

    The loss is the weighted sum of d^2 over positive pairs plus the weighted sum of max(0, m - d^2) over
    negative pairs. Here, m is the margin and d the distance between the descriptors of a pair.

    If `settings.hinge` is "distance", a negative pair contributes max(0, m - d)^2, as in the authors' code.

    Args:
        positive_squared: squared distances of candidate pairs, any shape.
        positive_weight: weight of each candidate, same shape; 0 if it is not a positive pair.
        negative_squared: squared distances of candidate pairs, any shape.
        negative_weight: weight of each candidate, same shape; 0 if it is not a negative pair.
        settings: the margin m and the form of the hinge.
    """
    if settings.hinge == "distance":
        # The derivative of the square root is infinite at 0.
        distance = negative_squared.clamp_min(_MIN_SQUARED_DISTANCE).sqrt()
        hinge = (settings.margin - distance).clamp_min(0).square()
    else:
        hinge = (settings.margin - negative_squared).clamp_min(0)
    return (positive_squared * positive_weight).sum() + (hinge * negative_weight).sum()


def detector_loss(confidence: Tensor, target: Tensor) -> Tensor:
    """Compute L_d (Eq. 2): the mean squared error between confidence maps and targets, [B, 1, h, w]."""
    return (confidence.float() - target).square().mean()


def masked_regression_loss(
    maps: Tensor,
    target: Tensor,
    present: Tensor,
    average: Literal["found", "all"] = "found",
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Compute the loss of Stage 2 (Eq. 4): the squared error of the heatmaps of landmarks that are present.

    The loss is a mean over cells, landmarks and images. Images without landmarks are ignored.

    Args:
        maps: [B, K, h, w] predicted heatmaps.
        target: [B, K, h, w] target heatmaps.
        present: [B, K] bool, the detected set D_j of each image.
        average: divide the sum over an image's landmarks by the number present ("found") or by K ("all").
        group: the processes that share the batch. Images are counted over all processes, see `pair_weights`.
    """
    per_map = (maps.float() - target).square().mean(dim=(2, 3)) * present
    num_present = present.sum(dim=1)
    divisor = num_present.clamp_min(1) if average == "found" else present.shape[1]
    per_image = per_map.sum(dim=1) / divisor
    (num_images,) = _count_true([num_present > 0], group)
    loss: Tensor = per_image.sum() / num_images.clamp_min(1 / group.size)
    return loss
