"""Compute the precision of keypoints: the fraction near an annotated point (paper, Landmarks captured)."""

from __future__ import annotations

import math

import numpy as np

from selfmark.evaluation.nme import BoolArray, IntArray
from selfmark.points import FloatArray

CHUNK = 8192  # keypoints compared at a time, to limit memory


def keypoint_precision(
    xy: FloatArray, image_index: IntArray, truth: FloatArray, visible: BoolArray, radius: FloatArray
) -> float:
    """Compute the fraction of keypoints within `radius` of any visible annotated point of their image.

    Keypoints are left out if their image has no visible point, or if the radius of their image is NaN.

    >>> truth, visible, radius = np.zeros((1, 1, 2)), np.array([[True]]), np.array([2.0])
    >>> keypoint_precision(np.array([[1.0, 0.0], [9.0, 0.0]]), np.array([0, 0]), truth, visible, radius)
    0.5

    Args:
        xy: [P, 2] keypoints of all images.
        image_index: [P] index of the image of each keypoint.
        truth: [N, L, 2] annotated points.
        visible: [N, L] bool, whether each annotated point is visible.
        radius: [N] maximum distance; in the paper, a tenth of the distance between the eyes.

    Returns:
        The fraction; NaN if all keypoints are left out.
    """
    is_counted = (visible.any(axis=1) & ~np.isnan(radius))[image_index]
    if not is_counted.any():
        return math.nan
    xy, image_index = xy[is_counted], image_index[is_counted]
    hits = 0
    for start in range(0, len(xy), CHUNK):
        image = image_index[start : start + CHUNK]
        offset = xy[start : start + CHUNK, None] - truth[image]
        is_near = np.hypot(offset[..., 0], offset[..., 1]) <= radius[image, None]
        hits += int((is_near & visible[image]).any(axis=1).sum())
    return hits / len(xy)
