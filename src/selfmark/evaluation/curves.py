"""Compute cumulative error curves: over numbers of points as in the paper, and over error thresholds.

All functions serve forward and backward errors. Forward errors are errors of annotated points that were
predicted from landmarks. Backward errors are errors of landmarks that were predicted from annotated points.
In this module, "points" are whichever of the two was predicted, and L is their number. The errors are those
of `nme.point_errors`, NaN where a point is left out.
"""

from __future__ import annotations

import numpy as np

from selfmark.evaluation.nme import nan_mean
from selfmark.points import FloatArray


def errors_by_point(errors: FloatArray) -> FloatArray:
    """Compute the mean error of each point over images, [N, L] to [L]; NaN if all its errors are NaN."""
    return nan_mean(errors, axis=0)


def cumulative_by_landmark(errors: FloatArray) -> FloatArray:
    """Compute the mean error of the best n points for n = 1, 2, ...: the paper's CED curves.

    The curve of backward errors rises steeply at landmarks that do not follow the object (paper, Evaluation
    on human pose datasets). Points whose error is NaN are left out, so the result may be shorter than L.

    >>> cumulative_by_landmark(np.array([5.0, 1.0, np.nan, 3.0])).tolist()
    [1.0, 2.0, 3.0]

    Args:
        errors: [L] mean error of each point, see `errors_by_point`.
    """
    known = np.sort(errors[~np.isnan(errors)])
    curve: FloatArray = np.cumsum(known) / np.arange(1, len(known) + 1)
    return curve


def cumulative_by_threshold(errors: FloatArray, thresholds: FloatArray) -> FloatArray:
    """Compute for each threshold the fraction of points with at most this error: the usual CED curve.

    >>> cumulative_by_threshold(np.array([[1.0, np.nan], [2.0, 4.0], [8.0, np.nan]]), np.array([0.5, 2.0]))
    array([0. , 0.5])

    Args:
        errors: [N, L], in percent.
        thresholds: [T], in percent.

    Returns:
        [T]; NaN if all errors are NaN.
    """
    known = np.sort(errors[~np.isnan(errors)])
    if len(known) == 0:
        return np.full(len(thresholds), np.nan)
    fractions: FloatArray = np.searchsorted(known, thresholds, side="right") / len(known)
    return fractions


def area_under_curve(fractions: FloatArray, thresholds: FloatArray) -> float:
    """Compute the area under a curve by the trapezoidal rule, divided by the range of the thresholds.

    >>> area_under_curve(np.array([0.0, 1.0, 1.0]), np.array([0.0, 4.0, 8.0]))
    0.75

    Args:
        fractions: [T] values of the curve.
        thresholds: [T] positions of these values, ascending, at least two.
    """
    if len(thresholds) < 2 or fractions.shape != thresholds.shape or not np.all(np.diff(thresholds) > 0):
        raise ValueError("an area needs two or more ascending thresholds and a fraction for each")
    area = np.sum((fractions[1:] + fractions[:-1]) / 2 * np.diff(thresholds))
    return float(area / (thresholds[-1] - thresholds[0]))
