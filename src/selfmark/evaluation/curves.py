"""Cumulative error curves: one figure per landmark as in the paper, and the usual one over thresholds.

The functions take the errors of `nme.point_errors`, NaN where a point is left out, and serve the forward
direction (L annotated points) and the backward one (K discovered ones) alike.
"""

from __future__ import annotations

import numpy as np

from selfmark.evaluation.nme import mean_of_known
from selfmark.points import FloatArray


def landmark_errors(errors: FloatArray) -> FloatArray:
    """Mean error of each landmark over the images where it counts, [N, L] to [L]; NaN if there are none."""
    return mean_of_known(errors, axis=0)


def cumulative_by_landmark(errors: FloatArray) -> FloatArray:
    """Mean error of the best n landmarks, n = 1, 2, ...: the paper's CED curves.

    The curve rises where landmarks begin that nothing follows (paper, Evaluation on human pose datasets).
    Landmarks whose error is NaN are left out, so the result may be shorter than L.

    >>> cumulative_by_landmark(np.array([5.0, 1.0, np.nan, 3.0])).tolist()
    [1.0, 2.0, 3.0]

    Args:
        errors: [L], see `landmark_errors`.
    """
    known = np.sort(errors[~np.isnan(errors)])
    curve: FloatArray = np.cumsum(known) / np.arange(1, len(known) + 1)
    return curve


def cumulative_by_threshold(errors: FloatArray, thresholds: FloatArray) -> FloatArray:
    """Share of all points of all images whose error is at most each threshold: the usual CED curve.

    >>> cumulative_by_threshold(np.array([[1.0, np.nan], [2.0, 4.0], [8.0, np.nan]]), np.array([0.5, 2.0]))
    array([0. , 0.5])

    Args:
        errors: [N, L], in percent.
        thresholds: [T], in percent.

    Returns:
        [T]; NaN if no point counts.
    """
    known = np.sort(errors[~np.isnan(errors)])
    if len(known) == 0:
        return np.full(len(thresholds), np.nan)
    shares: FloatArray = np.searchsorted(known, thresholds, side="right") / len(known)
    return shares


def area_under(shares: FloatArray, thresholds: FloatArray) -> float:
    """Area under a curve by trapezia, as a share of what a curve that is 1 everywhere would have.

    >>> area_under(np.array([0.0, 1.0, 1.0]), np.array([0.0, 4.0, 8.0]))
    0.75

    Args:
        shares: [T].
        thresholds: [T], ascending, at least two.
    """
    if len(thresholds) < 2 or shares.shape != thresholds.shape or not np.all(np.diff(thresholds) > 0):
        raise ValueError("an area needs two or more ascending thresholds and a share for each")
    area = np.sum((shares[1:] + shares[:-1]) / 2 * np.diff(thresholds))
    return float(area / (thresholds[-1] - thresholds[0]))
