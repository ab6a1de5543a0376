"""Test how gaps in landmarks are filled: by singular value thresholding, and by the mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfmark.errors import InputError
from selfmark.evaluation.completion import (
    complete_landmarks,
    fill_with_mean,
    mean_landmarks,
    points_per_image,
    shrink_singular_values,
    threshold_singular_values,
)


def make_low_rank_landmarks(
    seed: int, images: int = 200, K: int = 12, rank: int = 3, missing: float = 0.3
) -> tuple[np.ndarray, np.ndarray]:
    """Return landmarks [images, K, 2] whose motion has the given rank: without gaps, and with gaps (NaN)."""
    rng = np.random.default_rng(seed)
    motion = rng.normal(0, 8, (images, rank)) @ rng.normal(size=(rank, 2 * K)) / np.sqrt(rank)
    complete = (motion + rng.uniform(40, 200, 2 * K)).reshape(images, K, 2)
    with_gaps = np.where(rng.random((images, K, 1)) < missing, np.nan, complete)
    return complete, with_gaps


def compute_rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def shrink_with_svd(matrix: np.ndarray, tau: float) -> np.ndarray:
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return u @ np.diag(np.maximum(s - tau, 0)) @ vt


@pytest.mark.parametrize(("missing", "factor"), [(0.3, 20), (0.6, 3)])
def test_gaps_of_low_rank_motion_are_recovered(missing: float, factor: float) -> None:
    complete, with_gaps = make_low_rank_landmarks(0, missing=missing)
    filled = complete_landmarks(with_gaps, 300)
    is_missing = np.isnan(with_gaps)
    baseline = compute_rms((fill_with_mean(with_gaps, mean_landmarks(with_gaps)) - complete)[is_missing])
    assert baseline > 6.0
    assert compute_rms((filled - complete)[is_missing]) < baseline / factor
    assert filled[~is_missing].tobytes() == with_gaps[~is_missing].tobytes()


def test_more_iterations_reduce_the_error() -> None:
    complete, with_gaps = make_low_rank_landmarks(1)
    is_missing = np.isnan(with_gaps)
    errors = [
        compute_rms((complete_landmarks(with_gaps, iterations) - complete)[is_missing])
        for iterations in (5, 30, 150)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_the_first_dual_variable_exceeds_the_threshold() -> None:
    matrix = np.random.default_rng(0).normal(size=(8, 30))
    low_rank, _ = threshold_singular_values(matrix, np.ones(matrix.shape, bool), 0)
    # Singular value thresholding iterates a dual variable Y. The result is Y with all singular values lowered
    # by tau, but not below zero. Without iterations, the result is computed from the first Y. It is zero
    # unless a singular value of this Y exceeds tau.
    assert np.linalg.norm(low_rank) > 0.0


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (12, 12)])
@pytest.mark.parametrize("tau", [0.0, 2.0, 5.0, 1e3])
def test_shrinkage_equals_that_of_a_plain_svd(shape: tuple[int, int], tau: float) -> None:
    matrix = np.random.default_rng(0).normal(size=shape)
    np.testing.assert_allclose(shrink_singular_values(matrix, tau), shrink_with_svd(matrix, tau), atol=1e-10)


def test_the_thresholding_result_is_optimal() -> None:
    # The problem is min tau |X|_* + |X|_F^2 / 2 with X = M on the observed entries. X is optimal if it is
    # feasible and there is a Y, zero on the unobserved entries, such that Y - X is in tau times the
    # subdifferential of the nuclear norm at X.
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 90)) / np.sqrt(2)
    observed = rng.random(matrix.shape) < 0.8
    x, y = threshold_singular_values(matrix, observed, 20_000)
    tau = 5 * np.sqrt(matrix.size)  # the threshold of Cai et al.
    assert compute_rms((x - matrix)[observed]) <= 1e-4 * compute_rms(matrix[observed])
    assert np.all(y[~observed] == 0.0)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    rank = int((s > 1e-8 * s[0]).sum())
    u, vt = u[:, :rank], vt[:rank]
    subgradient = (y - x) / tau
    np.testing.assert_allclose(u.T @ subgradient, vt, atol=1e-8)
    np.testing.assert_allclose(subgradient @ vt.T, u, atol=1e-8)
    assert np.linalg.norm(subgradient, 2) <= 1 + 1e-8
    assert rank == 2  # the rank of the true matrix
    np.testing.assert_allclose(x, matrix, atol=0.02)


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_unit_and_origin_of_the_coordinates_do_not_matter(scale: float, shift: float) -> None:
    _, with_gaps = make_low_rank_landmarks(3, images=40, K=6, rank=2)
    np.testing.assert_allclose(
        complete_landmarks(with_gaps * scale + shift, 60),
        complete_landmarks(with_gaps, 60) * scale + shift,
        atol=1e-6 * scale + 1e-9,
    )


def test_completion_converges_with_many_gaps() -> None:
    # With 85 % missing, the step of Cai et al. is 8, four times the proven limit, and their method diverges.
    complete, with_gaps = make_low_rank_landmarks(4, rank=2, missing=0.85)
    is_missing = np.isnan(with_gaps)
    assert compute_rms((complete_landmarks(with_gaps, 300) - complete)[is_missing]) < compute_rms(
        (fill_with_mean(with_gaps, mean_landmarks(with_gaps)) - complete)[is_missing]
    )


def test_without_gaps_nothing_changes() -> None:
    complete, _ = make_low_rank_landmarks(5, images=20)
    filled = complete_landmarks(complete, 10)
    assert filled.tobytes() == complete.tobytes()
    assert filled is not complete


def test_landmarks_never_found_and_empty_images_get_the_mean() -> None:
    _, with_gaps = make_low_rank_landmarks(6, images=60, K=5)
    with_gaps[:, 3] = np.nan
    with_gaps[7] = np.nan
    filled = complete_landmarks(with_gaps, 100)
    others = np.nanmean(with_gaps[:, [0, 1, 2, 4]], axis=0)
    np.testing.assert_allclose(mean_landmarks(with_gaps)[[0, 1, 2, 4]], others)
    np.testing.assert_allclose(filled[:, 3], np.tile(others.mean(axis=0), (60, 1)))
    np.testing.assert_allclose(filled[7, [0, 1, 2, 4]], others)
    assert np.isfinite(filled).all()


def test_landmarks_that_never_move_stay_in_place() -> None:
    fixed = np.tile(np.array([[3.0, 4.0], [5.0, 6.0]]), (4, 1, 1))
    with_gaps = fixed.copy()
    with_gaps[1, 0] = np.nan
    assert complete_landmarks(with_gaps, 10).tolist() == fixed.tolist()


def test_gaps_are_filled_with_the_mean_and_found_points_are_counted() -> None:
    with_gaps = np.array([[[1.0, 2.0], [np.nan, np.nan]], [[3.0, 4.0], [5.0, 6.0]]])
    assert mean_landmarks(with_gaps).tolist() == [[2.0, 3.0], [5.0, 6.0]]
    filled = fill_with_mean(with_gaps, np.array([[9.0, 9.0], [7.0, 8.0]]))
    assert filled.tolist() == [[[1.0, 2.0], [7.0, 8.0]], [[3.0, 4.0], [5.0, 6.0]]]
    assert points_per_image(with_gaps) == 1.5
    assert points_per_image(np.full((3, 2, 2), np.nan)) == 0.0


def test_finding_no_landmark_is_an_error() -> None:
    with pytest.raises(InputError, match="no landmark was found"):
        complete_landmarks(np.full((3, 2, 2), np.nan), 10)
