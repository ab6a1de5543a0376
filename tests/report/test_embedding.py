"""Test embedding in the plane: t-SNE keeps neighbors and is reproducible; PCA replaces it if necessary."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE, trustworthiness
from threadpoolctl import threadpool_limits

from selfmark.errors import InputError
from selfmark.evaluation.run_models import RunModels
from selfmark.images.store import load_store
from selfmark.points import FloatArray
from selfmark.report import embedding, embedding_process, run_report
from selfmark.report.embedding import embed_in_plane, principal_components, tsne
from selfmark.report.embedding_process import EmbeddingProcess
from selfmark.report.run_report import build_report, embed_meanwhile
from selfmark.run.folder import Run


def _make_clusters(points: int, clusters: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Return unit vectors that form clusters, and the cluster of each vector."""
    rng = np.random.default_rng(seed)
    label = np.arange(points) % clusters
    vectors = rng.normal(size=(clusters, 32))[label] + 0.5 * rng.normal(size=(points, 32))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), label


def _measure_nearest_neighbor_accuracy(positions: FloatArray, label: FloatArray) -> float:
    distance = np.linalg.norm(positions[:, None] - positions, axis=2) + np.where(
        np.eye(len(positions)), np.inf, 0
    )
    return float((label[distance.argmin(axis=1)] == label).mean())


@pytest.fixture
def _without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn", None)  # Importing scikit-learn fails.


def test_neighbors_are_kept_as_well_as_by_exact_tsne() -> None:
    vectors, label = _make_clusters(200, 5)
    positions = tsne(vectors)
    assert positions.shape == (200, 2)
    assert positions.dtype == np.float64
    exact_positions = TSNE(init="pca", method="exact", random_state=0).fit_transform(vectors)
    assert trustworthiness(vectors, positions) > trustworthiness(vectors, exact_positions) - 0.01
    assert _measure_nearest_neighbor_accuracy(positions, label) > 0.99


def test_neighbors_are_kept_better_than_by_principal_components() -> None:
    vectors, label = _make_clusters(200, 12)
    assert trustworthiness(vectors, tsne(vectors)) > trustworthiness(vectors, principal_components(vectors))
    by_tsne, by_projection = (
        _measure_nearest_neighbor_accuracy(positions, label)
        for positions in (tsne(vectors), principal_components(vectors))
    )
    assert by_tsne > 0.99 > by_projection


def test_tsne_is_reproducible() -> None:
    vectors, _ = _make_clusters(60, 3)
    np.testing.assert_array_equal(tsne(vectors), tsne(vectors))
    assert not np.array_equal(tsne(vectors), tsne(vectors, seed=1))


def test_tsne_does_not_depend_on_the_number_of_threads() -> None:
    vectors, _ = _make_clusters(300, 5)
    with threadpool_limits(1):
        one_thread = tsne(vectors)
    with threadpool_limits(4):
        np.testing.assert_array_equal(tsne(vectors), one_thread)


def test_scikit_learn_is_used_where_it_is_installed() -> None:
    vectors, _ = _make_clusters(40, 3)
    np.testing.assert_array_equal(embed_in_plane(vectors), tsne(vectors))


@pytest.mark.usefixtures("_without_scikit_learn")
def test_without_scikit_learn_principal_components_are_used() -> None:
    vectors, _ = _make_clusters(40, 3)
    np.testing.assert_array_equal(embed_in_plane(vectors), principal_components(vectors))
    with pytest.raises(InputError, match=r"pip install 'selfmark\[report\]'"):
        tsne(vectors)


@pytest.mark.parametrize("shape", [(40, 6), (7, 20), (50, 2)])
def test_principal_components_match_scikit_learn(shape: tuple[int, int]) -> None:
    """The axes agree up to their signs. Our signs make the coordinate farthest from 0 positive."""
    vectors = np.random.default_rng(0).normal(size=shape)
    ours, theirs = principal_components(vectors), PCA(2).fit_transform(vectors)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-9)
    for axis in ours.T:
        assert axis[np.abs(axis).argmax()] > 0


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_very_few_points_keep_their_distances(count: int) -> None:
    """The vectors already lie in a plane, so the principal components lose nothing."""
    vectors = np.random.default_rng(0).normal(size=(count, 2))
    positions = tsne(vectors)
    assert positions.shape == (count, 2)
    distances = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    np.testing.assert_allclose(np.linalg.norm(positions[:, None] - positions, axis=2), distances, atol=1e-9)


@pytest.mark.parametrize("vectors", [np.ones((20, 3)), np.zeros((6, 1)), np.arange(12.0)[:, None]])
def test_equal_and_one_dimensional_vectors_get_finite_positions(vectors: FloatArray) -> None:
    positions = tsne(vectors)
    assert positions.shape == (len(vectors), 2)
    assert np.isfinite(positions).all()


def test_few_points_lower_the_perplexity() -> None:
    vectors, label = _make_clusters(12, 2)
    positions = tsne(vectors, perplexity=30)
    assert np.isfinite(positions).all()
    left, right = positions[label == 0], positions[label == 1]
    gap = np.linalg.norm(left.mean(axis=0) - right.mean(axis=0))
    assert gap > 2 * max(left.std(axis=0).max(), right.std(axis=0).max())


@pytest.mark.parametrize("embed", [tsne, principal_components])
def test_wrong_shapes_are_value_errors(embed: object) -> None:
    with pytest.raises(ValueError, match=r"\[P, D\]"):
        embed(np.zeros(5))  # type: ignore[operator]


def test_a_child_process_computes_the_same_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = _make_clusters(60, 3)
    expected = tsne(vectors)
    monkeypatch.setattr(embedding, "tsne", lambda _: pytest.fail("computed in this process"))
    with closing(EmbeddingProcess(vectors)) as process:
        np.testing.assert_array_equal(process.result(), expected)


def test_the_process_does_not_import_torch() -> None:
    script = "import runpy, sys; runpy.run_path(sys.argv[1]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script, embedding.__file__], check=False).returncode == 0


def test_positions_are_computed_in_this_process_if_the_child_process_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedding_process, "_START", "raise SystemExit(1)")
    vectors, _ = _make_clusters(60, 3)
    with closing(EmbeddingProcess(vectors)) as process:
        np.testing.assert_array_equal(process.result(), tsne(vectors))


class _FakeProcess:
    def __init__(self, vectors: FloatArray) -> None:
        self._vectors = vectors

    def result(self) -> FloatArray:
        return principal_components(self._vectors)

    def close(self) -> None:
        pass


def test_the_report_of_a_gpu_run_finds_the_map_of_its_landmarks(
    quick_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a GPU: the networks run on the CPU, and the run has the device "meta" in place of a GPU."""
    ignore = shutil.ignore_patterns("predictions", "report")
    run = Run.open(Path(shutil.copytree(quick_run, tmp_path / "run", ignore=ignore)))
    models = RunModels.open(run, "cpu")
    store = load_store(run.refs(), run.config.images, float("inf"), None)
    on_gpu = SimpleNamespace(
        run=run, card=models.card, device=torch.device("meta"), detector=models.detector, stage1=models.stage1
    )
    monkeypatch.setattr(run_report, "EmbeddingProcess", _FakeProcess)  # Other tests run a real process.
    with embed_meanwhile(cast(RunModels, on_gpu), store):
        assert not (run.path / "predictions").exists()
    monkeypatch.setattr(run_report, "embed_in_plane", None)
    page = build_report(models, image_store=store)
    assert page.exists()
