"""Outlier removal before training (Sec. 4.2): drop points whose descriptors resemble few others.

A landmark occurs in many images, so many descriptors are similar to its own; background points have few
similar descriptors. The score of a point is the median distance to its nearest descriptors, and the points
with the highest scores are dropped.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.points import Keypoints

_MAX_SIMILARITIES = 1 << 26  # computed at a time: 256 MB of float32


def remove_outliers(points: Keypoints, settings: FirstKeypoints, generator: torch.Generator) -> Keypoints:
    """Drop the fraction `settings.outlier_fraction` of the points with the highest outlier scores.

    The order of the others is kept. Points without descriptors are returned unchanged.
    """
    if points.descriptor is None:
        return points
    scores = outlier_scores(points.descriptor, settings.outlier_neighbors, settings.outlier_sample, generator)
    num_dropped = int(settings.outlier_fraction * len(points) + 0.5)
    order = torch.argsort(scores, stable=True)  # stable: of equal scores, the later point is dropped
    keep = torch.zeros(len(points), dtype=torch.bool, device=scores.device)
    keep[order[: len(points) - num_dropped]] = True
    return points.select(keep)


def outlier_scores(
    descriptor: torch.Tensor, neighbors: int, sample: int, generator: torch.Generator
) -> torch.Tensor:
    """Return the median distance of each descriptor to its nearest neighbors, [P].

    Args:
        descriptor: [P, D]; normalized to unit length.
        neighbors: number of nearest neighbors, or all if there are fewer.
        sample: maximum number of descriptors, drawn at random, among which to search for neighbors.
        generator: source of the random numbers.
    """
    count = len(descriptor)
    unit = F.normalize(descriptor.float(), dim=1)
    drawn = torch.randperm(count, generator=generator, device=generator.device)[:sample].to(unit.device)
    others = unit[drawn]
    nearest = min(neighbors, len(drawn) - 1)
    if nearest < 1:
        return torch.zeros(count, device=unit.device)
    column = torch.full((count,), -1, device=unit.device)  # column of each point itself, if it was drawn
    column[drawn] = torch.arange(len(drawn), device=unit.device)

    medians = []
    rows = max(1, _MAX_SIMILARITIES // len(drawn))
    for start in range(0, count, rows):
        similarity = unit[start : start + rows] @ others.T
        own = column[start : start + rows]
        is_drawn = torch.nonzero(own >= 0)[:, 0]
        similarity[is_drawn, own[is_drawn]] = -torch.inf
        closest = similarity.topk(nearest, dim=1).values
        # The median is the mean of the two middle values, which are the same if their number is odd.
        middle = torch.stack((closest[:, (nearest - 1) // 2], closest[:, nearest // 2]))
        # For unit vectors |a - b|^2 = 2 - 2 a.b, which may be below zero by rounding.
        medians.append((2 - 2 * middle).clamp(min=0).sqrt().mean(dim=0))
    return torch.cat(medians)
