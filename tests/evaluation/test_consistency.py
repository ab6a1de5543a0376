"""Test the label-free checks on detectors that are good or broken in a known way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfmark.config import Augment
from selfmark.evaluation import consistency
from selfmark.evaluation.consistency import (
    compute_cluster_separation,
    compute_detection_rates,
    measure_deformation_errors,
    measure_mirror_errors,
)
from tests.evaluation.fakes import CENTER, GREEN, RED, SIZE, build_blob_detector, draw_blobs

NO_COLOR_CHANGE = Augment(
    contrast=(1, 1), brightness=(1, 1), noise=0.0, blur_fraction=0.0, color_fraction=0.0
)
SEED = 3


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def test_a_landmark_that_follows_its_blob_has_no_error() -> None:
    deformed = measure_deformation_errors(
        build_blob_detector(), draw_blobs(12).pixels, 3, NO_COLOR_CHANGE, _make_generator(), batch=5
    )
    assert deformed.error.shape == deformed.moved.shape == (36, 6)
    error = deformed.error[:, [RED, GREEN]]
    assert np.nanmax(error) < 0.02
    assert np.isfinite(error).mean() > 0.8
    assert np.median(deformed.moved[:, RED]) > 0.05


def test_deformed_images_also_get_noise() -> None:
    """Heavy noise moves the maximum of the red channel although the geometry does not change."""
    noisy = replace(NO_COLOR_CHANGE, rotation=0.0, scale=(1, 1), shift=0.0, noise=3.0)
    deformed = measure_deformation_errors(
        build_blob_detector(), draw_blobs(12).pixels, 2, noisy, _make_generator(), batch=12
    )
    assert deformed.moved.max() < 1e-6
    assert np.median(deformed.error[:, RED]) > 0.02


def test_errors_of_known_shifts_are_in_image_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row n * 2 + d is deformation d of image n: here a shift by (n + 10 d, 0) pixels."""
    # Each pair is the range of shifts of one call: deformations 0 and 1 of the first batch (images 0 and 1),
    # then deformations 0 and 1 of the second batch (image 2).
    shifts: Iterator[tuple[int, int]] = iter([(0, 2), (10, 12), (2, 3), (12, 13)])

    def shift(count: int, size: int, settings: Augment, generator: torch.Generator) -> torch.Tensor:
        matrix = torch.eye(2, 3).repeat(count, 1, 1)
        matrix[:, 0, 2] = torch.arange(*next(shifts))
        return matrix

    monkeypatch.setattr(consistency, "random_affine", shift)
    deformed = measure_deformation_errors(
        build_blob_detector(), draw_blobs(3).pixels, 2, NO_COLOR_CHANGE, _make_generator(), batch=2
    )
    expected = np.array([0, 10, 1, 11, 2, 12]) / SIZE
    np.testing.assert_allclose(deformed.moved[:, CENTER], expected, atol=1e-6)
    np.testing.assert_allclose(deformed.error[:, CENTER], expected, atol=1e-6)


def test_landmarks_moved_out_of_the_image_are_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = draw_blobs(8)
    matrix = torch.eye(2, 3).repeat(8, 1, 1)
    matrix[:, 0, 2] = SIZE / 3
    monkeypatch.setattr(consistency, "random_affine", lambda *_: matrix)
    deformed = measure_deformation_errors(
        build_blob_detector(), blobs.pixels, 1, NO_COLOR_CHANGE, _make_generator(), batch=8
    )
    is_outside = blobs.red[:, 0] + SIZE / 3 > SIZE - 0.5
    assert 0 < is_outside.sum() < 8
    np.testing.assert_array_equal(np.isnan(deformed.error[:, RED]), is_outside)
    assert np.isfinite(deformed.moved).all()


@pytest.mark.parametrize("flip_test", [False, True])
def test_mirror_errors_distinguish_correct_and_wrong_partners(flip_test: bool) -> None:
    """Red and green are their own mirror partners, so errors are large if they are swapped."""
    blobs = draw_blobs(7)
    correct = measure_mirror_errors(build_blob_detector(flip_test=flip_test), blobs.pixels, batch=3)
    assert correct.shape == (7, 6)
    assert correct[:, [RED, GREEN, CENTER]].max() < 0.02

    swapped = build_blob_detector(flip_test=flip_test, mirror=(GREEN, RED, 2, 3, 4, 5))
    swapped_errors = measure_mirror_errors(swapped, blobs.pixels, batch=3)
    distance = np.linalg.norm(blobs.red - blobs.green, axis=1) / SIZE
    np.testing.assert_allclose(swapped_errors[:, RED], distance, atol=0.02)
    np.testing.assert_allclose(swapped_errors[:, GREEN], distance, atol=0.02)
    assert swapped.card.flip_test == flip_test


def test_detection_rates_count_the_scores_above_the_threshold() -> None:
    score = np.array([[0.9, 0.5, 0.0], [0.7, 0.6, 0.0]])
    assert compute_detection_rates(score, 0.5).tolist() == [1.0, 0.5, 0.0]


@given(seed=st.integers(0, 2**32 - 1), points=st.integers(0, 15))
def test_separation_agrees_with_a_loop(seed: int, points: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, centroids, label = (
        rng.normal(size=(points, 4)),
        rng.normal(size=(5, 4)),
        rng.integers(0, 4, points),
    )
    expected = []
    for landmark in range(5):
        silhouettes = []
        for vector in vectors[label == landmark]:
            distances = [float(np.linalg.norm(vector - centroid)) for centroid in centroids]
            own = distances.pop(landmark)
            nearest_other = min(distances)
            silhouettes.append((nearest_other - own) / max(own, nearest_other))
        expected.append(sum(silhouettes) / len(silhouettes) if silhouettes else np.nan)
    np.testing.assert_allclose(compute_cluster_separation(vectors, label, centroids), expected, atol=1e-9)
