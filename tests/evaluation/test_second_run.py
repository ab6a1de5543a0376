"""Test the agreement of two detectors: landmarks agree if they follow the object, but not if they wander."""

from __future__ import annotations

import numpy as np
import pytest

from selfmark.evaluation.second_run import PairedLandmarks, compare_detectors
from selfmark.points import FloatArray

SIZE = 100


def _draw_landmarks(rng: np.random.Generator, num_images: int) -> PairedLandmarks:
    """Return the landmarks of two detectors on a moving square; landmark 4 of the first detector jumps."""
    corners = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [20.0, 20.0]])
    position, scale = rng.uniform(20, 60, (num_images, 1, 2)), rng.uniform(0.5, 1.5, (num_images, 1, 1))
    moved = position + scale * corners
    jumps: FloatArray = rng.uniform(0, SIZE, (num_images, 1, 2))
    return PairedLandmarks(np.concatenate([moved, jumps], axis=1), position + scale * (corners[:3] + 7.0))


def test_a_landmark_that_jumps_is_not_confirmed_by_the_other_detector() -> None:
    rng = np.random.default_rng(0)
    errors = compare_detectors(_draw_landmarks(rng, 400), _draw_landmarks(rng, 100), SIZE, ridge=1e-6)
    assert errors.images == 100
    assert (errors.backward_shares[:4] < 0.01).all()
    assert errors.backward_shares[4] == pytest.approx(1.0, abs=0.05)


def test_errors_agree_with_least_squares_in_percent_of_the_side() -> None:
    rng = np.random.default_rng(1)
    fit, test = _draw_landmarks(rng, 50), _draw_landmarks(rng, 30)
    errors = compare_detectors(fit, test, SIZE, ridge=0.0)
    inputs = np.column_stack([fit.second.reshape(50, -1), np.ones(50)])
    weights = np.linalg.lstsq(inputs, fit.first.reshape(50, -1), rcond=None)[0]
    predicted = (np.column_stack([test.second.reshape(30, -1), np.ones(30)]) @ weights).reshape(30, -1, 2)
    distance = np.linalg.norm(predicted - test.first, axis=2)
    mean_shape_errors = np.linalg.norm(test.first - fit.first.mean(axis=0), axis=2)
    assert errors.backward == pytest.approx(100 * distance.mean() / SIZE)
    assert errors.guessing_backward == pytest.approx(100 * mean_shape_errors.mean() / SIZE)
    np.testing.assert_allclose(
        errors.backward_shares, distance.mean(0) / mean_shape_errors.mean(0), atol=1e-6
    )
    assert errors.forward < 0.01 < errors.guessing_forward
