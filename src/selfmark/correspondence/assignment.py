"""The modified assignment of Eq. 2: in one image a cluster may occur only once.

`nearest` keeps, per image and cluster, the keypoint nearest the centroid; the others are dropped as noise.
`hungarian` is what the authors' earlier method did: the cheapest one-to-one assignment per image.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from selfmark.correspondence.kmeans import iterate_blocks, nearest_centroid


def assign_clusters(
    vectors: Tensor, image_index: Tensor, centroids: Tensor, method: Literal["nearest", "hungarian"]
) -> Tensor:
    """Cluster of each keypoint, [P] int64, each cluster at most once per image; -1 for those left over.

    The result is on the centroids' device; the vectors may be in host memory.

    Args:
        vectors: [P, D] descriptors.
        image_index: [P] image of each.
        centroids: [C, D].
        method: see the module's text.
    """
    if method == "hungarian":
        return _hungarian(vectors, image_index, centroids)
    cluster, distance = nearest_centroid(vectors, centroids)
    group = image_index.to(cluster.device) * len(centroids) + cluster
    return torch.where(cheapest_of_group(group, distance), cluster, -1)


def cheapest_of_group(group: Tensor, cost: Tensor) -> Tensor:
    """Mask of the cheapest member of each group; ties go to the earlier one."""
    order = torch.argsort(cost, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    sorted_group = group[order]
    first = torch.ones_like(sorted_group, dtype=torch.bool)
    first[1:] = sorted_group[1:] != sorted_group[:-1]
    mask = torch.zeros_like(first)
    mask[order] = first
    return mask


def _hungarian(vectors: Tensor, image_index: Tensor, centroids: Tensor) -> Tensor:
    """One small assignment problem per image; an ablation, so a loop over images is good enough here."""
    exact = centroids.double()
    parts = [
        torch.cdist(part.double(), exact).square().cpu() for part in iterate_blocks(vectors, centroids.device)
    ]
    distances = torch.cat(parts).numpy()
    images = image_index.cpu().numpy()
    cluster = np.full(len(images), -1, dtype=np.int64)
    order = np.argsort(images, kind="stable")
    boundaries = np.flatnonzero(np.diff(images[order])) + 1
    for rows in np.split(order, boundaries):
        if len(rows):
            point, assigned = linear_sum_assignment(distances[rows])
            cluster[rows[point]] = assigned
    return torch.from_numpy(cluster).to(centroids.device)
