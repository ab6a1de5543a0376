"""How many generic keypoints lie on an annotated landmark (paper, Landmarks captured as keypoints)."""

from __future__ import annotations

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.nme import BoolArray, IntArray
from selfmark.points import FloatArray

CHUNK = 8192  # keypoints compared at a time, so that memory stays small


def keypoint_precision(
    xy: FloatArray, image_index: IntArray, truth: FloatArray, visible: BoolArray, radius: FloatArray
) -> float:
    """Share of keypoints within `radius` of any visible annotated point of their image.

    Keypoints of images without visible points, or whose radius is NaN, are left out.

    >>> truth, visible, radius = np.zeros((1, 1, 2)), np.array([[True]]), np.array([2.0])
    >>> keypoint_precision(np.array([[1.0, 0.0], [9.0, 0.0]]), np.array([0, 0]), truth, visible, radius)
    0.5

    Args:
        xy: [P, 2] keypoints of all images.
        image_index: [P] the image of each.
        truth: [N, L, 2].
        visible: [N, L].
        radius: [N], e.g. a tenth of the distance between the eyes (paper).
    """
    judged = (visible.any(axis=1) & ~np.isnan(radius))[image_index]
    if not judged.any():
        raise InputError(
            "no keypoint lies in an image with visible annotated points, so their precision cannot be "
            "measured; annotate images in which keypoints were found"
        )
    xy, image_index = xy[judged], image_index[judged]
    hits = 0
    for start in range(0, len(xy), CHUNK):
        image = image_index[start : start + CHUNK]
        offset = xy[start : start + CHUNK, None] - truth[image]
        near = np.hypot(offset[..., 0], offset[..., 1]) <= radius[image, None]
        hits += int((near & visible[image]).any(axis=1).sum())
    return hits / len(xy)
