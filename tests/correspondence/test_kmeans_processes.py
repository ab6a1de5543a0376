"""Test that K-means and correspondence recovery give the same clusters in one process and in several."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from selfmark.config import Correspondence
from selfmark.correspondence import kmeans as kmeans_module
from selfmark.correspondence.kmeans import kmeans, nearest_centroid, sample_rows
from selfmark.correspondence.recovery import gather_labels, recover_correspondence
from selfmark.points import LabeledPoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from tests.correspondence.test_recovery import make_known_landmarks
from tests.processes import run_in_processes


def _make_descriptors(points: int, centers: int, spread: float, seed: int = 0) -> torch.Tensor:
    """Return unit vectors around centers; the most frequent center is ten times as frequent as the rarest."""
    generator = torch.Generator().manual_seed(seed)
    frequency = torch.linspace(1, 0.1, centers)
    center_index = torch.multinomial(frequency, points, replacement=True, generator=generator)
    noise = torch.randn(points, 64, generator=generator) * spread / 8
    return normalize(
        normalize(torch.randn(centers, 64, generator=generator), dim=1)[center_index] + noise, dim=1
    )


# For each data set: the vectors, and the number of clusters. In the first data set, many restarts find the
# same clusters in another order. In the second, clusters overlap and there are more centers than clusters, as
# with real descriptors. In the third, there are more clusters than different vectors.
DATA = {
    "well separated": (_make_descriptors(1_000, 6, 0.3), 6),
    "overlapping": (_make_descriptors(6_000, 60, 1.0), 30),
    "two values": (torch.eye(64)[torch.arange(500) % 2], 5),
}


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _select_own_rows(rows: int, group: ProcessGroup, uneven: bool) -> slice:
    """Return the rows of this process.

    The parts are equal, unless `uneven`: then the first process has seven rows, the last has the remaining
    rows, and processes between them have none.
    """
    if not uneven:
        return group.shard(rows)
    cuts = [0, 7, *[7] * (group.size - 2), rows] if group.size > 1 else [0, rows]
    return slice(cuts[group.rank], cuts[group.rank + 1])


def _compute_all(group: ProcessGroup) -> dict[str, Any]:
    """Compute all results that are compared between one process and several."""
    results: dict[str, Any] = {}
    for name, (vectors, clusters) in DATA.items():
        for uneven in (False, True):
            own = vectors[_select_own_rows(len(vectors), group, uneven)]
            results[f"{name}, {uneven=}"] = kmeans(own, clusters, 100, 5, _make_generator(), group)
    # No vector is nearest to the last three centroids, so they get the farthest vectors of all processes.
    vectors = DATA["overlapping"][0]
    start = torch.cat([vectors[:4], 100 + torch.rand(3, 64, generator=_make_generator())])
    results["repaired"] = kmeans_module._lloyd(vectors[group.shard(len(vectors))], start, 4, group)
    rows = _select_own_rows(10_000, group, uneven=True)
    chosen = sample_rows(rows.stop - rows.start, 1_000, _make_generator(), group) + rows.start
    results["sampled"] = group.gather_rows(chosen)
    results["recovered"] = _recover(group)
    return results


def _recover(group: ProcessGroup) -> LabeledPoints:
    described, _ = make_known_landmarks(images=30, landmarks=8)
    images = group.shard(30)
    index = described.points.image_index
    own = described.select((index >= images.start) & (index < images.stop))
    settings = Correspondence(restarts=2, sample=300)  # the sample is smaller than the 540 descriptors
    return gather_labels(recover_correspondence(own, 6, 12, settings, _make_generator(), group), group)


@pytest.fixture(scope="module")
def single_result() -> dict[str, Any]:
    return _compute_all(SINGLE_PROCESS)


@pytest.fixture(scope="module", params=[2, 3])
def process_results(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run_in_processes(request.param, _compute_all)


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_several_processes_find_the_same_clusters_as_one(
    name: str, uneven: bool, single_result: dict[str, Any], process_results: list[dict[str, Any]]
) -> None:
    vectors, _ = DATA[name]
    expected = single_result[f"{name}, {uneven=}"]
    for results in process_results:
        centroids = results[f"{name}, {uneven=}"]
        torch.testing.assert_close(centroids, expected, atol=1e-5, rtol=0)
        if name != "two values":  # several centroids of "two values" are equal
            clusters = nearest_centroid(vectors, centroids).cluster
            assert torch.equal(clusters, nearest_centroid(vectors, expected).cluster)


def test_empty_clusters_get_the_farthest_vectors_of_all_processes(
    single_result: dict[str, Any], process_results: list[dict[str, Any]]
) -> None:
    vectors = DATA["overlapping"][0]
    is_repaired = torch.isin(single_result["repaired"], vectors).all(dim=1)
    assert is_repaired.tolist() == [False] * 4 + [True] * 3
    for results in process_results:
        torch.testing.assert_close(results["repaired"], single_result["repaired"], atol=1e-5, rtol=0)


def test_the_sample_does_not_depend_on_the_distribution_of_rows(
    single_result: dict[str, Any], process_results: list[dict[str, Any]]
) -> None:
    assert len(single_result["sampled"].unique()) == 1_000
    for results in process_results:
        assert torch.equal(results["sampled"], single_result["sampled"])


def test_correspondence_recovery_in_several_processes_gives_the_same_labels(
    single_result: dict[str, Any], process_results: list[dict[str, Any]]
) -> None:
    expected = single_result["recovered"]
    assert len(expected.points) > 100
    assert (expected.label >= 0).any()
    for results in process_results:
        labeled = results["recovered"]
        for name in ("xy", "image_index", "score"):
            assert torch.equal(getattr(labeled.points, name), getattr(expected.points, name))
        assert torch.equal(labeled.label, expected.label)
        assert torch.equal(labeled.mirrored_label, expected.mirrored_label)
        torch.testing.assert_close(labeled.centroids, expected.centroids, atol=1e-5, rtol=0)
