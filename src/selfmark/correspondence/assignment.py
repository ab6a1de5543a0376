"""Assign keypoints to clusters so that each cluster occurs at most once per image (Eq. 1 of the paper).

The method `nearest` assigns each keypoint to the nearest centroid. If several keypoints of an image share a
cluster, only the one closest to the centroid keeps it (Sec. 3.3). The method `hungarian`, from the authors'
earlier paper (NeurIPS 2020), finds the one-to-one assignment with the smallest sum of squared distances in
each image.
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
    """Assign keypoints to clusters, each cluster at most once per image.

    Args:
        vectors: [P, D] descriptors; may be in host memory.
        image_index: [P] image of each keypoint.
        centroids: [C, D], on the device of the computation.
        method: see the module docstring.

    Returns:
        [P] int64 on the centroids' device; -1 for keypoints without a cluster.
    """
    if method == "hungarian":
        return _assign_hungarian(vectors, image_index, centroids)
    cluster, distance = nearest_centroid(vectors, centroids)
    group = image_index.to(cluster.device) * len(centroids) + cluster
    return torch.where(cheapest_per_group(group, distance), cluster, -1)


def cheapest_per_group(group: Tensor, cost: Tensor) -> Tensor:
    """Mark the member with the lowest cost in each group.

    Args:
        group: [P] int64, group number of each member.
        cost: [P] cost of each member.

    Returns:
        [P] bool. If several members of a group have the lowest cost, only the first of them is marked.
    """
    # The second sort is stable, so members stay sorted by cost within their group.
    order = torch.argsort(cost, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    sorted_group = group[order]
    is_first = torch.ones_like(sorted_group, dtype=torch.bool)
    is_first[1:] = sorted_group[1:] != sorted_group[:-1]
    is_cheapest = torch.zeros_like(is_first)
    is_cheapest[order] = is_first
    return is_cheapest


def _assign_hungarian(vectors: Tensor, image_index: Tensor, centroids: Tensor) -> Tensor:
    """Solve one small assignment problem per image; a loop is fast enough for this rarely used method."""
    centroids64 = centroids.double()
    blocks = iterate_blocks(vectors, centroids.device)
    distances = [torch.cdist(block.double(), centroids64).square().cpu() for block in blocks]
    costs = torch.cat(distances).numpy()
    images = image_index.cpu().numpy()
    cluster = np.full(len(images), -1, dtype=np.int64)
    order = np.argsort(images, kind="stable")
    boundaries = np.flatnonzero(np.diff(images[order])) + 1
    for rows in np.split(order, boundaries):
        if len(rows):
            point, assigned = linear_sum_assignment(costs[rows])
            cluster[rows[point]] = assigned
    return torch.from_numpy(cluster).to(centroids.device)
