"""Check whether the images show two kinds of objects, using the pretrained features of the landmarks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

_ITERATIONS = 20  # maximum number of iterations of 2-means
_MIN_IMAGES = 4  # a split of fewer images says nothing
_MIN_FRACTION = 0.1  # a group with a smaller fraction of the images is not a kind, but a few odd images


def measure_kind_separation(descriptor: FloatArray) -> float:
    """Return the mean silhouette of splitting the images into two kinds; 0 if there is no clear split.

    An image is described by the mean descriptor of its landmarks. The silhouette of an image compares the
    mean distance to the images of its own group with the mean distance to the images of the other group. The
    silhouette is 0 if the two distances are equal, and near 1 if the own group is much nearer.

    Args:
        descriptor: [N, K, D] unit vectors, see `appearance.describe_landmarks`.
    """
    images = descriptor.mean(axis=1)  # [N, D]
    images = images - images.mean(axis=0)
    if len(images) < _MIN_IMAGES or not images.any():
        return 0.0
    is_second = _split_in_two(images)
    if min(is_second.mean(), 1 - is_second.mean()) < _MIN_FRACTION:
        return 0.0
    distance = np.linalg.norm(images[:, None] - images[None], axis=-1)
    silhouette = []
    for row, group in enumerate(is_second):
        is_same = is_second == group
        distance_within = distance[row, is_same].sum() / max(
            is_same.sum() - 1, 1
        )  # the image itself is not counted
        distance_between = distance[row, ~is_same].mean()
        silhouette.append((distance_between - distance_within) / max(distance_between, distance_within))
    return max(float(np.mean(silhouette)), 0.0)


def _split_in_two(images: FloatArray) -> npt.NDArray[np.bool_]:
    """Split vectors [N, D] by 2-means, starting with a split along the direction of largest variance.

    Returns:
        [N], True for the second group.
    """
    direction = np.linalg.svd(images, full_matrices=False)[2][0]
    is_second: npt.NDArray[np.bool_] = images @ direction > 0
    for _ in range(_ITERATIONS):
        if is_second.all() or not is_second.any():
            break
        centers = [images[is_second == group].mean(axis=0) for group in (False, True)]
        first_distance, second_distance = (np.linalg.norm(images - center, axis=1) for center in centers)
        is_nearer_second = second_distance < first_distance
        if (is_nearer_second == is_second).all():
            break
        is_second = is_nearer_second
    return is_second
