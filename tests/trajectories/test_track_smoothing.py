"""Test smoothing of one track: unlikely positions, short gaps that are filled, long gaps, and motion."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from selfmark.config import Smoothing, SmoothingMethod
from selfmark.trajectories.track_smoothing import Track, measure_motion, scale_times, smooth_track

RATE = 25.0
SETTINGS = Smoothing(max_gap=0.2)  # 0.2 seconds are five frames.


def make_track(frames: int = 60) -> Track:
    """Return two landmarks of an object of 100 pixels, which move by 100 and 50 pixels per second."""
    seconds = np.arange(frames) / RATE
    xy = np.stack([np.outer(seconds, [100, 0]), np.outer(seconds, [0, 50]) + 20], axis=1)
    return Track(xy, np.full((frames, 2), 0.8), seconds, 100.0)


@pytest.mark.parametrize("method", get_args(SmoothingMethod))
def test_unlikely_positions_are_replaced(method: SmoothingMethod) -> None:
    truth, settings = make_track(), replace(SETTINGS, method=method)
    xy, score = truth.xy.copy(), truth.score.copy()
    xy[10, 0] += 60  # a confident jump
    xy[20:25, 0] -= 7  # a short gap of low scores
    score[20:25, 0] = 0.1
    xy[40:46, 1] -= 7  # a gap that is too long
    score[40:46, 1] = 0.3
    xy[50], score[50] = np.nan, 0.0  # the object was not predicted
    smooth = smooth_track(Track(xy, score, truth.seconds, truth.size), settings)
    expected = truth.xy.copy()
    expected[40:46, 1] = np.nan
    # Beside a gap and at the ends, the window lacks positions on one side, which biases a median.
    np.testing.assert_allclose(smooth.xy, expected, atol=11 if method == "median" else 1e-3)
    filled = np.zeros((60, 2), bool)
    filled[10, 0] = filled[20:25, 0] = filled[50] = True
    np.testing.assert_array_equal(smooth.is_filled, filled)
    assert np.isnan(smooth.speed[40:46, 1]).all()
    if method == "kalman":
        np.testing.assert_allclose(smooth.speed[:, 0], 100, atol=0.1)
        # The landmarks move by 4 and 2 pixels in each of 59 steps. The 7 steps from frame 39 to frame 46 add
        # no distance to the second landmark.
        assert smooth.distance[-1, 0] == pytest.approx(59 * 4, abs=0.01)
        assert smooth.distance[-1, 1] == pytest.approx((59 - 7) * 2, abs=0.01)


@pytest.mark.parametrize("method", get_args(SmoothingMethod))
def test_strides_in_high_speed_videos_are_kept(method: SmoothingMethod) -> None:
    """A paw moves by 40 px, eight times per second, at 250 frames per second, with noise of 4 px."""
    seconds = np.arange(1_000) / 250
    stride = 40 * np.sin(2 * np.pi * 8 * seconds)
    noise = np.random.default_rng(0).normal(0, 4, (1_000, 1, 2))
    xy = np.stack([stride, np.zeros(1_000)], axis=1)[:, None] + noise
    track = Track(xy, np.ones((1_000, 1)), seconds, 200.0)
    settings = replace(SETTINGS, method=method)
    flattened = smooth_track(track, settings).xy[:, 0, 0]
    smooth = smooth_track(track, scale_times(settings, 250.0)).xy[:, 0, 0]
    assert np.nanstd(flattened) < 0.6 * stride.std(), (
        "settings for ordinary videos must smooth the strides away"
    )
    assert smooth.std() > 0.85 * stride.std()
    assert np.abs(smooth - stride).mean() < 0.25 * np.nanmean(np.abs(flattened - stride))


def test_a_fast_start_is_not_a_jump() -> None:
    track = make_track()
    # The first landmark moves by five object sizes per second.
    fast = Track(track.xy * 5, track.score, track.seconds, track.size)
    assert not smooth_track(fast, SETTINGS).is_filled.any()
    np.testing.assert_allclose(smooth_track(fast, SETTINGS).xy, fast.xy, atol=1e-3)


def test_a_confident_position_counts_more_than_a_doubtful_one() -> None:
    track = make_track()
    xy, score = track.xy.copy(), track.score.copy()
    xy[30] += 5
    confident = smooth_track(Track(xy, score, track.seconds, track.size), SETTINGS).xy[30, 0]
    score[30] = 0.5
    doubtful = smooth_track(Track(xy, score, track.seconds, track.size), SETTINGS).xy[30, 0]
    assert 0 < np.linalg.norm(doubtful - track.xy[30, 0]) < np.linalg.norm(confident - track.xy[30, 0])


def test_positions_below_the_minimum_score_are_left_out() -> None:
    track = make_track()
    assert smooth_track(track, replace(SETTINGS, min_score=0.8)).is_filled.sum() == 0
    assert np.isnan(smooth_track(track, replace(SETTINGS, min_score=0.81)).xy).all()


def test_motion_agrees_with_a_loop() -> None:
    rng = np.random.default_rng(0)
    seconds = np.cumsum(rng.uniform(0.03, 0.06, 20))
    xy = rng.uniform(0, 100, (20, 1, 2))
    xy[[4, 5, 11, 13]] = np.nan
    speed, distance = measure_motion(xy, seconds)
    traveled = 0.0
    for row in range(20):
        if np.isnan(xy[row, 0, 0]):
            assert np.isnan([speed[row, 0], distance[row, 0]]).all()
            continue
        neighbors = [r for r in (row - 1, row + 1) if 0 <= r < 20 and np.isfinite(xy[r, 0, 0])]
        first, last = min([*neighbors, row]), max([*neighbors, row])
        if row == 12:  # The positions in both neighboring frames are unknown.
            assert np.isnan(speed[row, 0])
        else:
            moved = np.linalg.norm(xy[last, 0] - xy[first, 0])
            assert speed[row, 0] == pytest.approx(moved / (seconds[last] - seconds[first]))
        if row and np.isfinite(xy[row - 1, 0, 0]):
            traveled += float(np.linalg.norm(xy[row, 0] - xy[row - 1, 0]))
        assert distance[row, 0] == pytest.approx(traveled)
    alone = measure_motion(xy[:1], seconds[:1])
    assert np.isnan(alone[0]).all()
    assert alone[1].tolist() == [[0.0]]
