"""Compare smoothers with naive loops, with scipy, and with the recursion of Rauch, Tung and Striebel."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import savgol_filter

from selfmark.trajectories.kalman import smooth_kalman
from selfmark.trajectories.smoothers import smooth_median, smooth_savitzky_golay

Floats = np.ndarray


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def xy(rng: np.random.Generator) -> Floats:
    return np.cumsum(rng.normal(0, 1, (40, 2)), axis=0)


@pytest.fixture
def weight(rng: np.random.Generator) -> Floats:
    """Return weights with three gaps, which have two frames, one frame and eight frames."""
    weight = rng.uniform(0.2, 1, 40)
    weight[[4, 5, 20, *range(26, 34)]] = 0
    return weight


def _compute_naive_median(values: Floats, weight: Floats) -> float:
    """Return the value at which half of the weight is reached."""
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])


def test_the_running_median_agrees_with_a_loop(xy: Floats, weight: Floats) -> None:
    smooth = smooth_median(np.where(weight[:, None] > 0, xy, np.nan), weight, 3)
    for row in np.flatnonzero(weight):
        rows = [r for r in range(max(row - 3, 0), min(row + 4, 40)) if weight[r] > 0]
        for axis in (0, 1):
            assert smooth[row, axis] == pytest.approx(_compute_naive_median(xy[rows, axis], weight[rows]))
    middle = (smooth[3] * 1 + smooth[6] * 2) / 3  # Row 5 is two thirds of the way from row 3 to row 6.
    np.testing.assert_allclose(smooth[5], middle)
    smoothed = smooth_median(xy, np.ones(40), 2)
    np.testing.assert_allclose(smoothed[0], np.median(xy[:3], axis=0))
    np.testing.assert_allclose(smoothed[1], np.median(xy[:4], axis=0))
    np.testing.assert_allclose(smoothed[20], np.median(xy[18:23], axis=0))


def test_savitzky_golay_agrees_with_scipy_and_polyfit(xy: Floats, weight: Floats) -> None:
    equal = smooth_savitzky_golay(xy, np.ones(40), 4, 2)
    np.testing.assert_allclose(equal[4:-4], savgol_filter(xy, 9, 2, axis=0)[4:-4], atol=1e-6)
    smooth = smooth_savitzky_golay(np.where(weight[:, None] > 0, xy, np.nan), weight, 4, 2)
    for row in np.flatnonzero(weight):
        rows = np.array([r for r in range(max(row - 4, 0), min(row + 5, 40)) if weight[r] > 0])
        fit = np.polyfit(rows - row, xy[rows], 2, w=np.sqrt(weight[rows]))
        np.testing.assert_allclose(smooth[row], fit[-1], atol=1e-4)


def test_a_filter_keeps_a_position_without_neighbors(xy: Floats) -> None:
    single_weight = np.zeros(40)
    single_weight[7] = 0.5
    for smooth in (smooth_median(xy, single_weight, 2), smooth_savitzky_golay(xy, single_weight, 2, 2)):
        np.testing.assert_allclose(smooth, np.tile(xy[7], (40, 1)), atol=1e-6)
    np.testing.assert_allclose(smooth_kalman(xy[7:8], np.array([0.5]), np.zeros(1), 0.1), xy[7:8], atol=1e-6)


def _smooth_by_recursion(z: Floats, weight: Floats, seconds: Floats, ratio: float) -> Floats:
    """Smooth one coordinate by the recursion of Rauch, Tung and Striebel, as in textbooks.

    A measurement has the variance 1 / weight, and accelerations have the noise density `ratio`.
    """
    state, covariance = np.zeros(2), np.eye(2) * 1e10  # At first, nothing is known.
    states, covariances, predictions = [], [], []
    for row in range(len(z)):
        if row:
            step = seconds[row] - seconds[row - 1]
            move = np.array([[1, step], [0, 1]])
            noise = ratio * np.array([[step**3 / 3, step**2 / 2], [step**2 / 2, step]])
            state, covariance = move @ state, move @ covariance @ move.T + noise
            predictions.append((move, state, covariance))
        if weight[row] > 0:
            gain = covariance[:, 0] / (covariance[0, 0] + 1 / weight[row])
            state = state + gain * (z[row] - state[0])
            covariance = covariance - np.outer(gain, covariance[0])
        states.append(state)
        covariances.append(covariance)
    for row in range(len(z) - 2, -1, -1):
        move, predicted_state, predicted_covariance = predictions[row]
        gain = covariances[row] @ move.T @ np.linalg.inv(predicted_covariance)
        states[row] = states[row] + gain @ (states[row + 1] - predicted_state)
    return np.array(states)[:, 0]


@pytest.mark.parametrize("time_constant", [0.05, 0.5])
def test_the_kalman_smoother_agrees_with_the_recursion(
    time_constant: float, xy: Floats, weight: Floats, rng: np.random.Generator
) -> None:
    seconds = np.cumsum(rng.uniform(0.03, 0.06, 40))  # The times of the frames are uneven.
    ratio = np.median(np.diff(seconds)) / time_constant**4
    smooth = smooth_kalman(np.where(weight[:, None] > 0, xy, np.nan), weight, seconds, time_constant)
    for axis in (0, 1):
        expected = _smooth_by_recursion(xy[:, axis], weight, seconds, ratio)
        np.testing.assert_allclose(smooth[:, axis], expected, atol=1e-3)


@pytest.mark.parametrize("time_constant", [5.0, 100.0, 3600.0])
def test_a_very_long_time_constant_fits_a_line(time_constant: float, rng: np.random.Generator) -> None:
    seconds = np.arange(40) * 0.045
    xy = np.stack([100 - 30 * seconds, 200 + 20 * seconds], axis=1) + rng.normal(0, 1, (40, 2))
    smooth = smooth_kalman(xy, np.ones(40), seconds, time_constant)
    for axis in (0, 1):
        line = np.polyval(np.polyfit(seconds, xy[:, axis], 1), seconds)
        np.testing.assert_allclose(smooth[:, axis], line, atol=0.01)


@pytest.mark.parametrize("time_constant", [1e-3, 1e-20, 1e-80, 1e-300, 0.0])
def test_a_very_short_time_constant_keeps_the_positions(
    time_constant: float, xy: Floats, weight: Floats
) -> None:
    seconds = np.arange(40) * 0.045
    smooth = smooth_kalman(np.where(weight[:, None] > 0, xy, np.nan), weight, seconds, time_constant)
    np.testing.assert_allclose(smooth[weight > 0], xy[weight > 0], atol=0.01)
    assert np.isfinite(smooth).all()


@pytest.mark.parametrize("time_constant", [1e-80, 1e-4, 0.06, 5.0])
@pytest.mark.parametrize("shortest", [1e-9, 1e-6, 1e-3])
def test_uneven_steps_and_gaps_can_be_smoothed(
    time_constant: float, shortest: float, rng: np.random.Generator
) -> None:
    for _ in range(60):
        steps = np.where(rng.random(40) < 0.2, 0.04 * 10 ** rng.uniform(np.log10(shortest), 0, 40), 0.04)
        weight = rng.uniform(0.2, 1, 40) * (rng.random(40) < 0.7)
        weight[0] = 1
        xy = np.where(weight[:, None] > 0, rng.normal(0, 100, (40, 2)), np.nan)
        assert np.isfinite(smooth_kalman(xy, weight, np.cumsum(steps), time_constant)).all()


def test_frames_at_almost_the_same_time_do_not_disturb_the_rest(xy: Floats) -> None:
    seconds = np.arange(40) * 0.033
    seconds[20:] -= 0.033 - 1e-5
    expected = smooth_kalman(xy, np.ones(40), seconds, 0.06)
    seconds[20:] -= 1e-5 - 1e-9
    np.testing.assert_allclose(smooth_kalman(xy, np.ones(40), seconds, 0.06), expected, atol=0.05)
