"""Stage 1 on its own training images must find the landmarks that the run stored."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from selfmark.config import override
from selfmark.errors import InputError
from selfmark.evaluation.stage1_landmarks import (
    Stage1,
    Stage1Landmarks,
    find_stage1_landmarks,
    silhouette_margins,
)
from selfmark.images.store import load_store
from selfmark.run.config_file import write_config
from selfmark.run.folder import Run


@pytest.fixture(scope="module")
def run(quick_run: Path) -> Run:
    return Run.open(quick_run)


@pytest.fixture(scope="module")
def pixels(run: Run) -> torch.Tensor:
    return load_store(run.refs(), run.config.images, 1.0, None).pixels


@pytest.fixture(scope="module")
def stage1(run: Run) -> Stage1:
    return Stage1.load(run, "cpu")


@pytest.fixture(scope="module")
def found(stage1: Stage1, pixels: torch.Tensor) -> Stage1Landmarks:
    return find_stage1_landmarks(stage1, pixels)


def _stored_points(run: Run) -> dict[str, Any]:
    """The labeled points that the run wrote."""
    tensors = load_file(run.path / "points" / "landmarks.safetensors")
    chosen = tensors["label"] >= 0
    return {name: tensors[name][chosen].numpy() for name in ("xy", "image_index", "label")}


def test_training_images_have_the_landmarks_of_the_run(run: Run, found: Stage1Landmarks) -> None:
    expected = _stored_points(run)
    assert len(expected["label"]) > 24, "the run found too little to compare"
    np.testing.assert_array_equal(found.image, expected["image_index"])
    np.testing.assert_array_equal(found.label, expected["label"])
    np.testing.assert_array_equal(found.xy[found.image, found.label], expected["xy"])


def test_the_table_has_the_listed_points_and_gaps_elsewhere(found: Stage1Landmarks) -> None:
    assert found.xy.shape == (24, 4, 2)
    listed = set(zip(found.image.tolist(), found.label.tolist(), strict=True))
    assert len(listed) == len(found.label), "a cluster occurs at most once in an image"
    for image in range(24):
        for landmark in range(4):
            there = (image, landmark) in listed
            assert found.found[image, landmark] == there
            assert np.isnan(found.xy[image, landmark]).all() == (not there)
    np.testing.assert_allclose(np.linalg.norm(found.descriptor, axis=1), 1.0, atol=1e-5)


def test_the_batch_size_does_not_matter(stage1: Stage1, pixels: torch.Tensor, found: Stage1Landmarks) -> None:
    runtime = replace(stage1.config.runtime, predict_batch=7)
    small = replace(stage1, config=replace(stage1.config, runtime=runtime))
    again = find_stage1_landmarks(small, pixels)
    np.testing.assert_array_equal(again.image, found.image)
    np.testing.assert_array_equal(again.label, found.label)
    np.testing.assert_allclose(again.xy, found.xy, atol=1e-3)
    np.testing.assert_allclose(again.margin, found.margin, atol=1e-4)


def test_mirrored_images_are_not_processed(stage1: Stage1, pixels: torch.Tensor) -> None:
    assert stage1.config.flip.train
    seen: list[int] = []
    hook = stage1.phi.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    find_stage1_landmarks(stage1, pixels)
    hook.remove()
    assert sum(seen) == len(pixels)


def test_the_assignment_setting_is_used(stage1: Stage1, pixels: torch.Tensor) -> None:
    """The one-to-one assignment finds every landmark; assignment to the nearest cluster leaves gaps."""
    settings = replace(stage1.config.correspondence, assignment="hungarian")
    found = find_stage1_landmarks(
        replace(stage1, config=replace(stage1.config, correspondence=settings)), pixels
    )
    assert found.found.all()
    assert not find_stage1_landmarks(stage1, pixels).found.all()


def test_images_without_any_point(stage1: Stage1, pixels: torch.Tensor) -> None:
    blind = replace(stage1, config=override(stage1.config, {"heatmaps.threshold": 2.0}))
    found = find_stage1_landmarks(blind, pixels[:3])
    assert np.isnan(found.xy).all()
    assert found.xy.shape == (3, 4, 2)
    assert found.descriptor.shape == (0, 16)
    assert len(found.image) == len(found.label) == len(found.margin) == 0


@pytest.mark.parametrize("shape", [(0, 3, 64, 64), (3, 64, 64)])
def test_no_images_is_a_value_error(stage1: Stage1, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one image"):
        find_stage1_landmarks(stage1, torch.zeros(shape, dtype=torch.uint8))


@pytest.fixture
def copy(run: Run, tmp_path: Path) -> Run:
    shutil.copytree(run.path, tmp_path / "copy")
    return Run.open(tmp_path / "copy")


def test_an_unfinished_run_is_an_error(copy: Run) -> None:
    (copy.path / "points" / "landmarks.safetensors").unlink()
    with pytest.raises(InputError, match=r"copy has not finished Stage 1: .* --resume"):
        Stage1.load(copy, "cpu")
    assert not (copy.path / "points" / "landmarks.safetensors").exists()


def test_a_run_without_centroids_is_an_error(copy: Run) -> None:
    path = copy.path / "points" / "landmarks.safetensors"
    tensors = load_file(path)
    del tensors["centroids"]
    save_file(tensors, path, {"clusters": "4"})
    with pytest.raises(InputError, match=r"landmarks\.safetensors has no centroids"):
        Stage1.load(copy, "cpu")


def test_weights_of_another_network_are_an_error(copy: Run) -> None:
    write_config(override(copy.config, {"network.channels": 64}), copy.path / "config.yaml")
    with pytest.raises(InputError, match=r"stage1.safetensors does not fit .*config.yaml"):
        Stage1.load(Run.open(copy.path), "cpu")


def test_a_random_state_of_another_device_does_not_matter(copy: Run, stage1: Stage1) -> None:
    path = copy.path / "checkpoints" / "stage1.safetensors"
    save_file(load_file(path) | {"generator": torch.zeros(16, dtype=torch.uint8)}, path, {"iteration": "13"})
    for one, other in zip(Stage1.load(copy, "cpu").phi.parameters(), stage1.phi.parameters(), strict=True):
        assert torch.equal(one, other)


@given(seed=st.integers(0, 2**32 - 1), points=st.integers(0, 12), clusters=st.integers(2, 5))
def test_margins_agree_with_a_loop(seed: int, points: int, clusters: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, centroids = rng.normal(size=(points, 3)), rng.normal(size=(clusters, 3))
    label = rng.integers(0, clusters, points)
    expected = []
    for vector, own in zip(vectors, label, strict=True):
        distances = [float(np.linalg.norm(vector - centroid)) for centroid in centroids]
        a = distances.pop(own)
        expected.append((min(distances) - a) / max(a, min(distances)))
    np.testing.assert_allclose(silhouette_margins(vectors, label, centroids), expected, atol=1e-9)


def test_margins_of_special_cases() -> None:
    one = np.zeros((1, 2))
    assert np.isnan(silhouette_margins(one, np.array([0]), one)).all(), "a single centroid has no rival"
    assert silhouette_margins(one, np.array([0]), np.zeros((2, 2))).tolist() == [0.0], (
        "two centroids in one place"
    )
