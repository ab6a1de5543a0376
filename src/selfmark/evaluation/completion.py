"""Filling in landmarks that Stage 1 did not find (paper, Evaluation): for evaluation, never for training.

In the training set gaps are filled by Singular Value Thresholding (Cai, Candes and Shen, 2010): landmarks of
one object move together, so the matrix of their coordinates is nearly of low rank. In test images gaps are
filled with the training set's mean positions. Missing landmarks are NaN throughout.
"""

from __future__ import annotations

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.nme import BoolArray, mean_of_known
from selfmark.points import FloatArray

# The numbers Cai et al. recommend, for matrices whose entries are of the order of one.
TAU = 5.0  # threshold, in units of sqrt(rows x columns)
STEP = 1.2  # step, over the share of entries observed
LARGEST_STEP = 1.9  # proven to converge below 2; their own step exceeds that, and fails, from half missing on
TOLERANCE = 1e-4  # residual on the observed entries, relative to them


def complete_landmarks(landmarks: FloatArray, iterations: int) -> FloatArray:
    """Fill the gaps of a training set; detected landmarks come back unchanged, bit for bit.

    The result moves and grows with the coordinates: neither their origin nor their unit matters.

    Args:
        landmarks: [N, K, 2], NaN where missing.
        iterations: Most iterations of Singular Value Thresholding.

    Returns:
        [N, K, 2] without NaN. Images without any landmark hold the mean positions.
    """
    found = _found(landmarks)
    if found.all():
        return landmarks.copy()
    mean = mean_landmarks(landmarks)
    offset = np.where(found[..., None], landmarks - mean, 0.0)
    unit = float(np.sqrt(np.mean(offset[found] ** 2)))
    if unit == 0.0:  # every landmark found is at its mean
        return fill_with_mean(landmarks, mean)
    matrix = offset.reshape(len(offset), -1).T / unit
    observed = np.repeat(found, 2, axis=1).T
    low_rank, _ = threshold_singular_values(matrix, observed, iterations)
    guess = low_rank.T.reshape(landmarks.shape) * unit + mean
    filled: FloatArray = np.where(found[..., None], landmarks, guess)
    return filled


def threshold_singular_values(
    matrix: FloatArray, observed: BoolArray, iterations: int
) -> tuple[FloatArray, FloatArray]:
    """The X that minimizes tau |X|_* + |X|_F^2 / 2 among those equal to `matrix` where it is observed.

    Args:
        matrix: [A, B], entries of the order of one; A should be the smaller.
        observed: [A, B].
        iterations: At most so many.

    Returns:
        X [A, B], and the dual Y [A, B], zero where nothing is observed, of which X is the shrinkage.
    """
    known = np.where(observed, matrix, 0.0)
    size = float(np.linalg.norm(known))
    tau = TAU * np.sqrt(matrix.size)
    step = min(STEP * matrix.size / observed.sum(), LARGEST_STEP)
    # Until Y's largest singular value exceeds tau, X stays zero: jump over those iterations.
    dual = np.ceil(tau / (step * np.linalg.norm(known, 2))) * step * known
    low_rank = shrink_singular_values(dual, tau)
    for _ in range(iterations):
        residual = np.where(observed, known - low_rank, 0.0)
        if np.linalg.norm(residual) <= TOLERANCE * size:
            break
        dual = dual + step * residual
        low_rank = shrink_singular_values(dual, tau)
    return low_rank, dual


def shrink_singular_values(matrix: FloatArray, tau: float) -> FloatArray:
    """Lower every singular value of `matrix` [A, B] by tau, at most to zero.

    By way of the eigenvectors of the small A x A matrix of products, so B may be large.
    """
    values, vectors = np.linalg.eigh(matrix @ matrix.T)
    singular = np.sqrt(np.maximum(values, 0.0))
    kept = singular > tau
    basis = vectors[:, kept]
    shrunk: FloatArray = (basis * (1.0 - tau / singular[kept])) @ (basis.T @ matrix)
    return shrunk


def mean_landmarks(landmarks: FloatArray) -> FloatArray:
    """Mean position [K, 2] of each landmark where it was found; the center of the others if it never was.

    Args:
        landmarks: [N, K, 2], NaN where missing.
    """
    found = _found(landmarks)
    if not found.any():
        raise InputError(
            "no landmark was found in any training image, so none can be filled in; train for longer"
        )
    mean = mean_of_known(np.where(found[..., None], landmarks, np.nan), axis=0)
    seen: BoolArray = np.any(found, axis=0)
    return np.where(seen[:, None], mean, mean[seen].mean(axis=0))


def fill_with_mean(landmarks: FloatArray, mean: FloatArray) -> FloatArray:
    """Missing landmarks of [T, K, 2] put at their training mean [K, 2], as the paper does in test images."""
    filled: FloatArray = np.where(_found(landmarks)[..., None], landmarks, mean)
    return filled


def points_per_image(landmarks: FloatArray) -> float:
    """How many landmarks an image has on average (the paper's p.p.e.).

    >>> points_per_image(np.array([[[1.0, 1.0], [np.nan, np.nan]], [[2.0, 2.0], [3.0, 3.0]]]))
    1.5
    """
    return float(_found(landmarks).sum(axis=1).mean())


def _found(landmarks: FloatArray) -> BoolArray:
    found: BoolArray = np.all(np.isfinite(landmarks), axis=2)
    return found
