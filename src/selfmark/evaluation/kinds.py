"""Whether the images show two kinds of objects, judged by the pretrained features of their landmarks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

_ITERATIONS = 20  # of 2-means
_MIN_FRACTION = 0.1  # a smaller group is a few odd images, not a kind


def measure_kind_separation(descriptor: FloatArray) -> float:
    """Return the silhouette of the best split of the images into two kinds, 0 if there is no clear split.

    Every image is described by the mean of its landmarks. Two tight groups that are far apart give a value
    near 1.

    Args:
        descriptor: [N, K, D] unit vectors, see `appearance.describe_landmarks`.
    """
    images = descriptor.mean(axis=1)
    images = images - images.mean(axis=0)
    if len(images) < 4 or not images.any():
        return 0.0
    is_second = _split_in_two(images)
    if min(is_second.mean(), 1 - is_second.mean()) < _MIN_FRACTION:
        return 0.0
    distance = np.linalg.norm(images[:, None] - images[None], axis=-1)
    silhouette = []
    for row, group in enumerate(is_second):
        same = is_second == group
        within = distance[row, same].sum() / max(same.sum() - 1, 1)
        between = distance[row, ~same].mean()
        silhouette.append((between - within) / max(between, within))
    return max(float(np.mean(silhouette)), 0.0)


def _split_in_two(images: FloatArray) -> npt.NDArray[np.bool_]:
    """Split vectors [N, D] by 2-means, starting from the direction of largest variance.

    Returns:
        [N], True for the second group.
    """
    direction = np.linalg.svd(images, full_matrices=False)[2][0]
    is_second: npt.NDArray[np.bool_] = images @ direction > 0
    for _ in range(_ITERATIONS):
        if is_second.all() or not is_second.any():
            break
        centers = [images[is_second == group].mean(axis=0) for group in (False, True)]
        nearest = np.linalg.norm(images - centers[1], axis=1) < np.linalg.norm(images - centers[0], axis=1)
        if (nearest == is_second).all():
            break
        is_second = nearest
    return is_second
