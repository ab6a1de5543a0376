"""Remove outliers before training (Sec. 4.2 of the paper): points whose descriptors resemble few others.

A landmark appears in many images, so its descriptor resembles many others. The descriptor of a background
point resembles few. The outlier score of a point is the median distance from its descriptor to its nearest
neighbors among the descriptors of all images. The points with the highest scores are dropped.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.points import Keypoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_MAX_SIMILARITIES = 1 << 26  # similarities computed at a time: 256 MB of float32


def remove_outliers(
    points: Keypoints,
    settings: FirstKeypoints,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Keypoints:
    """Drop the fraction `settings.outlier_fraction` of the points that has the highest outlier scores.

    The remaining points keep their order. Points without descriptors are returned unchanged.

    Args:
        points: the points of all images.
        settings: fraction to drop, and settings of `compute_outlier_scores`.
        generator: source of the random numbers, in the same state in every process.
        group: the processes that share the computation; each process has all points.
    """
    if points.descriptor is None:
        return points
    scores = compute_outlier_scores(
        points.descriptor, settings.outlier_neighbors, settings.outlier_sample, generator, group
    )
    num_dropped = int(settings.outlier_fraction * len(points) + 0.5)
    order = torch.argsort(scores, stable=True)  # if scores are equal, the later points are dropped
    keep = torch.zeros(len(points), dtype=torch.bool, device=scores.device)
    keep[order[: len(points) - num_dropped]] = True
    return points.select(keep)


def compute_outlier_scores(
    descriptor: torch.Tensor,
    neighbors: int,
    sample: int,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> torch.Tensor:
    """Return the median distance of each descriptor to its nearest neighbors, [P].

    Args:
        descriptor: [P, D] descriptors, not necessarily normalized.
        neighbors: number of nearest neighbors; fewer if the sample is smaller.
        sample: maximum size of the random sample of descriptors in which neighbors are searched.
        generator: source of the random numbers, in the same state in every process.
        group: the processes that share the computation; each process has all descriptors.
    """
    count = len(descriptor)
    unit = F.normalize(descriptor.float(), dim=1)
    drawn = torch.randperm(count, generator=generator, device=generator.device)[:sample].to(unit.device)
    sampled = unit[drawn]
    num_neighbors = min(neighbors, len(drawn) - 1)
    if num_neighbors < 1:
        return torch.zeros(count, device=unit.device)
    # Index of each point within the sample, or -1; used to exclude a point from its own neighbors.
    column = torch.full((count,), -1, device=unit.device)
    column[drawn] = torch.arange(len(drawn), device=unit.device)

    block_size = max(1, _MAX_SIMILARITIES // len(drawn))

    def measure(rows: slice) -> list[torch.Tensor]:
        medians = []
        for start in range(rows.start, rows.stop, block_size):
            stop = min(start + block_size, rows.stop)
            similarity = unit[start:stop] @ sampled.T
            own_column = column[start:stop]
            drawn_rows = torch.nonzero(own_column >= 0)[:, 0]
            similarity[drawn_rows, own_column[drawn_rows]] = -torch.inf
            closest = similarity.topk(num_neighbors, dim=1).values
            # The median is the mean of the two middle values, which are the same if `num_neighbors` is odd.
            middle = torch.stack((closest[:, (num_neighbors - 1) // 2], closest[:, num_neighbors // 2]))
            # For unit vectors |a - b|^2 = 2 - 2 a.b, which rounding can make negative.
            medians.append((2 - 2 * middle).clamp(min=0).sqrt().mean(dim=0))
        return [torch.cat(medians)]

    return group.compute_shared(count, block_size, measure)[0]
