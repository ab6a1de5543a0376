"""The losses of Sec. 3.4 and 3.6, as pure functions over padded points.

Descriptors are unit vectors, so squared distances lie between 0 and 4 and the margin m = 0.8 is an angle
of about 53 degrees.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from selfmark.config import Loss


class Pairs(NamedTuple):
    """Descriptor pairs: squared `distance` [..., P, Q] and a `mask` of that shape: which pairs count."""

    distance: Tensor
    mask: Tensor


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Between unit vectors [..., P, d] and [..., Q, d]: [..., P, Q]."""
    return (2 - 2 * a @ b.transpose(-1, -2)).clamp_min(0)


def positives(
    a: Tensor, b: Tensor, label_a: Tensor, label_b: Tensor, valid_a: Tensor, valid_b: Tensor
) -> Pairs:
    """Pairs across two views [B, P, d] with the same pseudo-label [B, P]; labels below 0 match nothing."""
    same = (label_a[:, :, None] == label_b[:, None, :]) & (label_a >= 0)[:, :, None]
    return Pairs(squared_distances(a, b), same & valid_a[:, :, None] & valid_b[:, None, :])


def negatives_same_image(
    points: Tensor, cells: Tensor, valid: Tensor, others: Tensor, other_cells: Tensor, least_distance: float
) -> Pairs:
    """Keypoints [B, P, d] against other places [B, Q, d] of the *same* image, at least so many cells away."""
    away = torch.cdist(cells, other_cells) > least_distance
    return Pairs(squared_distances(points, others), away & valid[:, :, None])


def negatives_different_cluster(
    a: Tensor, b: Tensor, label_a: Tensor, label_b: Tensor, valid_a: Tensor, valid_b: Tensor
) -> Pairs:
    """Keypoints of the two views with different pseudo-labels: the authors' earlier choice (an ablation)."""
    differ = label_a[:, :, None] != label_b[:, None, :]
    known = (label_a >= 0)[:, :, None] & (label_b >= 0)[:, None, :]
    return Pairs(squared_distances(a, b), differ & known & valid_a[:, :, None] & valid_b[:, None, :])


def contrastive(positive: Pairs, negative: list[Pairs], settings: Loss) -> Tensor:
    """L_f: squared distance of positives, hinge m - d^2 of negatives, averaged as the settings say."""
    attract = (positive.distance * positive.mask).sum()
    attract_count = positive.mask.sum()
    repel = torch.stack(
        [((settings.margin - p.distance).clamp_min(0) * p.mask).sum() for p in negative]
    ).sum()
    repel_count = torch.stack([p.mask.sum() for p in negative]).sum()
    repel = settings.negative_weight * repel
    if settings.average == "together":
        return (attract + repel) / (attract_count + repel_count).clamp_min(1)
    return attract / attract_count.clamp_min(1) + repel / repel_count.clamp_min(1)


def detector(confidence: Tensor, target: Tensor) -> Tensor:
    """L_d: mean squared error between the confidence map and Gaussians at the keypoints (Eq. 3)."""
    return (confidence.float() - target).square().mean()


def masked_regression(maps: Tensor, target: Tensor, present: Tensor) -> Tensor:
    """Stage 2: error over the landmarks present in each image only (Sec. 3.6), mean over cells and images.

    maps, target: [B, K, h, w]; present: [B, K] bool. Images without any landmark count for nothing.
    """
    per_map = (maps.float() - target).square().mean(dim=(2, 3)) * present
    detected = present.sum(dim=1)
    per_image = per_map.sum(dim=1) / detected.clamp_min(1)
    return per_image.sum() / (detected > 0).sum().clamp_min(1)
