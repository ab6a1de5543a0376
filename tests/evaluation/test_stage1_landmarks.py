"""Compare the landmarks of Stage 1 or of a zero-shot run with the stored points and with naive loops."""

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

from selfmark.config import Features, override, preset
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.correspondence.zero_shot import place_parts
from selfmark.errors import InputError
from selfmark.evaluation import stage1_landmarks
from selfmark.evaluation.stage1_landmarks import (
    Stage1,
    Stage1Landmarks,
    ZeroShotStage1,
    compute_silhouette_margins,
    find_stage1_landmarks,
    load_stage1_finder,
)
from selfmark.images.store import load_store
from selfmark.model.card import read_card, write_card
from selfmark.pipeline_steps import build_card
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.config_file import write_config
from selfmark.run.folder import Run
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder


@pytest.fixture(scope="module")
def run(quick_run: Path) -> Run:
    return Run.open(quick_run)


@pytest.fixture(scope="module")
def pixels(run: Run) -> torch.Tensor:
    return load_store(run.refs(), run.config.images, store_gigabytes=1.0, scratch=None).pixels


@pytest.fixture(scope="module")
def stage1(run: Run) -> Stage1:
    return Stage1.load(run, "cpu")


@pytest.fixture(scope="module")
def landmarks(stage1: Stage1, pixels: torch.Tensor) -> Stage1Landmarks:
    return find_stage1_landmarks(stage1, pixels)


def _read_stored_points(run: Run) -> dict[str, Any]:
    """Return the labeled points that the run stored."""
    tensors = load_file(run.path / "points" / "landmarks.safetensors")
    chosen = tensors["label"] >= 0
    return {name: tensors[name][chosen].numpy() for name in ("xy", "image_index", "label")}


def test_training_images_have_the_landmarks_of_the_run(run: Run, landmarks: Stage1Landmarks) -> None:
    expected = _read_stored_points(run)
    assert len(expected["label"]) > 24, "the run found too little to compare"
    np.testing.assert_array_equal(landmarks.image, expected["image_index"])
    np.testing.assert_array_equal(landmarks.label, expected["label"])
    np.testing.assert_array_equal(landmarks.xy[landmarks.image, landmarks.label], expected["xy"])


def test_the_table_has_the_listed_points_and_gaps_elsewhere(landmarks: Stage1Landmarks) -> None:
    assert landmarks.xy.shape == (24, 4, 2)
    listed = set(zip(landmarks.image.tolist(), landmarks.label.tolist(), strict=True))
    assert len(listed) == len(landmarks.label), "a cluster occurs at most once in an image"
    for image in range(24):
        for landmark in range(4):
            is_listed = (image, landmark) in listed
            assert landmarks.found[image, landmark] == is_listed
            assert np.isnan(landmarks.xy[image, landmark]).all() == (not is_listed)
    np.testing.assert_allclose(np.linalg.norm(landmarks.descriptor, axis=1), 1.0, atol=1e-5)


def test_the_batch_size_does_not_matter(
    stage1: Stage1, pixels: torch.Tensor, landmarks: Stage1Landmarks
) -> None:
    runtime = replace(stage1.config.runtime, predict_batch=7)
    small_stage1 = replace(stage1, config=replace(stage1.config, runtime=runtime))
    small_batches = find_stage1_landmarks(small_stage1, pixels)
    np.testing.assert_array_equal(small_batches.image, landmarks.image)
    np.testing.assert_array_equal(small_batches.label, landmarks.label)
    np.testing.assert_allclose(small_batches.xy, landmarks.xy, atol=1e-3)
    np.testing.assert_allclose(small_batches.margin, landmarks.margin, atol=1e-4)


def test_mirrored_images_are_not_processed(stage1: Stage1, pixels: torch.Tensor) -> None:
    assert stage1.config.flip.train
    batch_sizes: list[int] = []
    hook = stage1.phi.register_forward_hook(lambda _, inputs, __: batch_sizes.append(len(inputs[0])))
    find_stage1_landmarks(stage1, pixels)
    hook.remove()
    assert sum(batch_sizes) == len(pixels)


def test_the_assignment_setting_is_used(stage1: Stage1, pixels: torch.Tensor) -> None:
    """The one-to-one assignment finds every landmark; assignment to the nearest cluster leaves gaps."""
    settings = replace(stage1.config.correspondence, assignment="hungarian")
    landmarks = find_stage1_landmarks(
        replace(stage1, config=replace(stage1.config, correspondence=settings)), pixels
    )
    assert landmarks.found.all()
    assert not find_stage1_landmarks(stage1, pixels).found.all()


def test_images_without_any_point_have_no_landmarks(stage1: Stage1, pixels: torch.Tensor) -> None:
    without_points = replace(stage1, config=override(stage1.config, {"heatmaps.threshold": 2.0}))
    landmarks = find_stage1_landmarks(without_points, pixels[:3])
    assert np.isnan(landmarks.xy).all()
    assert landmarks.xy.shape == (3, 4, 2)
    assert landmarks.descriptor.shape == (0, 16)
    assert len(landmarks.image) == len(landmarks.label) == len(landmarks.margin) == 0


@pytest.mark.parametrize("shape", [(0, 3, 64, 64), (3, 64, 64)])
def test_an_empty_batch_or_a_single_image_is_a_value_error(stage1: Stage1, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least one image"):
        find_stage1_landmarks(stage1, torch.zeros(shape, dtype=torch.uint8))


@pytest.fixture
def run_copy(run: Run, tmp_path: Path) -> Run:
    shutil.copytree(run.path, tmp_path / "run_copy")
    return Run.open(tmp_path / "run_copy")


def test_an_unfinished_run_is_an_error(run_copy: Run) -> None:
    (run_copy.path / "points" / "landmarks.safetensors").unlink()
    with pytest.raises(InputError, match=r"run_copy has not finished Stage 1: .* --resume"):
        Stage1.load(run_copy, "cpu")
    assert not (run_copy.path / "points" / "landmarks.safetensors").exists()


def test_a_run_without_centroids_is_an_error(run_copy: Run) -> None:
    path = run_copy.path / "points" / "landmarks.safetensors"
    tensors = load_file(path)
    del tensors["centroids"]
    save_file(tensors, path, {"clusters": "4"})
    with pytest.raises(InputError, match=r"landmarks\.safetensors has no centroids"):
        Stage1.load(run_copy, "cpu")


def test_weights_of_another_network_are_an_error(run_copy: Run) -> None:
    write_config(override(run_copy.config, {"network.channels": 64}), run_copy.path / "config.yaml")
    with pytest.raises(InputError, match=r"stage1.safetensors does not fit .*config.yaml"):
        Stage1.load(Run.open(run_copy.path), "cpu")


def test_a_random_state_of_another_device_does_not_matter(run_copy: Run, stage1: Stage1) -> None:
    path = run_copy.path / "checkpoints" / "stage1.safetensors"
    save_file(load_file(path) | {"generator": torch.zeros(16, dtype=torch.uint8)}, path, {"iteration": "13"})
    loaded = Stage1.load(run_copy, "cpu").phi.parameters()
    for ours, expected in zip(loaded, stage1.phi.parameters(), strict=True):
        assert torch.equal(ours, expected)


@given(seed=st.integers(0, 2**32 - 1), points=st.integers(0, 12), clusters=st.integers(2, 5))
def test_margins_agree_with_a_naive_loop(seed: int, points: int, clusters: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, centroids = rng.normal(size=(points, 3)), rng.normal(size=(clusters, 3))
    label = rng.integers(0, clusters, points)
    expected = []
    for vector, own in zip(vectors, label, strict=True):
        distances = [float(np.linalg.norm(vector - centroid)) for centroid in centroids]
        own_distance = distances.pop(own)
        nearest_other = min(distances)
        expected.append((nearest_other - own_distance) / max(own_distance, nearest_other))
    np.testing.assert_allclose(compute_silhouette_margins(vectors, label, centroids), expected, atol=1e-9)


def test_margins_are_unknown_for_one_centroid_and_zero_for_equal_centroids() -> None:
    point = np.zeros((1, 2))
    assert np.isnan(compute_silhouette_margins(point, np.array([0]), point)).all(), (
        "there is no other centroid"
    )
    assert compute_silhouette_margins(point, np.array([0]), np.zeros((2, 2))).tolist() == [0.0], (
        "two centroids at one position"
    )


# --- runs with pretrained features -------------------------------------------------------------------

IMAGES = (random_images(5, 64) * 255).byte()


@pytest.fixture
def feature_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with three zero-shot landmarks and a tiny encoder."""
    monkeypatch.setattr(stage1_landmarks, "load_encoder", lambda name, device: TinyEncoder())
    config = override(
        preset("tiny"), {"features.name": "efficientnet-lite0", "K": 3, "runtime.predict_batch": 2}
    )
    Run.create(tmp_path / "run", config, ["photos"], [])
    run = Run.open(tmp_path / "run")
    centroids = torch.nn.functional.normalize(
        torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), dim=1
    )
    points = Keypoints(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), torch.ones(3))
    label = torch.arange(3)
    run.load_or_compute_labels(
        "landmarks", torch.device("cpu"), lambda: LabeledPoints(points, label, label.clone(), 3, centroids)
    )
    run.model_folder.mkdir()
    _write_card_with_source(run, "zero-shot")
    return run


def _write_card_with_source(run: Run, source: str) -> None:
    card = build_card(run, LandmarkPartners.identity(3), 5)
    card.provenance["landmarks"] = source
    write_card(card, run.model_folder)


@pytest.mark.parametrize("source", ["zero-shot", "features"])
def test_runs_from_zero_shot_landmarks_use_the_zero_shot_finder(source: str, feature_run: Run) -> None:
    _write_card_with_source(feature_run, source)
    assert isinstance(load_stage1_finder(feature_run, "cpu"), ZeroShotStage1)


def test_runs_from_keypoints_use_the_stage_1_finder(
    feature_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_card_with_source(feature_run, "keypoints")
    loaded: list[Run] = []
    monkeypatch.setattr(Stage1, "load", lambda run, device: loaded.append(run))
    load_stage1_finder(feature_run, "cpu")
    assert loaded == [feature_run]


def test_runs_without_features_use_the_stage_1_finder(run: Run) -> None:
    assert read_card(run.model_folder).architecture == "hourglass"
    assert isinstance(load_stage1_finder(run, "cpu"), Stage1)


def test_zero_shot_landmarks_match_those_of_the_pipeline(feature_run: Run) -> None:
    finder = load_stage1_finder(feature_run, "cpu")
    landmarks = find_stage1_landmarks(finder, IMAGES)
    with torch.no_grad():
        cells = TinyEncoder().describe(IMAGES.float() / 255)
    placed = place_parts(cells, finder.centroids, Features().sharpness)
    np.testing.assert_allclose(landmarks.xy, placed.xy.numpy(), atol=1e-3)
    assert landmarks.found.all()
    assert landmarks.image.tolist() == [image for image in range(5) for _ in range(3)]
    assert landmarks.label.tolist() == [0, 1, 2] * 5


def test_descriptors_are_the_features_around_a_zero_shot_landmark(feature_run: Run) -> None:
    """Compare with a naive bilinear interpolation of the four nearest cells."""
    landmarks = find_stage1_landmarks(load_stage1_finder(feature_run, "cpu"), IMAGES)
    with torch.no_grad():
        cells = TinyEncoder().describe(IMAGES.float() / 255).numpy()
    for point, (image, label) in enumerate(zip(landmarks.image, landmarks.label, strict=True)):
        position = ((landmarks.xy[image, label] + 0.5) / 8 - 0.5).clip(0, 7)  # the border is repeated
        expected = np.zeros(8)
        for row, column in np.ndindex(8, 8):
            overlap_x, overlap_y = (1 - np.abs(position - (column, row))).clip(0)
            expected += overlap_x * overlap_y * cells[image, :, row, column]
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(landmarks.descriptor[point], expected, atol=1e-3)


def test_an_unfinished_run_with_features_is_an_error(feature_run: Run) -> None:
    (feature_run.path / "points" / "landmarks.safetensors").unlink()
    with pytest.raises(InputError, match="--resume"):
        load_stage1_finder(feature_run, "cpu")
