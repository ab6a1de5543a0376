"""Smooth the landmarks of one object along its track, and measure how they move."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from selfmark.config import Smoothing
from selfmark.trajectories.kalman import smooth_kalman
from selfmark.trajectories.smoothers import smooth_median, smooth_savitzky_golay

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Track:
    """The K landmarks of one object in T frames, which are usually at equal steps.

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
    is_filled: [T, K] True if the position is interpolated, because its prediction was missing or left out
    speed:     [T, K] pixels per second
    distance:  [T, K] pixels traveled since the first known position; unfilled gaps add nothing
    """

    xy: Floats
    is_filled: Bools
    speed: Floats
    distance: Floats


def smooth_track(track: Track, settings: Smoothing) -> SmoothTrack:
    """Smooth the landmarks of a track.

    Unlikely positions are left out. The track of a landmark is split at long gaps, and each part is smoothed,
    which also fills its short gaps.
    """
    step = _compute_frame_step(track.seconds)
    used = find_used_positions(track, settings)
    weight = np.where(used, _compute_weights(track.score), 0.0)
    smooth = np.full(track.xy.shape, np.nan)
    for landmark in range(track.xy.shape[1]):
        for start, stop in _split_at_gaps(used[:, landmark], track.seconds, settings.max_gap + step):
            rows = slice(start, stop)
            smooth[rows, landmark] = smooth_positions(
                track.xy[rows, landmark], weight[rows, landmark], track.seconds[rows], settings
            )
    known = np.isfinite(smooth[..., 0])
    speed, distance = measure_motion(smooth, track.seconds)
    return SmoothTrack(smooth, known & ~used, speed, distance)


def scale_times(settings: Smoothing, rate: float | None) -> Smoothing:
    """Return settings with shorter times for a video of more than `settings.max_rate` frames per second.

    The times are shortened in proportion to the rate, because high-speed cameras film fast movements. For
    example, a running mouse takes eight strides per second, and the times for ordinary videos would smooth
    them away.

    Args:
        settings: settings of the smoothing.
        rate: frames per second of the video; None if unknown, which leaves the times as they are.

    >>> scale_times(Smoothing(), 240.0).time_constant, scale_times(Smoothing(), 30.0).time_constant
    (0.0075, 0.06)
    """
    scale = max(1.0, (rate or 0.0) / settings.max_rate)
    return replace(
        settings,
        max_gap=settings.max_gap / scale,
        time_constant=settings.time_constant / scale,
        window=settings.window / scale,
    )


def smooth_positions(xy: Floats, weight: Floats, seconds: Floats, settings: Smoothing) -> Floats:
    """Smooth the positions [T, 2] of one landmark; `weight` [T] is 0 where a position is unknown."""
    if settings.method == "kalman":
        return smooth_kalman(xy, weight, seconds, settings.time_constant)
    half_window = _choose_half_window(seconds, settings)
    if settings.method == "median":
        return smooth_median(xy, weight, half_window)
    return smooth_savitzky_golay(xy, weight, half_window, settings.degree)


def find_used_positions(track: Track, settings: Smoothing) -> Bools:
    """Return a mask [T, K] of the positions that are predicted, have a high score and do not jump away."""
    predicted: Bools = np.asarray(np.isfinite(track.xy).all(axis=2))
    min_score = settings.min_relative_score * _compute_typical_score(track.score, predicted)
    used: Bools = predicted & (track.score >= min_score) & (track.score >= settings.min_score)
    half_window = _choose_half_window(track.seconds, settings)
    for landmark in np.flatnonzero(used.any(axis=0)).tolist():
        kept = used[:, landmark]
        typical = _compute_centered_median(track.xy[:, landmark], kept.astype(np.float64), half_window)
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
        Speed [T, K] in pixels per second, and distance [T, K] in pixels since the first known position. Both
        are NaN where the position is unknown. The speed is computed from the positions before and after.
        If one of these two positions is unknown, the position of the row itself is used instead; if both are
        unknown, the speed is NaN. Gaps add nothing to the distance.

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
    is_step_known = np.isfinite(length)
    known_change = np.where(np.isfinite(change), change, 0.0)
    known_time = is_step_known * elapsed
    # Step i leads from row i to row i + 1. Padding gives each row the step before it, or the step after it.
    at_start, at_end = ((1, 0), (0, 0)), ((0, 1), (0, 0))
    has_speed = np.pad(is_step_known, at_start) | np.pad(is_step_known, at_end)
    total_change = np.pad(known_change, (*at_start, (0, 0))) + np.pad(known_change, (*at_end, (0, 0)))
    total_time = np.pad(known_time, at_start) + np.pad(known_time, at_end)
    with np.errstate(invalid="ignore", divide="ignore"):
        speed = np.where(has_speed, np.linalg.norm(total_change, axis=2) / total_time, np.nan)
    return speed, np.where(known, distance, np.nan)


def _compute_centered_median(xy: Floats, weight: Floats, half_window: int) -> Floats:
    """Return running medians [T, 2] whose windows extend equally far before and after each row.

    With a one-sided window, a fast movement at the start or the end of a track would look like a jump. So the
    windows are shorter there.
    """
    typical = smooth_median(xy, weight, half_window)
    for row in range(min(half_window, len(xy) // 2)):
        for middle in (row, len(xy) - 1 - row):
            window = slice(middle - row, middle + row + 1)
            if weight[middle] > 0:
                typical[middle] = smooth_median(xy[window], weight[window], row)[row]
    return typical


def _compute_typical_score(score: Floats, predicted: Bools) -> Floats:
    """Return the median score [K] of each landmark over the rows in which it was predicted."""
    return np.array(
        [
            np.median(values[rows]) if rows.any() else 0.0
            for values, rows in zip(score.T, predicted.T, strict=True)
        ]
    )


def _compute_weights(score: Floats) -> Floats:
    """Return the weight [T, K] of each position: score / median score, limited to 0.001..1."""
    typical = _compute_typical_score(score, score > 0)
    # If all scores of a landmark are 0, all its positions get the weight 1.
    weight = np.where(typical > 0, score / np.where(typical > 0, typical, 1.0), 1.0)
    return np.asarray(np.clip(weight, 1e-3, 1.0), dtype=np.float64)


def _compute_frame_step(seconds: Floats) -> float:
    """Return the median time between two rows in seconds; 0 if there is only one row."""
    return float(np.median(np.diff(seconds))) if len(seconds) > 1 else 0.0


def _choose_half_window(seconds: Floats, settings: Smoothing) -> int:
    """Return the number of rows before and after the middle row of a filter's window, at least 1."""
    step = _compute_frame_step(seconds)
    return max(1, round(settings.window / 2 / step)) if step > 0 else 1


def _split_at_gaps(used: Bools, seconds: Floats, max_step: float) -> list[tuple[int, int]]:
    """Split a track where used rows are more than `max_step` seconds apart.

    Args:
        used: [T] rows with a position that is used.
        seconds: [T] times, ascending.
        max_step: maximum time between two used rows of a part, seconds.

    Returns:
        First row of each part, and the row after its last row.
    """
    rows = np.flatnonzero(used)
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(seconds[rows]) > max_step + 1e-6)
    firsts, lasts = rows[[0, *(breaks + 1)]], rows[[*breaks, -1]]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
