"""Test the assignment of clusters: each at most once per image, and the same results as naive searches."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfmark.correspondence.assignment import assign_clusters


def _draw_problem(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    points, images, clusters = int(rng.integers(1, 60)), int(rng.integers(1, 6)), int(rng.integers(1, 9))
    vectors = torch.from_numpy(rng.normal(size=(points, 3)).astype(np.float32))
    image_index = torch.from_numpy(np.sort(rng.integers(0, images, points)))
    return vectors, image_index, torch.from_numpy(rng.normal(size=(clusters, 3)).astype(np.float32))


def _assign_naively(vectors: torch.Tensor, image_index: torch.Tensor, centroids: torch.Tensor) -> list[int]:
    """Assign each point to its nearest cluster; if points of an image share a cluster, keep the nearest."""
    distance = ((vectors[:, None] - centroids[None]) ** 2).sum(-1)
    result = [-1] * len(vectors)
    for image in set(image_index.tolist()):
        members = [point for point in range(len(vectors)) if image_index[point] == image]
        for cluster in range(len(centroids)):
            candidates = [point for point in members if int(distance[point].argmin()) == cluster]
            if candidates:
                nearest = min(candidates, key=lambda point: float(distance[point, cluster]))
                result[nearest] = cluster
    return result


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 100_000))
def test_nearest_matches_a_loop(seed: int) -> None:
    vectors, image_index, centroids = _draw_problem(seed)
    ours = assign_clusters(vectors, image_index, centroids, "nearest")
    assert ours.tolist() == _assign_naively(vectors, image_index, centroids)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 100_000), st.sampled_from(["nearest", "hungarian"]))
def test_a_cluster_occurs_at_most_once_per_image(seed: int, method: str) -> None:
    vectors, image_index, centroids = _draw_problem(seed)
    ours = assign_clusters(vectors, image_index, centroids, method)  # type: ignore[arg-type]
    kept = ours >= 0
    pairs = list(zip(image_index[kept].tolist(), ours[kept].tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert kept.any()


def test_hungarian_is_the_cheapest_of_all_assignments() -> None:
    rng = np.random.default_rng(4)
    vectors, centroids = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    ours = assign_clusters(
        torch.from_numpy(vectors), torch.zeros(4, dtype=torch.int64), torch.from_numpy(centroids), "hungarian"
    )
    cost = ((vectors[:, None] - centroids[None]) ** 2).sum(-1)
    cheapest = min(permutations(range(5), 4), key=lambda order: sum(cost[i, k] for i, k in enumerate(order)))
    assert ours.tolist() == list(cheapest)


def test_hungarian_keeps_points_that_nearest_drops() -> None:
    """Two points are nearest to the same centroid: `nearest` drops one, `hungarian` assigns it elsewhere."""
    vectors, centroids = torch.tensor([[0.0], [0.1]]), torch.tensor([[0.0], [5.0]])
    images = torch.zeros(2, dtype=torch.int64)
    assert assign_clusters(vectors, images, centroids, "nearest").tolist() == [0, -1]
    assert sorted(assign_clusters(vectors, images, centroids, "hungarian").tolist()) == [0, 1]
