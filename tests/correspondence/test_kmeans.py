"""K-means against a plain Lloyd loop and scikit-learn; determinism; empty-cluster repair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from selfmark.correspondence import kmeans as module
from selfmark.correspondence.kmeans import kmeans, nearest_centroid


def _blobs(clusters: int, each: int, seed: int = 0, spread: float = 0.05) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, 8))
    vectors = np.concatenate([centre + spread * rng.normal(size=(each, 8)) for centre in centres])
    return torch.from_numpy(vectors.astype(np.float32)), centres


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nearest_centroid_against_a_loop() -> None:
    vectors, centroids = torch.randn(50, 6), torch.randn(7, 6)
    found = nearest_centroid(vectors, centroids)
    for index, vector in enumerate(vectors):
        distances = [float(((vector - centroid) ** 2).sum()) for centroid in centroids]
        assert int(found.cluster[index]) == int(np.argmin(distances))
        assert float(found.distance[index]) == pytest.approx(min(distances), abs=1e-4)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centroids = torch.randn(100, 6), torch.randn(7, 6)
    whole = nearest_centroid(vectors, centroids)
    monkeypatch.setattr(module, "_CHUNK", 13)
    assert torch.equal(nearest_centroid(vectors, centroids).cluster, whole.cluster)


def test_lloyd_against_a_plain_loop() -> None:
    vectors = torch.randn(200, 4, dtype=torch.float64)
    start = vectors[:6].clone()
    ours = module._lloyd(vectors, start, 20)
    centroids = start.numpy().copy()
    points = vectors.numpy()
    for _ in range(20):
        labels = np.array([int(((p - centroids) ** 2).sum(axis=1).argmin()) for p in points])
        centroids = np.stack([points[labels == k].mean(axis=0) for k in range(6)])
    np.testing.assert_allclose(ours.numpy(), centroids, atol=1e-9)


def test_finds_well_separated_clusters() -> None:
    vectors, centres = _blobs(12, 40)
    found = kmeans(vectors, 12, 100, 5, 10_000, _generator()).numpy()
    gaps = np.linalg.norm(found[:, None] - centres[None], axis=-1)
    assert sorted(gaps.argmin(axis=0)) == list(range(12))
    assert gaps.min(axis=0).max() < 0.1


def test_as_good_as_scikit_learn() -> None:
    vectors = torch.randn(600, 5, generator=_generator(3))
    cost = float(nearest_centroid(vectors, kmeans(vectors, 15, 100, 10, 10_000, _generator())).distance.sum())
    reference = KMeans(15, n_init=10, max_iter=100, random_state=0).fit(vectors.numpy()).inertia_
    assert cost < 1.02 * reference


def test_same_seed_same_centroids_other_seed_other_run() -> None:
    vectors = torch.randn(300, 5)
    one, again, other = (kmeans(vectors, 20, 5, 1, 200, _generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_an_empty_cluster_is_given_the_farthest_vector() -> None:
    vectors = torch.tensor([[0.0], [0.1], [0.2], [9.0]])
    centroids = torch.tensor([[0.1], [100.0]])  # nothing is nearest to the second
    found = module._lloyd(vectors, centroids, 10)
    assert sorted(round(float(c), 3) for c in found) == [0.1, 9.0]


def test_duplicates_beyond_the_distinct_vectors_do_no_harm() -> None:
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0]]).repeat(20, 1)
    found = kmeans(vectors, 5, 10, 2, 1000, _generator())
    assert torch.isfinite(found).all()
    assert float(nearest_centroid(vectors, found).distance.max()) < 1e-6


def test_too_few_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="3 vectors cannot form 4 clusters"):
        kmeans(torch.randn(3, 2), 4, 10, 1, 100, _generator())
