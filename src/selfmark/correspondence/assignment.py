"""Cluster assignment of Eq. 1, in which a cluster occurs at most once per image.

The method `nearest` keeps, for each image and cluster, the keypoint closest to the centroid, and drops the
others as noise. The method `hungarian`, from the authors' earlier paper, finds the cheapest one-to-one
assignment of each image.
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
    """Assign each keypoint to a cluster, each cluster at most once per image.

    Args:
        vectors: [P, D] descriptors; may be in host memory.
        image_index: [P] image of each keypoint.
        centroids: [C, D].
        method: see the module docstring.

    Returns:
        [P] int64 on the centroids' device; -1 for keypoints without a cluster.
    """
    if method == "hungarian":
        return _hungarian(vectors, image_index, centroids)
    cluster, distance = nearest_centroid(vectors, centroids)
    group = image_index.to(cluster.device) * len(centroids) + cluster
    return torch.where(cheapest_per_group(group, distance), cluster, -1)


def cheapest_per_group(group: Tensor, cost: Tensor) -> Tensor:
    """Return the mask [P] of the member with the lowest cost [P] in each group [P]; the first if tied."""
    order = torch.argsort(cost, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    sorted_group = group[order]
    first = torch.ones_like(sorted_group, dtype=torch.bool)
    first[1:] = sorted_group[1:] != sorted_group[:-1]
    mask = torch.zeros_like(first)
    mask[order] = first
    return mask


def _hungarian(vectors: Tensor, image_index: Tensor, centroids: Tensor) -> Tensor:
    """Solve one small assignment problem per image; a loop is fast enough for this ablation."""
    exact = centroids.double()
    blocks = iterate_blocks(vectors, centroids.device)
    distances = torch.cat([torch.cdist(block.double(), exact).square().cpu() for block in blocks]).numpy()
    images = image_index.cpu().numpy()
    cluster = np.full(len(images), -1, dtype=np.int64)
    order = np.argsort(images, kind="stable")
    boundaries = np.flatnonzero(np.diff(images[order])) + 1
    for rows in np.split(order, boundaries):
        if len(rows):
            point, assigned = linear_sum_assignment(distances[rows])
            cluster[rows[point]] = assigned
    return torch.from_numpy(cluster).to(centroids.device)
