"""Merge clusters that are predicted at the same place, as in the authors' earlier paper (NeurIPS 2020).

A network with one heatmap per cluster predicts the position of every cluster in every image. Two clusters are
the same landmark if they are predicted at the same place in most of the images in which the rarer of the two
is predicted confidently. A prediction is confident if the maximum of its heatmap is at least
`mallis2020.min_confidence`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.correspondence.assignment import cheapest_per_group
from selfmark.points import LabeledPoints

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlaceCounts:
    """Numbers of images in which a cluster is predicted, and in which two clusters are at the same place.

    confident: [M] int64, number of images in which the prediction of a cluster is confident
    together:  [M, M] int64, number of images in which two confident predictions are at the same place
    """

    confident: IntArray
    together: IntArray


def count_places(cells: Tensor, is_confident: Tensor, max_distance: float) -> tuple[Tensor, Tensor]:
    """Return the counts `confident` [M] and `together` [M, M] of `PlaceCounts` for B images.

    Args:
        cells: [B, M, 2] predicted positions, in cells.
        is_confident: [B, M] bool, whether a prediction is confident; other predictions are not counted.
        max_distance: predictions closer than this many cells are at the same place.
    """
    difference = cells[:, :, None] - cells[:, None]
    is_near = difference.square().sum(-1) < max_distance**2
    are_both_confident = is_confident[:, :, None] & is_confident[:, None]
    return is_confident.sum(0), (is_near & are_both_confident).sum(0)


def find_leaders(counts: PlaceCounts, sizes: IntArray, overlap: float) -> IntArray:
    """Return the leader of each cluster, [M]: the cluster that it is merged into, or itself if not merged.

    Clusters are visited from the largest to the smallest. Each is merged into the first earlier leader that
    is often predicted at the same place. Often means in more than the fraction `overlap` of the images in
    which the rarer of the two clusters is predicted confidently.

    Args:
        counts: how often clusters are predicted.
        sizes: [M] number of points of each cluster; clusters without points are not merged.
        overlap: fraction above which two clusters merge.

    >>> counts = PlaceCounts(np.array([10, 8, 9]), np.array([[10, 7, 0], [7, 8, 1], [0, 1, 9]]))
    >>> find_leaders(counts, np.array([5, 4, 9]), overlap=0.7).tolist()
    [0, 0, 2]
    """
    leader_of = np.arange(len(sizes))
    leaders: list[int] = []
    for cluster in np.argsort(-sizes, kind="stable"):
        if sizes[cluster] == 0:
            break
        for other in leaders:
            rarer = min(counts.confident[cluster], counts.confident[other])
            if counts.together[cluster, other] > overlap * rarer:
                leader_of[cluster] = other
                break
        else:
            leaders.append(int(cluster))
    return leader_of


def cluster_sizes(labeled: LabeledPoints) -> IntArray:
    """Return the number of points of each cluster, [M]."""
    label = labeled.label[labeled.label >= 0].cpu().numpy()
    return np.bincount(label, minlength=labeled.clusters).astype(np.int64)


def merge_clusters(labeled: LabeledPoints, leader: IntArray) -> LabeledPoints:
    """Give the points of merged clusters the label of their leader.

    If an image has points of several clusters that merge, only the point of the largest cluster is kept. The
    centroid of a leader becomes the mean of the merged centroids, weighted by their numbers of points.

    Args:
        labeled: points; every label must be at least 0.
        leader: [M] leader of each cluster, see `find_leaders`.
    """
    device = labeled.label.device
    sizes = torch.from_numpy(cluster_sizes(labeled)).to(device)
    target = torch.from_numpy(leader).to(device)
    label = target[labeled.label]
    group = labeled.points.image_index * labeled.clusters + label
    keep = cheapest_per_group(group, -sizes[labeled.label])
    centroids = labeled.centroids
    if centroids is not None:
        # weight[leader, member] is the number of points of the member.
        weight = torch.zeros(len(target), len(target), dtype=torch.float64, device=device)
        weight[target, torch.arange(len(target), device=device)] = sizes.double()
        total = weight.sum(dim=1, keepdim=True)
        means = (weight @ centroids.double() / total.clamp_min(1)).to(centroids.dtype)
        centroids = torch.where(total > 0, means, centroids)
    mirrored = torch.where(labeled.mirrored_label >= 0, target[labeled.mirrored_label], -1)
    return replace(labeled, label=label, mirrored_label=mirrored, centroids=centroids).select(keep)


def keep_clusters(labeled: LabeledPoints, clusters: IntArray) -> LabeledPoints:
    """Keep only these clusters, and number them from 0.

    Args:
        labeled: points of M clusters.
        clusters: [K] clusters to keep, in their new order.
    """
    device = labeled.label.device
    kept = torch.from_numpy(clusters).to(device)
    number = torch.full((labeled.clusters + 1,), -1, device=device)  # the last entry is for label -1
    number[kept] = torch.arange(len(kept), device=device)
    label, mirrored = number[labeled.label], number[labeled.mirrored_label]
    centroids = None if labeled.centroids is None else labeled.centroids[kept]
    return LabeledPoints(labeled.points, label, mirrored, len(clusters), centroids).select(label >= 0)


def find_largest_clusters(labeled: LabeledPoints, max_clusters: int) -> IntArray:
    """Return the clusters with the most points, at most `max_clusters`, in ascending order of their numbers.

    Clusters without points are left out. If `max_clusters` is 0, all clusters with points are returned.
    """
    sizes = cluster_sizes(labeled)
    order = np.argsort(-sizes, kind="stable")
    nonempty = order[sizes[order] > 0]
    return np.sort(nonempty[: max_clusters or len(nonempty)])
