"""Smooth the landmarks of one object along its track, and measure how they move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfmark.config import Smoothing
from selfmark.trajectories.kalman import smooth_kalman
from selfmark.trajectories.smoothers import running_median, savitzky_golay

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Track:
    """The K landmarks of one object in T rows, one per frame; frames are usually at equal steps.

    xy:      [T, K, 2] pixels; NaN in frames without a prediction
    score:   [T, K]; 0 in frames without a prediction
    seconds: [T] times of the frames, ascending
    size:    size of the object, pixels
    """

    xy: Floats
    score: Floats
    seconds: Floats
    size: float


@dataclass(frozen=True)
class SmoothTrack:
    """Smoothed landmarks of one object; NaN where a gap is too long to be filled.

    xy:        [T, K, 2] pixels
    is_filled: [T, K] whether the position is interpolated, because its prediction was missing or left out
    speed:     [T, K] pixels per second
    distance:  [T, K] pixels traveled since the first known position; gaps that are not filled add nothing
    """

    xy: Floats
    is_filled: Bools
    speed: Floats
    distance: Floats


def smooth_track(track: Track, settings: Smoothing) -> SmoothTrack:
    """Leave out unlikely positions, split the track at long gaps, and smooth each part; fill short gaps."""
    step = _frame_step(track.seconds)
    used = find_used_positions(track, settings)
    weight = np.where(used, _confidence(track.score), 0.0)
    smooth = np.full(track.xy.shape, np.nan)
    for landmark in range(track.xy.shape[1]):
        for start, stop in _segments(used[:, landmark], track.seconds, settings.max_gap + step):
            rows = slice(start, stop)
            smooth[rows, landmark] = smooth_positions(
                track.xy[rows, landmark], weight[rows, landmark], track.seconds[rows], settings
            )
    known = np.isfinite(smooth[..., 0])
    speed, distance = measure_motion(smooth, track.seconds)
    return SmoothTrack(smooth, known & ~used, speed, distance)


def smooth_positions(xy: Floats, weight: Floats, seconds: Floats, settings: Smoothing) -> Floats:
    """Smooth the positions [T, 2] of one landmark; `weight` [T] is 0 where a position is unknown."""
    if settings.method == "kalman":
        return smooth_kalman(xy, weight, seconds, settings.time_constant)
    half_window = _half_window(seconds, settings)
    if settings.method == "median":
        return running_median(xy, weight, half_window)
    return savitzky_golay(xy, weight, half_window, settings.degree)


def find_used_positions(track: Track, settings: Smoothing) -> Bools:
    """Return True [T, K] for positions that are predicted, score high enough and do not jump away."""
    predicted: Bools = np.asarray(np.isfinite(track.xy).all(axis=2))
    lowest = settings.min_relative_score * _typical_score(track.score, predicted)
    used: Bools = predicted & (track.score >= lowest) & (track.score >= settings.min_score)
    half_window = _half_window(track.seconds, settings)
    for landmark in np.flatnonzero(used.any(axis=0)).tolist():
        kept = used[:, landmark]
        typical = _centered_median(track.xy[:, landmark], kept.astype(np.float64), half_window)
        with np.errstate(invalid="ignore"):
            distance = np.linalg.norm(track.xy[:, landmark] - typical, axis=1)
            used[:, landmark] = kept & (distance <= settings.max_jump * track.size)
    return used


def measure_motion(xy: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Return the speed of landmarks and the distance that they have traveled.

    Args:
        xy: [T, K, 2] positions in pixels, NaN where unknown.
        seconds: [T] times, ascending.

    Returns:
        Speed [T, K] in pixels per second, from the positions before and after. If one of them is unknown, the
        other and the position itself are used; if both are, the speed is NaN. Distance [T, K] in pixels
        since the first known position; gaps add nothing.

    >>> xy = np.array([[[0.0, 0]], [[3, 4]], [[6, 8]]])
    >>> [values.ravel().tolist() for values in measure_motion(xy, np.array([0, 0.5, 1.0]))]
    [[10.0, 10.0, 10.0], [0.0, 5.0, 10.0]]
    """
    known = np.isfinite(xy[..., 0])
    if len(xy) < 2:
        return np.full(known.shape, np.nan), np.where(known, 0.0, np.nan)
    change, elapsed = np.diff(xy, axis=0), np.diff(seconds)[:, None]
    length = np.linalg.norm(change, axis=2)  # [T - 1, K]; NaN beside a gap
    distance = np.concatenate([np.zeros((1, xy.shape[1])), np.nancumsum(length, axis=0)])
    before, after = (
        np.pad(np.isfinite(length), ((1, 0), (0, 0))),
        np.pad(np.isfinite(length), ((0, 1), (0, 0))),
    )
    moved = np.where(np.isfinite(change), change, 0.0)
    total = np.pad(moved, ((1, 0), (0, 0), (0, 0))) + np.pad(moved, ((0, 1), (0, 0), (0, 0)))
    lasted = np.isfinite(length) * elapsed
    time = np.pad(lasted, ((1, 0), (0, 0))) + np.pad(lasted, ((0, 1), (0, 0)))
    with np.errstate(invalid="ignore", divide="ignore"):
        speed = np.where(before | after, np.linalg.norm(total, axis=2) / time, np.nan)
    return speed, np.where(known, distance, np.nan)


def _centered_median(xy: Floats, weight: Floats, half_window: int) -> Floats:
    """Return running medians [T, 2] whose windows extend equally far before and after each row.

    With a one-sided window, a fast movement at the start or the end of a track would look like a jump.
    """
    typical = running_median(xy, weight, half_window)
    for row in range(min(half_window, len(xy) // 2)):
        for middle in (row, len(xy) - 1 - row):
            window = slice(middle - row, middle + row + 1)
            if weight[middle] > 0:
                typical[middle] = running_median(xy[window], weight[window], row)[row]
    return typical


def _typical_score(score: Floats, predicted: Bools) -> Floats:
    """Return the median score [K] of each landmark over the rows in which it was predicted."""
    return np.array(
        [
            np.median(values[rows]) if rows.any() else 0.0
            for values, rows in zip(score.T, predicted.T, strict=True)
        ]
    )


def _confidence(score: Floats) -> Floats:
    """Return the weight [T, K] of each position: its score relative to the median, clipped to 0.001..1."""
    typical = _typical_score(score, score > 0)
    # A landmark that always scores 0 is weighted equally in all rows.
    weight = np.where(typical > 0, score / np.where(typical > 0, typical, 1.0), 1.0)
    return np.asarray(np.clip(weight, 1e-3, 1.0), dtype=np.float64)


def _frame_step(seconds: Floats) -> float:
    """Return the median time between two rows."""
    return float(np.median(np.diff(seconds))) if len(seconds) > 1 else 0.0


def _half_window(seconds: Floats, settings: Smoothing) -> int:
    """Return the number of rows on each side of a filter's window, at least one."""
    step = _frame_step(seconds)
    return max(1, round(settings.window / 2 / step)) if step > 0 else 1


def _segments(used: Bools, seconds: Floats, max_step: float) -> list[tuple[int, int]]:
    """Split the used rows where they are more than `max_step` seconds apart; return (start, stop) of each."""
    rows = np.flatnonzero(used)
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(seconds[rows]) > max_step + 1e-6)
    firsts, lasts = rows[[0, *(breaks + 1)]], rows[[*breaks, -1]]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
