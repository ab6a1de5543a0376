"""Test the unexplained fraction: the error of predicting some landmarks from others, relative to guessing.

The tests compare the fraction with scikit-learn and with known answers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from selfmark.correspondence.agreement import unexplained_fraction

Points = npt.NDArray[np.float64]


def _make_shapes(images: int = 400, landmarks: int = 6, seed: int = 0) -> Points:
    """Return landmarks [N, K, 2], in pixels, of a shape that is shifted, scaled and rotated in each image."""
    rng = np.random.default_rng(seed)
    shape = rng.normal(size=landmarks) + 1j * rng.normal(size=landmarks)
    turn = np.exp(rng.normal(0, 0.2, (images, 1)) + 1j * rng.normal(0, 0.5, (images, 1)))
    shift = rng.normal(size=(images, 1)) + 1j * rng.normal(size=(images, 1))
    points = 128 + 30 * (shape * turn + shift)
    return np.stack([points.real, points.imag], axis=2)


def _draw_noise(shape: tuple[int, ...], sigma: float, seed: int) -> Points:
    return np.random.default_rng(seed).normal(0, sigma, shape)


def _mark_all_present(points: Points) -> npt.NDArray[np.bool_]:
    return np.ones(points.shape[:2], dtype=bool)


def test_a_linear_function_is_explained() -> None:
    points = _make_shapes()
    mixed = np.einsum("nkc,lk->nlc", points, np.random.default_rng(1).normal(size=(4, 6)))
    assert unexplained_fraction(points, points, _mark_all_present(points)) < 0.05
    assert unexplained_fraction(points, 2 * points + 5, _mark_all_present(points)) < 0.05
    assert unexplained_fraction(points, mixed, _mark_all_present(mixed)) < 0.05


def test_noise_is_not_explained() -> None:
    points = _make_shapes()
    noise = _draw_noise((400, 5, 2), 20, seed=2)
    assert unexplained_fraction(points, noise, _mark_all_present(noise)) == pytest.approx(1, abs=0.05)
    assert unexplained_fraction(noise, points, _mark_all_present(points)) == pytest.approx(1, abs=0.05)


def test_the_noisier_set_is_harder_to_predict() -> None:
    points = _make_shapes()
    accurate, noisy, noisier = (
        points + _draw_noise(points.shape, sigma, seed) for sigma, seed in ((2, 3), (15, 4), (40, 4))
    )
    noisy_from_accurate = unexplained_fraction(accurate, noisy, _mark_all_present(points))
    accurate_from_noisy = unexplained_fraction(noisy, accurate, _mark_all_present(points))
    assert accurate_from_noisy < noisy_from_accurate < 1
    noisier_from_accurate = unexplained_fraction(accurate, noisier, _mark_all_present(points))
    assert noisier_from_accurate > noisy_from_accurate


def test_a_landmark_that_jumps_between_parts_is_explained_worse() -> None:
    points = _make_shapes()
    targets = points[:, :2].copy()
    steady = unexplained_fraction(points, targets, _mark_all_present(targets))
    jumps = np.random.default_rng(5).random(400) < 0.3
    targets[jumps, 0] = points[jumps, 4]
    assert unexplained_fraction(points, targets, _mark_all_present(targets)) > steady + 0.1


def test_the_order_and_position_of_the_predictors_do_not_matter() -> None:
    points, targets = _make_shapes(60), _make_shapes(60)[:, :3] + _draw_noise((60, 3, 2), 5, seed=6)
    expected = unexplained_fraction(points, targets, _mark_all_present(targets))
    moved = points[:, [3, 1, 5, 0, 2, 4]] + np.array([50.0, -20.0])
    assert unexplained_fraction(moved, targets, _mark_all_present(targets)) == pytest.approx(expected)


def test_absent_points_have_no_influence() -> None:
    points, targets = _make_shapes(80), _make_shapes(80)[:, :4] + _draw_noise((80, 4, 2), 5, seed=7)
    present = np.random.default_rng(8).random((80, 4)) < 0.6
    expected = unexplained_fraction(points, targets, present)
    damaged = np.where(present[..., None], targets, 1e6)
    assert unexplained_fraction(points, damaged, present) == expected
    assert unexplained_fraction(points, targets, _mark_all_present(targets)) != expected


def test_a_landmark_that_is_hardly_present_is_left_out() -> None:
    points, targets = _make_shapes(80), _make_shapes(80)[:, :2] + _draw_noise((80, 2, 2), 5, seed=7)
    present = _mark_all_present(targets)
    present[6:, 1] = False  # landmark 1 is present in only three even and three odd images
    expected = unexplained_fraction(points, targets[:, :1], present[:, :1])
    assert unexplained_fraction(points, targets, present) == expected
    assert unexplained_fraction(points, targets, np.zeros_like(present)) == 1.0


def test_landmarks_that_never_move_give_a_finite_number() -> None:
    points, still_points = _make_shapes(40), np.full((40, 3, 2), 7.0)
    assert unexplained_fraction(points, still_points, _mark_all_present(still_points)) == 1.0
    assert unexplained_fraction(still_points, points, _mark_all_present(points)) == pytest.approx(1.0)


def test_errors_match_a_ridge_regression_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    points = _make_shapes(61).astype(np.float32)
    targets = (_make_shapes(61)[:, :3] + _draw_noise((61, 3, 2), 8, seed=9)).astype(np.float32)
    present = np.random.default_rng(10).random((61, 3)) < 0.8
    inputs = points.reshape(61, -1).astype(np.float64)
    errors, guesses = [], []
    for landmark in range(3):
        halves = [np.flatnonzero(present[:, landmark] & (np.arange(61) % 2 == half)) for half in (0, 1)]
        for fit, test in (halves, halves[::-1]):
            centered = inputs[fit] - inputs[fit].mean(axis=0)
            ridge = linear_model.Ridge(0.01 * np.abs(centered.T @ centered).max())
            predicted = ridge.fit(inputs[fit], targets[fit, landmark]).predict(inputs[test])
            errors.append(np.linalg.norm(predicted - targets[test, landmark], axis=1).mean())
            mean_position = targets[fit, landmark].mean(axis=0)
            guesses.append(np.linalg.norm(mean_position - targets[test, landmark], axis=1).mean())
    expected = sum(errors) / sum(guesses)
    assert unexplained_fraction(points, targets, present) == pytest.approx(expected, rel=1e-4)
