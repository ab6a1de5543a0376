"""Measure how well raw landmarks, without a regressor, follow annotated points (paper, raw accuracy tables).

The Hungarian algorithm matches annotated points to landmarks. A point is hit in an image if its landmark is
near enough. Shapes: N images, K landmarks, L annotated points. Landmarks that were not found are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.optimize import linear_sum_assignment

from selfmark.evaluation.nme import BoolArray, IntArray, nan_mean
from selfmark.points import FloatArray


def compute_mean_distances(
    landmarks: FloatArray, truth: FloatArray, visible: BoolArray, normalizer: FloatArray
) -> FloatArray:
    """Compute the mean normalized distance over images between each landmark and each annotated point.

    Args:
        landmarks: [N, K, 2] landmarks.
        truth: [N, L, 2] annotated points.
        visible: [N, L] bool, whether each annotated point is visible.
        normalizer: [N] lengths; images in which the length is not positive are left out.

    Returns:
        [K, L]; NaN if a landmark and a point never occur in the same image.
    """
    is_counted = visible & (normalizer > 0)[:, None]
    divisor = np.where(normalizer > 0, normalizer, 1.0)[:, None]
    # One landmark at a time, because all distances at once, [N, K, L], take much memory.
    rows = [
        nan_mean(np.where(is_counted, _distance(landmarks[:, index, None], truth) / divisor, np.nan), axis=0)
        for index in range(landmarks.shape[1])
    ]
    return np.stack(rows)


def match_landmarks(cost: FloatArray) -> IntArray:
    """Match each annotated point to a landmark at minimal total cost; each landmark is used at most once.

    >>> match_landmarks(np.array([[1.0, 5.0], [2.0, 9.0]])).tolist()
    [1, 0]

    Args:
        cost: [K, L] distances, see `compute_mean_distances`; NaN where unknown.

    Returns:
        Landmark [L] of each point; -1 for a point that gets no landmark, because there are too few landmarks
        or because its cost is unknown.
    """
    known = ~np.isnan(cost)
    # A single unknown pair costs more than all known pairs together. So as few unknown pairs as possible are
    # matched.
    max_cost = np.where(known, cost, 0.0).max(initial=0.0)
    unknown_cost = (max_cost + 1.0) * (min(cost.shape) + 1)
    landmark, point = linear_sum_assignment(np.where(known, cost, unknown_cost))
    matched = np.full(cost.shape[1], -1, np.int64)
    matched[point] = np.where(known[landmark, point], landmark, -1)
    return matched


def hit_rates(
    landmarks: FloatArray, truth: FloatArray, visible: BoolArray, limit: FloatArray, matched: IntArray
) -> FloatArray:
    """Compute for each point the fraction of hits among the images in which the point is visible.

    Args:
        landmarks: [N, K, 2] landmarks.
        truth: [N, L, 2] annotated points.
        visible: [N, L] bool, whether each annotated point is visible.
        limit: [N] maximum distance of a hit in pixels. It is NaN if it cannot be measured, for instance
            because an eye is not annotated; such images are left out.
        matched: [L] landmark of each point, see `match_landmarks`.

    Returns:
        [L] fractions of images; 0 for points without a landmark, NaN for points that are never visible.
    """
    is_counted = visible & ~np.isnan(limit)[:, None]
    is_near = _distance(landmarks[:, matched], truth) <= limit[:, None]  # False if the landmark is NaN
    is_hit = is_near & (matched >= 0)
    return nan_mean(np.where(is_counted, is_hit, np.nan), axis=0)


def group_means(rates: FloatArray, groups: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    """Compute the mean rate of each named group of points, e.g. of both elbows.

    Points whose rate is NaN are left out. If all rates of a group are NaN, so is their mean.

    >>> group_means(np.array([0.25, 0.75, 1.0]), {"eyes": (0, 1), "nose": (2,)})
    {'eyes': 0.5, 'nose': 1.0}

    Args:
        rates: [L] rates of the points, see `hit_rates`.
        groups: Mapping from the name of a group to the indices of the group's points.
    """
    return {name: float(nan_mean(rates[list(points)], axis=0)) for name, points in groups.items()}


def _distance(a: FloatArray, b: FloatArray) -> FloatArray:
    """Compute distances between points [..., 2] that broadcast against each other."""
    distance: FloatArray = np.hypot(a[..., 0] - b[..., 0], a[..., 1] - b[..., 1])
    return distance
