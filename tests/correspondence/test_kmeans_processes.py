"""K-means and correspondence recovery spread over processes: the clusters of one process on the same data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from selfmark.config import Correspondence
from selfmark.correspondence import kmeans as module
from selfmark.correspondence.kmeans import kmeans, nearest_centroid, sample_rows
from selfmark.correspondence.recovery import gather_labels, recover_correspondence
from selfmark.points import LabeledPoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from tests.correspondence.test_recovery import _known as known_landmarks
from tests.processes import in_processes


def _descriptors(points: int, centers: int, spread: float, seed: int = 0) -> torch.Tensor:
    """Unit vectors around centers that some points are ten times as likely to show as others."""
    generator = torch.Generator().manual_seed(seed)
    likely = torch.linspace(1, 0.1, centers)
    which = torch.multinomial(likely, points, replacement=True, generator=generator)
    noise = torch.randn(points, 64, generator=generator) * spread / 8
    return normalize(normalize(torch.randn(centers, 64, generator=generator), dim=1)[which] + noise, dim=1)


# name: (vectors, clusters). In the first kind many runs find the same clusters in another order; the second
# overlaps and has more centers than clusters, as descriptors do.
DATA = {
    "well separated": (_descriptors(1_000, 6, 0.3), 6),
    "overlapping": (_descriptors(6_000, 60, 1.0), 30),
    "two values": (torch.eye(64)[torch.arange(500) % 2], 5),
}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def _part(rows: int, group: ProcessGroup, uneven: bool) -> slice:
    """This process's rows: even shares, or all for the last process but a few for the first."""
    if not uneven:
        return group.shard(rows)
    cuts = [0, 7, *[7] * (group.size - 2), rows] if group.size > 1 else [0, rows]
    return slice(cuts[group.rank], cuts[group.rank + 1])


def _everything(group: ProcessGroup) -> dict[str, Any]:
    """What is compared between one process and several."""
    found: dict[str, Any] = {}
    for name, (vectors, clusters) in DATA.items():
        for uneven in (False, True):
            own = vectors[_part(len(vectors), group, uneven)]
            found[f"{name}, {uneven=}"] = kmeans(own, clusters, 100, 5, _generator(), group)
    # Nothing is nearest to the last three: they take the farthest vectors of all processes.
    vectors = DATA["overlapping"][0]
    start = torch.cat([vectors[:4], 100 + torch.rand(3, 64, generator=_generator())])
    found["repaired"] = module._lloyd(vectors[group.shard(len(vectors))], start, 4, group)
    part = _part(10_000, group, uneven=True)
    chosen = sample_rows(part.stop - part.start, 1_000, _generator(), group) + part.start
    found["sampled"] = group.gather_rows(chosen)
    found["recovered"] = _recovered(group)
    return found


def _recovered(group: ProcessGroup) -> LabeledPoints:
    described, _ = known_landmarks(images=30, landmarks=8)
    images = group.shard(30)
    index = described.points.image_index
    own = described.select((index >= images.start) & (index < images.stop))
    settings = Correspondence(restarts=2, sample=300)  # fewer than the 540 descriptors
    return gather_labels(recover_correspondence(own, 6, 12, settings, _generator(), group), group)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return _everything(SINGLE_PROCESS)


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return in_processes(request.param, _everything)


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("name", DATA)
def test_same_clusters(
    name: str, uneven: bool, alone: dict[str, Any], together: list[dict[str, Any]]
) -> None:
    vectors, _ = DATA[name]
    expected = alone[f"{name}, {uneven=}"]
    for found in together:
        centroids = found[f"{name}, {uneven=}"]
        torch.testing.assert_close(centroids, expected, atol=1e-5, rtol=0)
        if name != "two values":  # there several centroids are the same
            ours, theirs = nearest_centroid(vectors, centroids), nearest_centroid(vectors, expected)
            assert torch.equal(ours.cluster, theirs.cluster)


def test_empty_clusters_take_the_farthest_vectors_of_all(
    alone: dict[str, Any], together: list[dict[str, Any]]
) -> None:
    vectors = DATA["overlapping"][0]
    given = torch.isin(alone["repaired"], vectors).all(dim=1)
    assert given.tolist() == [False] * 4 + [True] * 3
    for found in together:
        torch.testing.assert_close(found["repaired"], alone["repaired"], atol=1e-5, rtol=0)


def test_same_sample_however_rows_are_spread(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    assert len(alone["sampled"].unique()) == 1_000
    for found in together:
        assert torch.equal(found["sampled"], alone["sampled"])


def test_same_labels_after_a_whole_recovery(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    expected = alone["recovered"]
    assert len(expected.points) > 100
    assert (expected.label >= 0).any()
    for found in together:
        labeled = found["recovered"]
        for name in ("xy", "image_index", "score"):
            assert torch.equal(getattr(labeled.points, name), getattr(expected.points, name))
        assert torch.equal(labeled.label, expected.label)
        assert torch.equal(labeled.mirrored_label, expected.mirrored_label)
        torch.testing.assert_close(labeled.centroids, expected.centroids, atol=1e-5, rtol=0)
