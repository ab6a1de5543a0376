"""Smooth positions over time, weighting each position by its confidence.

All functions smooth the positions of one landmark. A weight of 0 means that the position of a row is unknown.
Rows with unknown positions get results that are interpolated linearly between the nearest known rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Floats = npt.NDArray[np.float64]

# Regularization of a fit, relative to the total weight of its window. With it, a fit is solvable even if the
# window has too few positions for the degree of the polynomial. It is too small to affect other fits.
_RIDGE = 1e-10


def smooth_median(xy: Floats, weight: Floats, half_window: int) -> Floats:
    """Compute the weighted median of the positions around each row, separately for x and y.

    Args:
        xy: [T, 2] positions at equal steps of time.
        weight: [T] weights, 0 where a position is unknown.
        half_window: number of rows on each side; the window is shorter at both ends of the track.

    Returns:
        [T, 2].

    >>> xy = np.array([[0.0, 0], [1, 0], [9, 0], [3, 0], [4, 0]])
    >>> smooth_median(xy, np.ones(5), 1)[:, 0].tolist()
    [0.5, 1.0, 3.0, 4.0, 3.5]
    """
    known = weight > 0
    values = _extract_windows(np.where(known[:, None], xy, np.inf), half_window, np.inf)  # [T, 2, W]
    window_weights = np.broadcast_to(_extract_windows(weight, half_window, 0.0)[:, None], values.shape)
    order = np.argsort(values, axis=2, kind="stable")
    values = np.take_along_axis(values, order, axis=2)
    cumulative = np.cumsum(np.take_along_axis(window_weights, order, axis=2), axis=2)
    half = cumulative[..., -1:] / 2
    # If the cumulative weight of a position is exactly half of the total, the median is the mean of this
    # position and the next. With equal weights, this happens if their number is even. Otherwise, both indices
    # select the same position.
    tolerance = 1e-9 * half
    lower = (cumulative < half - tolerance).sum(axis=2, keepdims=True)
    upper = (cumulative <= half + tolerance).sum(axis=2, keepdims=True)
    last = values.shape[2] - 1
    low, high = (
        np.take_along_axis(values, np.minimum(index, last), axis=2)[..., 0] for index in (lower, upper)
    )
    with np.errstate(invalid="ignore"):
        median = (low + high) / 2
    return _interpolate(median, known)


def smooth_savitzky_golay(xy: Floats, weight: Floats, half_window: int, degree: int) -> Floats:
    """Fit a polynomial to the positions around each row by weighted least squares; evaluate it at the row.

    With equal weights, this is the filter of Savitzky and Golay.

    Args:
        xy: [T, 2] positions at equal steps of time.
        weight: [T] weights, 0 where a position is unknown.
        half_window: number of rows on each side; the window is shorter at both ends of the track.
        degree: degree of the polynomial.

    Returns:
        [T, 2].
    """
    known = weight > 0
    offsets = np.arange(-half_window, half_window + 1) / max(half_window, 1)  # -1 to 1, for conditioning
    powers = offsets ** np.arange(2 * degree + 1)[:, None]  # [2 degree + 1, W]
    windows = _extract_windows(weight, half_window, 0.0)  # [T, W]
    positions = _extract_windows(np.where(known[:, None], xy, 0.0), half_window, 0.0)  # [T, 2, W]
    moments = windows @ powers.T  # [T, 2 degree + 1]
    index = np.arange(degree + 1)
    matrix = moments[:, index[:, None] + index]  # [T, degree + 1, degree + 1]
    ridge = _RIDGE * np.maximum(moments[:, :1], 1e-300)
    matrix[:, index[1:], index[1:]] += ridge
    matrix[:, 0, 0] += (moments[:, 0] == 0).astype(np.float64)  # makes windows without positions solvable
    right = np.einsum("tcw,tw,dw->tdc", positions, windows, powers[: degree + 1])
    return _interpolate(np.linalg.solve(matrix, right)[:, 0], known)


def _extract_windows(values: Floats, half_window: int, fill: float) -> Floats:
    """Return the values around each row, [T, ..., 2 half_window + 1], with `fill` beyond both ends."""
    padding = [(half_window, half_window)] + [(0, 0)] * (values.ndim - 1)
    padded = np.pad(values, padding, constant_values=fill)
    return sliding_window_view(padded, 2 * half_window + 1, axis=0)


def _interpolate(smooth: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    """Replace the unknown rows of [T, 2] by linear interpolation between the known rows."""
    rows = np.arange(len(smooth))
    return np.stack([np.interp(rows, rows[known], smooth[known, axis]) for axis in (0, 1)], axis=1)
