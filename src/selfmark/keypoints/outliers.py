"""Points nobody resembles are background: drop them before training (Implementation Details, Training).

A landmark recurs, so its descriptor has company all over the data set. A point's score is the median distance
to its nearest descriptors; the points with the largest scores go.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.points import Keypoints

_SIMILARITIES = 1 << 26  # held at a time: 256 MB of float32


def remove_outliers(points: Keypoints, settings: FirstKeypoints, generator: torch.Generator) -> Keypoints:
    """Drop the share `outlier_share` of the points whose descriptors are the loneliest; order is kept.

    Points without descriptors come back as they are, because nothing tells them apart.
    """
    if points.descriptor is None:
        return points
    loneliness = outlier_scores(
        points.descriptor, settings.outlier_neighbors, settings.outlier_sample, generator
    )
    dropped = int(settings.outlier_fraction * len(points) + 0.5)
    order = torch.argsort(loneliness, stable=True)  # stable: of equal scores the later point goes
    keep = torch.zeros(len(points), dtype=torch.bool, device=loneliness.device)
    keep[order[: len(points) - dropped]] = True
    return points.select(keep)


def outlier_scores(
    descriptor: torch.Tensor, neighbors: int, sample: int, generator: torch.Generator
) -> torch.Tensor:
    """Median distance of each descriptor to its nearest others, [P].

    Args:
        descriptor: [P, D], brought to unit length here.
        neighbors: how many nearest others; fewer where there are fewer.
        sample: neighbors are sought among at most this many descriptors, drawn at random.
    """
    count = len(descriptor)
    unit = F.normalize(descriptor.float(), dim=1)
    drawn = torch.randperm(count, generator=generator, device=generator.device)[:sample].to(unit.device)
    others = unit[drawn]
    nearest = min(neighbors, len(drawn) - 1)
    if nearest < 1:
        return torch.zeros(count, device=unit.device)
    column = torch.full((count,), -1, device=unit.device)  # where a point meets itself among the others
    column[drawn] = torch.arange(len(drawn), device=unit.device)

    medians = []
    rows = max(1, _SIMILARITIES // len(drawn))
    for start in range(0, count, rows):
        similarity = unit[start : start + rows] @ others.T
        own = column[start : start + rows]
        met = torch.nonzero(own >= 0)[:, 0]
        similarity[met, own[met]] = -torch.inf
        closest = similarity.topk(nearest, dim=1).values
        # The median of sorted values is the mean of the middle two (of one with itself where odd).
        middle = torch.stack((closest[:, (nearest - 1) // 2], closest[:, nearest // 2]))
        # |a - b|^2 = 2 - 2 a.b for unit vectors; rounding may push it below zero.
        medians.append((2 - 2 * middle).clamp(min=0).sqrt().mean(dim=0))
    return torch.cat(medians)
