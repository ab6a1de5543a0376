"""Embedding in the plane: neighbors are kept, results repeat, and principal components step in."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE, trustworthiness
from threadpoolctl import threadpool_limits

from selfmark.errors import InputError
from selfmark.points import FloatArray
from selfmark.report import embedding
from selfmark.report.embedding import embed_in_plane, principal_components, tsne


def _clusters(points: int, clusters: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Unit vectors around some directions, and which one each is around."""
    rng = np.random.default_rng(seed)
    label = np.arange(points) % clusters
    vectors = rng.normal(size=(clusters, 32))[label] + 0.5 * rng.normal(size=(points, 32))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), label


def _share_with_neighbor_of_own_cluster(places: FloatArray, label: FloatArray) -> float:
    distance = np.linalg.norm(places[:, None] - places, axis=2) + np.where(np.eye(len(places)), np.inf, 0)
    return float((label[distance.argmin(axis=1)] == label).mean())


@pytest.fixture
def _without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # importing it fails


def test_neighbors_are_kept_as_well_as_by_exact_tsne() -> None:
    vectors, label = _clusters(200, 5)
    places = tsne(vectors)
    assert places.shape == (200, 2)
    assert places.dtype == np.float64
    exact = TSNE(init="pca", method="exact", random_state=0).fit_transform(vectors)
    assert trustworthiness(vectors, places) > trustworthiness(vectors, exact) - 0.01
    assert _share_with_neighbor_of_own_cluster(places, label) > 0.99


def test_neighbors_are_kept_better_than_by_principal_components() -> None:
    vectors, label = _clusters(200, 12)
    assert trustworthiness(vectors, tsne(vectors)) > trustworthiness(vectors, principal_components(vectors))
    kept, projected = (
        _share_with_neighbor_of_own_cluster(places, label)
        for places in (tsne(vectors), principal_components(vectors))
    )
    assert kept > 0.99 > projected


def test_the_same_every_time() -> None:
    vectors, _ = _clusters(60, 3)
    np.testing.assert_array_equal(tsne(vectors), tsne(vectors))
    assert not np.array_equal(tsne(vectors), tsne(vectors, seed=1))


def test_the_same_with_any_number_of_threads() -> None:
    vectors, _ = _clusters(300, 5)
    with threadpool_limits(1):
        alone = tsne(vectors)
    with threadpool_limits(4):
        np.testing.assert_array_equal(tsne(vectors), alone)


def test_scikit_learn_is_used_where_it_is_installed() -> None:
    vectors, _ = _clusters(40, 3)
    np.testing.assert_array_equal(embed_in_plane(vectors), tsne(vectors))


@pytest.mark.usefixtures("_without_scikit_learn")
def test_principal_components_without_scikit_learn() -> None:
    vectors, _ = _clusters(40, 3)
    np.testing.assert_array_equal(embed_in_plane(vectors), principal_components(vectors))
    with pytest.raises(InputError, match=r"pip install 'selfmark\[report\]'"):
        tsne(vectors)


@pytest.mark.parametrize("shape", [(40, 6), (7, 20), (50, 2)])
def test_principal_components_are_those_of_scikit_learn(shape: tuple[int, int]) -> None:
    """Up to the sign of each axis, which is chosen so that the largest coordinate is positive."""
    vectors = np.random.default_rng(0).normal(size=shape)
    ours, theirs = principal_components(vectors), PCA(2).fit_transform(vectors)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-9)
    for axis in ours.T:
        assert axis[np.abs(axis).argmax()] > 0


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_very_few_points_keep_their_distances(count: int) -> None:
    """In a plane already, so the principal components lose nothing."""
    vectors = np.random.default_rng(0).normal(size=(count, 2))
    places = tsne(vectors)
    assert places.shape == (count, 2)
    between = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    np.testing.assert_allclose(np.linalg.norm(places[:, None] - places, axis=2), between, atol=1e-9)


@pytest.mark.parametrize("vectors", [np.ones((20, 3)), np.zeros((6, 1)), np.arange(12.0)[:, None]])
def test_equal_and_one_dimensional_vectors(vectors: FloatArray) -> None:
    places = tsne(vectors)
    assert places.shape == (len(vectors), 2)
    assert np.isfinite(places).all()


def test_few_points_lower_the_perplexity() -> None:
    vectors, label = _clusters(12, 2)
    places = tsne(vectors, perplexity=30)
    assert np.isfinite(places).all()
    left, right = places[label == 0], places[label == 1]
    gap = np.linalg.norm(left.mean(axis=0) - right.mean(axis=0))
    assert gap > 2 * max(left.std(axis=0).max(), right.std(axis=0).max())


@pytest.mark.parametrize("embed", [tsne, principal_components])
def test_wrong_shapes_are_refused(embed: object) -> None:
    with pytest.raises(ValueError, match=r"\[P, D\]"):
        embed(np.zeros(5))  # type: ignore[operator]
