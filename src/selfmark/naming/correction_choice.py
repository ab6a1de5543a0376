"""Choice of the images that are most worth correcting: the detector is unsure, and they differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]  # `selfmark.points` would import torch


def choose_for_correction(
    xy: FloatArray, score: FloatArray, sides: FloatArray, count: int, taken: npt.NDArray[np.int64]
) -> list[int]:
    """Return the rows of the images to correct, the most useful first.

    Images are chosen one after the other. Each is the one with the largest product of two numbers: how unsure
    the detector is, as a rank among all images, and how much its pose differs from the most similar image
    that is already chosen or taken. So an unusual pose is chosen once, and of similar images the least
    certain one.

    Args:
        xy: [N, K, 2] landmarks in pixels of the originals.
        score: [N, K] scores of the landmarks.
        sides: [N] side of the part of each original that the network sees, in pixels.
        count: number of images to choose.
        taken: rows that were corrected before; they are not chosen again.
    """
    num_images = len(xy)
    certainty = np.asarray(score, np.float64).mean(axis=1)
    # From 1 / N for the most certain image to 1; scores of different detectors are not comparable, ranks are.
    unsure = (num_images - np.argsort(np.argsort(certainty, kind="stable"), kind="stable")) / num_images
    centered = (xy - xy.mean(axis=1, keepdims=True)) / np.asarray(sides, np.float64)[:, None, None]
    pose = centered.reshape(num_images, -1)
    nearest = np.full(num_images, np.inf)
    is_free = np.ones(num_images, dtype=bool)
    is_free[taken] = False
    for row in taken.tolist():
        nearest = np.minimum(nearest, np.linalg.norm(pose - pose[row], axis=1))
    chosen: list[int] = []
    while len(chosen) < count and is_free.any():
        distance = nearest if np.isfinite(nearest).all() else np.ones(num_images)
        # Of identical poses, the order of certainty decides.
        worth = np.where(is_free, unsure * distance + 1e-9 * unsure, -np.inf)
        row = int(np.argmax(worth))
        chosen.append(row)
        is_free[row] = False
        nearest = np.minimum(nearest, np.linalg.norm(pose - pose[row], axis=1))
    return chosen
