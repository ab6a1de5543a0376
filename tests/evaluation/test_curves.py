"""Test errors by point, cumulative error curves and the area under them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import auc

from selfmark.evaluation.curves import (
    area_under_curve,
    cumulative_by_landmark,
    cumulative_by_threshold,
    errors_by_point,
)


def draw_errors_with_nan(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    errors = rng.gamma(2.0, 3.0, (40, 9))
    errors[rng.random(errors.shape) < 0.3] = np.nan
    errors[:, 4] = np.nan  # never visible
    return errors


def test_errors_by_point_agree_with_a_naive_loop() -> None:
    errors = draw_errors_with_nan()
    ours = errors_by_point(errors)
    for point in range(9):
        finite = [value for value in errors[:, point] if not math.isnan(value)]
        expected = sum(finite) / len(finite) if finite else math.nan
        assert ours[point] == pytest.approx(expected, nan_ok=True)


def test_the_curve_is_the_mean_of_the_best_points() -> None:
    errors = errors_by_point(draw_errors_with_nan())
    curve = cumulative_by_landmark(errors)
    best = sorted(value for value in errors if not math.isnan(value))
    assert len(curve) == len(best) == 8
    for n in range(1, 9):
        assert curve[n - 1] == pytest.approx(sum(best[:n]) / n)
    assert cumulative_by_landmark(np.array([np.nan])).tolist() == []


def test_fractions_of_errors_up_to_each_threshold_agree_with_counting() -> None:
    errors, thresholds = draw_errors_with_nan(), np.linspace(0, 20, 41)
    errors[0, 0] = thresholds[7]  # an error at the threshold counts
    fractions = cumulative_by_threshold(errors, thresholds)
    finite = [value for value in errors.reshape(-1) if not math.isnan(value)]
    expected = [sum(value <= threshold for value in finite) / len(finite) for threshold in thresholds]
    np.testing.assert_allclose(fractions, expected, rtol=1e-12)
    assert np.isnan(cumulative_by_threshold(np.full((2, 2), np.nan), thresholds)).all()


def test_area_agrees_with_scikit_learn_on_uneven_thresholds() -> None:
    thresholds = np.sort(np.random.default_rng(1).uniform(1, 15, 30))
    fractions = cumulative_by_threshold(draw_errors_with_nan(), thresholds)
    expected = auc(thresholds, fractions) / (thresholds[-1] - thresholds[0])
    assert area_under_curve(fractions, thresholds) == pytest.approx(expected)
    assert area_under_curve(np.ones(30), thresholds) == pytest.approx(1.0)


# The last list is ascending, but has one threshold more than there are fractions.
@pytest.mark.parametrize("thresholds", [[1.0], [2.0, 1.0], [1.0, 1.0], [1.0, 2.0, 3.0]])
def test_an_area_needs_matching_ascending_thresholds(thresholds: list[float]) -> None:
    with pytest.raises(ValueError, match="ascending"):
        area_under_curve(np.ones(min(len(thresholds), 2)), np.array(thresholds))
