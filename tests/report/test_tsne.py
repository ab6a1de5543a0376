"""t-SNE: its parts against their definitions, the whole against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.manifold import TSNE, trustworthiness

from selfmark.points import FloatArray
from selfmark.report.tsne import affinities, conditionals, gradient, tsne


def _clusters(points: int, clusters: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Unit vectors around some directions, and which one each is around."""
    rng = np.random.default_rng(seed)
    label = np.arange(points) % clusters
    vectors = rng.normal(size=(clusters, 32))[label] + 0.5 * rng.normal(size=(points, 32))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), label


@pytest.mark.parametrize("perplexity", [2.0, 10.0, 30.0])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_every_row_has_the_perplexity_asked_for(perplexity: float, unit: float) -> None:
    rows = conditionals(unit * _clusters(120, 4)[0], perplexity)
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    assert (np.diag(rows) == 0).all()
    for row in rows:
        seen = row[row > 0]
        assert 2 ** -(seen * np.log2(seen)).sum() == pytest.approx(perplexity, rel=1e-6)


def test_nearer_points_weigh_as_a_gaussian_says() -> None:
    """The log of a row's weights falls in proportion to the squared distance."""
    vectors, _ = _clusters(30, 3)
    rows = conditionals(vectors, 8.0)
    for index in range(30):
        others = np.arange(30) != index
        squared = ((vectors[others] - vectors[index]) ** 2).sum(axis=1)
        assert np.corrcoef(np.log(rows[index, others]), squared)[0, 1] == pytest.approx(-1.0, abs=1e-9)


def _divergence(joint: FloatArray, places: FloatArray) -> float:
    count, total, weight = len(places), 0.0, {}
    for i in range(count):
        for j in range(count):
            if i != j:
                weight[i, j] = 1 / (1 + float(((places[i] - places[j]) ** 2).sum()))
    normalizer = sum(weight.values())
    for pair, value in weight.items():
        total += joint[pair] * np.log(joint[pair] / (value / normalizer))
    return total


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_gradient_is_that_of_the_divergence(seed: int) -> None:
    rng = np.random.default_rng(seed)
    joint, places = affinities(rng.normal(size=(7, 5)), 2.0), rng.normal(size=(7, 2))
    assert joint.sum() == pytest.approx(1.0)
    expected = np.zeros((7, 2))
    for index in np.ndindex(7, 2):
        step = np.zeros((7, 2))
        step[index] = 1e-5
        expected[index] = (_divergence(joint, places + step) - _divergence(joint, places - step)) / 2e-5
    np.testing.assert_allclose(gradient(joint, places), expected, atol=1e-7)


def test_neighbors_are_kept_as_well_as_by_scikit_learn() -> None:
    vectors, label = _clusters(200, 5)
    ours = tsne(vectors)
    theirs = TSNE(init="pca", method="exact", random_state=0, max_iter=400).fit_transform(vectors)
    assert trustworthiness(vectors, ours) > trustworthiness(vectors, theirs) - 0.01
    distance = np.linalg.norm(ours[:, None] - ours, axis=2) + np.where(np.eye(200), np.inf, 0)
    assert (label[distance.argmin(axis=1)] == label).mean() > 0.99


def test_the_same_every_time() -> None:
    vectors, _ = _clusters(60, 3)
    np.testing.assert_array_equal(tsne(vectors, iterations=50), tsne(vectors, iterations=50))


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
    places = tsne(vectors, iterations=60)
    assert places.shape == (len(vectors), 2)
    assert np.isfinite(places).all()


def test_few_points_lower_the_perplexity() -> None:
    vectors, label = _clusters(12, 2)
    places = tsne(vectors, perplexity=30)
    assert np.isfinite(places).all()
    left, right = places[label == 0], places[label == 1]
    gap = np.linalg.norm(left.mean(axis=0) - right.mean(axis=0))
    assert gap > 2 * max(left.std(axis=0).max(), right.std(axis=0).max())


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[P, D\]"):
        tsne(np.zeros(5))
