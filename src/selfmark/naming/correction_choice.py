"""Choose the images to correct: the detector is uncertain about them, and their poses differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]  # not imported from `selfmark.points`, which imports torch


def choose_for_correction(
    xy: FloatArray, score: FloatArray, sides: FloatArray, count: int, taken: npt.NDArray[np.int64]
) -> list[int]:
    """Return the rows of the images to correct, the most useful first.

    Images are chosen one after the other. Each time, the image with the largest product of two numbers is
    chosen. The first number is the rank of the image by the uncertainty of its landmarks. The second number
    is the distance of its pose from the most similar pose that is already chosen or taken. So an unusual pose
    is chosen only once. Among images with similar poses, the one with the most uncertain landmarks is chosen.

    Args:
        xy: [N, K, 2] landmarks in pixels of the originals.
        score: [N, K] scores of the landmarks.
        sides: [N] side in pixels of the region that the network sees in each original.
        count: Number of images to choose.
        taken: Rows that were corrected before; they are not chosen again.
    """
    num_images = len(xy)
    certainty = np.asarray(score, np.float64).mean(axis=1)
    # The uncertainty is a rank, from 1 / N for the most certain image to 1 for the least certain image.
    # Scores of different detectors are not comparable, but ranks are.
    certainty_rank = np.argsort(np.argsort(certainty, kind="stable"), kind="stable")
    uncertainty = (num_images - certainty_rank) / num_images
    centered = (xy - xy.mean(axis=1, keepdims=True)) / np.asarray(sides, np.float64)[:, None, None]
    pose = centered.reshape(num_images, -1)
    min_distance = np.full(num_images, np.inf)  # distance to the nearest pose that is chosen or taken
    is_free = np.ones(num_images, dtype=bool)
    is_free[taken] = False
    for row in taken.tolist():
        min_distance = np.minimum(min_distance, np.linalg.norm(pose - pose[row], axis=1))
    chosen: list[int] = []
    while len(chosen) < count and is_free.any():
        # Before the first choice there is nothing to compare with, so only uncertainty counts.
        distance = min_distance if np.isfinite(min_distance).all() else np.ones(num_images)
        # The second term decides between images whose poses are equal to poses that are already chosen.
        usefulness = np.where(is_free, uncertainty * distance + 1e-9 * uncertainty, -np.inf)
        row = int(np.argmax(usefulness))
        chosen.append(row)
        is_free[row] = False
        min_distance = np.minimum(min_distance, np.linalg.norm(pose - pose[row], axis=1))
    return chosen
