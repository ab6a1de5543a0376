"""Test K-means: against a plain Lloyd loop and scikit-learn, determinism, repair of empty clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from selfmark.correspondence import kmeans as kmeans_module
from selfmark.correspondence.kmeans import centroid_margins, kmeans, nearest_centroid, sample_rows
from selfmark.run.processes import SINGLE_PROCESS


def _make_blobs(clusters: int, per_cluster: int) -> tuple[torch.Tensor, np.ndarray]:
    """Return vectors [N, 8] around well-separated centers, and the centers [clusters, 8]."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(clusters, 8))
    vectors = np.concatenate([center + 0.05 * rng.normal(size=(per_cluster, 8)) for center in centers])
    return torch.from_numpy(vectors.astype(np.float32)), centers


def _make_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_nearest_centroid_matches_a_loop() -> None:
    vectors, centroids = torch.randn(50, 6), torch.randn(7, 6)
    nearest = nearest_centroid(vectors, centroids)
    for index, vector in enumerate(vectors):
        distances = [float(((vector - centroid) ** 2).sum()) for centroid in centroids]
        assert int(nearest.cluster[index]) == int(np.argmin(distances))
        assert float(nearest.distance[index]) == pytest.approx(min(distances), abs=1e-4)


def test_margins_match_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare margins with projections on the lines from the nearest centroid to all the other centroids.

    The position on a line is 0 at the nearest centroid and 1 at the centroid at its end. The margin is
    1 - 2t, where t is the largest position of the projected vector on any of the lines.
    """
    vectors, centroids = torch.randn(50, 6), torch.randn(7, 6)
    monkeypatch.setattr(kmeans_module, "_block_size", lambda device: 8)
    margins = centroid_margins(vectors, centroids)
    nearest = nearest_centroid(vectors, centroids)
    assert torch.equal(margins.cluster, nearest.cluster)
    assert torch.equal(margins.distance, nearest.distance)
    for index, vector in enumerate(vectors):
        own = centroids[margins.cluster[index]]
        lines = [other - own for k, other in enumerate(centroids) if k != margins.cluster[index]]
        positions = [float((vector - own) @ line / (line @ line)) for line in lines]
        assert float(margins.margin[index]) == pytest.approx(1 - 2 * max(positions), abs=1e-4)


def test_the_margin_between_equal_centroids_is_zero() -> None:
    assert centroid_margins(torch.randn(5, 3), torch.zeros(2, 3)).margin.tolist() == [0.0] * 5


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centroids = torch.randn(100, 6), torch.randn(7, 6)
    assigned, expected = nearest_centroid(vectors, centroids), kmeans(vectors, 7, 50, 3, _make_generator())
    monkeypatch.setattr(kmeans_module, "_block_size", lambda device: 13)
    assert torch.equal(nearest_centroid(vectors, centroids).cluster, assigned.cluster)
    torch.testing.assert_close(kmeans(vectors, 7, 50, 3, _make_generator()), expected)


def test_lloyd_matches_a_plain_loop() -> None:
    vectors = torch.randn(200, 4, dtype=torch.float64)
    start = vectors[:6].clone()
    ours = kmeans_module._lloyd(vectors, start, 20, SINGLE_PROCESS)
    centroids = start.numpy().copy()
    points = vectors.numpy()
    for _ in range(20):
        labels = np.array([int(((point - centroids) ** 2).sum(axis=1).argmin()) for point in points])
        centroids = np.stack([points[labels == k].mean(axis=0) for k in range(6)])
    np.testing.assert_allclose(ours.numpy(), centroids, atol=1e-9)


def test_well_separated_clusters_are_found() -> None:
    vectors, centers = _make_blobs(12, 40)
    centroids = kmeans(vectors, 12, 100, 5, _make_generator()).numpy()
    distances = np.linalg.norm(centroids[:, None] - centers[None], axis=-1)
    assert sorted(distances.argmin(axis=0)) == list(range(12))
    assert distances.min(axis=0).max() < 0.1


def test_the_cost_is_as_low_as_that_of_scikit_learn() -> None:
    vectors = torch.randn(600, 5, generator=_make_generator(3))
    cost = float(nearest_centroid(vectors, kmeans(vectors, 15, 100, 10, _make_generator())).distance.sum())
    sklearn_inertia = KMeans(15, n_init=10, max_iter=100, random_state=0).fit(vectors.numpy()).inertia_
    assert cost < 1.02 * sklearn_inertia


def test_equal_seeds_give_equal_centroids() -> None:
    vectors = torch.randn(300, 5)
    first, repeated, with_other_seed = (
        kmeans(vectors, 20, 5, 1, _make_generator(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, repeated)
    assert not torch.equal(first, with_other_seed)


def test_an_empty_cluster_gets_the_farthest_vector() -> None:
    vectors = torch.tensor([[0.0], [0.1], [0.2], [9.0]])
    centroids = torch.tensor([[0.1], [100.0]])  # no vector is nearest to the second centroid
    repaired = kmeans_module._lloyd(vectors, centroids, 10, SINGLE_PROCESS)
    assert sorted(round(float(centroid), 3) for centroid in repaired) == [0.1, 9.0]


def test_more_clusters_than_distinct_vectors_are_allowed() -> None:
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0]]).repeat(20, 1)
    centroids = kmeans(vectors, 5, 10, 2, _make_generator())
    assert torch.isfinite(centroids).all()
    assert float(nearest_centroid(vectors, centroids).distance.max()) < 1e-6


def test_too_few_vectors_raise() -> None:
    with pytest.raises(ValueError, match="3 vectors cannot form 4 clusters"):
        kmeans(torch.randn(3, 2), 4, 10, 1, _make_generator())


def test_seeding_matches_a_plain_loop() -> None:
    """Run k-means++ with the same random numbers, one run and one row at a time."""
    vectors = torch.randn(80, 3, generator=_make_generator(1))
    draws = torch.rand(4, 6, generator=_make_generator(2), dtype=torch.float64)
    expected = []
    for run in draws.tolist():
        points = vectors.double().numpy()
        seeds: list[np.ndarray] = []
        for draw in run:
            # The weight of a point is its squared distance to the nearest seed.
            weights = [
                min((((point - chosen) ** 2).sum() for chosen in seeds), default=1.0) for point in points
            ]
            cumulative, row = weights[0], 0
            while cumulative <= draw * sum(weights):
                row += 1
                cumulative += weights[row]
            seeds.append(points[row])
        expected.append(seeds)
    np.testing.assert_array_equal(
        kmeans_module._seed(vectors, draws, SINGLE_PROCESS).double().numpy(), np.array(expected)
    )


def test_all_rows_are_equally_likely_to_be_sampled() -> None:
    generator = _make_generator(4)
    drawn = [sample_rows(10, 7, generator) for _ in range(4_000)]
    assert all(len(rows.unique()) == 7 for rows in drawn)
    frequency = torch.bincount(torch.cat(drawn), minlength=10) / len(drawn)
    # One standard deviation is 0.007.
    assert frequency.tolist() == pytest.approx([0.7] * 10, abs=0.03)


def test_a_sample_covers_all_rows() -> None:
    """One row is chosen from each interval, so no part of the data is left out."""
    rows = sample_rows(1_000_000, 1_000, _make_generator(5))
    assert len(rows) == 1_000
    assert int(rows.diff().max()) < 2_000
    assert int(rows[0]) < 2_000
    assert int(rows[-1]) >= 998_000


def test_the_matmul_precision_is_restored() -> None:
    """K-means multiplies matrices in full float32 and then restores the previous setting."""
    before = torch.get_float32_matmul_precision()
    precisions = []

    class RecordingTensor(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
            precisions.append(torch.get_float32_matmul_precision())
            return super().__torch_function__(function, types, arguments, options or {})

    torch.set_float32_matmul_precision("medium")
    try:
        nearest_centroid(torch.randn(5, 2), torch.randn(3, 2).as_subclass(RecordingTensor))
        assert set(precisions) == {"highest"}
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_sums_on_the_gpu_match_the_cpu_and_are_deterministic() -> None:
    vectors = torch.randn(300_000, 64, generator=_make_generator(6))
    centroids = vectors[:40]
    total, count = kmeans_module._sum_by_cluster(vectors, centroids, SINGLE_PROCESS)
    on_gpu = [
        kmeans_module._sum_by_cluster(vectors.cuda(), centroids.cuda(), SINGLE_PROCESS) for _ in range(3)
    ]
    torch.testing.assert_close(on_gpu[0][0].cpu(), total, atol=0.05, rtol=1e-5)
    assert torch.equal(on_gpu[0][1].cpu(), count)
    assert all(torch.equal(sums, on_gpu[0][0]) for sums, _ in on_gpu)

    def fit() -> torch.Tensor:
        return kmeans(vectors.cuda(), 40, 20, 2, torch.Generator("cuda").manual_seed(0))

    assert torch.equal(fit(), fit())


def test_the_first_of_several_runs_with_the_same_clusters_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run that is cheaper only by a rounding error is not preferred."""
    vectors, _ = _make_blobs(4, 50)
    first = kmeans(vectors, 4, 50, 1, _make_generator())
    real_nearest_centroid, calls = nearest_centroid, iter(range(100))

    def lower_cost(vectors: torch.Tensor, centroids: torch.Tensor) -> kmeans_module.NearestCentroids:
        nearest = real_nearest_centroid(vectors.double(), centroids.double())
        return nearest._replace(distance=nearest.distance * (1 - 1e-8 * next(calls)))

    monkeypatch.setattr(kmeans_module, "nearest_centroid", lower_cost)
    assert torch.equal(kmeans(vectors, 4, 50, 5, _make_generator()), first)
    assert next(calls) == 5
