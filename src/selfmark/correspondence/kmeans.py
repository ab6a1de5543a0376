"""K-means on the device the vectors are on: k-means++ seeding, restarts, empty-cluster repair.

Deterministic under a seed: sums are matrix products, never atomic additions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 262_144  # vectors per block, so that the distance matrix stays small


class Nearest(NamedTuple):
    """For each vector its nearest centroid: `cluster` [P] int64 and squared `distance` [P]."""

    cluster: Tensor
    distance: Tensor


def nearest_centroid(vectors: Tensor, centroids: Tensor) -> Nearest:
    """The nearest of [C, D] centroids for each of [P, D] vectors, by squared Euclidean distance."""
    norms = centroids.square().sum(dim=1)
    clusters, distances = [], []
    for block in torch.split(vectors, _CHUNK):
        partial, cluster = (norms - 2 * block @ centroids.T).min(dim=1)
        clusters.append(cluster)
        distances.append((partial + block.square().sum(dim=1)).clamp_min(0))
    return Nearest(torch.cat(clusters), torch.cat(distances))


def kmeans(
    vectors: Tensor, clusters: int, iterations: int, restarts: int, sample: int, generator: torch.Generator
) -> Tensor:
    """Centroids [clusters, D] of vectors [P, D]: the best of several runs by within-cluster distance.

    Args:
        vectors: [P, D] float32, at least as many as clusters.
        clusters: number of centroids.
        iterations: most Lloyd iterations per run; a run ends early once no vector changes its cluster.
        restarts: independent runs.
        sample: fitted on at most this many vectors, drawn at random.
        generator: on the vectors' device.
    """
    if len(vectors) < clusters:
        raise ValueError(f"{len(vectors)} vectors cannot form {clusters} clusters")
    if len(vectors) > sample:
        chosen = torch.randperm(len(vectors), generator=generator, device=vectors.device)[:sample]
        vectors = vectors[chosen]
    best, best_cost = vectors[:clusters], float("inf")
    for _ in range(restarts):
        centroids = _lloyd(vectors, _seed(vectors, clusters, generator), iterations)
        cost = float(nearest_centroid(vectors, centroids).distance.sum())
        if cost < best_cost:
            best, best_cost = centroids, cost
    return best


def _seed(vectors: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """k-means++: each next seed is drawn in proportion to its squared distance from those before."""
    draws = torch.rand(clusters, generator=generator, device=vectors.device, dtype=torch.float64)
    first = (draws[0] * len(vectors)).long().clamp_max(len(vectors) - 1)
    seeds = [vectors[first]]
    closest = (vectors - seeds[0]).square().sum(dim=1)
    for draw in draws[1:]:
        # Inverse transform sampling in float64; multinomial is limited to 2^24 entries.
        cumulative = closest.double().cumsum(dim=0)
        index = torch.searchsorted(cumulative, draw * cumulative[-1], right=True).clamp_max(len(vectors) - 1)
        seeds.append(vectors[index])
        closest = torch.minimum(closest, (vectors - seeds[-1]).square().sum(dim=1))
    return torch.stack(seeds)


def _lloyd(vectors: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    previous = torch.full((len(vectors),), -1, device=vectors.device)
    for _ in range(iterations):
        cluster, distance = nearest_centroid(vectors, centroids)
        if torch.equal(cluster, previous):
            break
        previous = cluster
        centroids = _repair(*_sums(vectors, cluster, len(centroids)), vectors, distance)
    return centroids


def _sums(vectors: Tensor, cluster: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Sum [clusters, D] and count [clusters] of the vectors of each cluster."""
    total = torch.zeros(clusters, vectors.shape[1], device=vectors.device, dtype=vectors.dtype)
    for block, members in zip(torch.split(vectors, _CHUNK), torch.split(cluster, _CHUNK), strict=True):
        total += torch.nn.functional.one_hot(members, clusters).to(block.dtype).T @ block
    return total, torch.bincount(cluster, minlength=clusters)


def _repair(total: Tensor, count: Tensor, vectors: Tensor, distance: Tensor) -> Tensor:
    """Means, with the vectors farthest from their centroid standing in for clusters that lost all members."""
    rank = torch.cumsum((count == 0).long(), dim=0) - 1
    farthest = vectors[distance.topk(min(len(count), len(vectors))).indices]
    means = total / count.clamp_min(1)[:, None]
    return torch.where((count == 0)[:, None], farthest[rank.clamp_min(0)], means)
