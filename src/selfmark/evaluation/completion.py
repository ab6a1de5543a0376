"""Fill in landmarks that Stage 1 did not find (paper, Evaluation).

Filled-in landmarks are used only to measure errors, never to train a detector. In the training set, gaps are
filled by Singular Value Thresholding (Cai, Candes and Shen, 2010): landmarks of one object move together, so
the matrix of their coordinates has nearly low rank. In test images, gaps are filled with the mean positions
of the training set. Missing landmarks are NaN.
"""

from __future__ import annotations

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.nme import BoolArray, mask_found_landmarks, nan_mean
from selfmark.points import FloatArray

# Values that Cai et al. recommend for matrices with entries of the order of one.
TAU = 5.0  # the threshold of the singular values is TAU * sqrt(rows * columns)
STEP = 1.2  # the step size is STEP / (fraction of observed entries), but at most MAX_STEP
# Convergence is proven for steps below 2. The step of Cai et al. exceeds 2 if many entries are missing.
MAX_STEP = 1.9
TOLERANCE = 1e-4  # iterations end if |residual| / |observed entries| is at most this


def complete_landmarks(landmarks: FloatArray, iterations: int) -> FloatArray:
    """Fill the gaps of a training set; the landmarks that were found stay bitwise the same.

    Shifting or scaling the coordinates shifts or scales the result, so their origin and unit do not matter.

    Args:
        landmarks: [N, K, 2] landmarks, NaN where missing.
        iterations: Maximum number of iterations of Singular Value Thresholding.

    Returns:
        [N, K, 2] without NaN. Images without any landmark get the mean positions.
    """
    is_found = mask_found_landmarks(landmarks)
    if is_found.all():
        return landmarks.copy()
    mean = mean_landmarks(landmarks)
    offset = np.where(is_found[..., None], landmarks - mean, 0.0)
    unit = float(np.sqrt(np.mean(offset[is_found] ** 2)))
    if unit == 0.0:  # every landmark that was found is at its mean position
        return fill_with_mean(landmarks, mean)
    matrix = offset.reshape(len(offset), -1).T / unit
    is_observed = np.repeat(is_found, 2, axis=1).T
    low_rank, _ = threshold_singular_values(matrix, is_observed, iterations)
    guess = low_rank.T.reshape(landmarks.shape) * unit + mean
    filled_landmarks: FloatArray = np.where(is_found[..., None], landmarks, guess)
    return filled_landmarks


def threshold_singular_values(
    matrix: FloatArray, is_observed: BoolArray, iterations: int
) -> tuple[FloatArray, FloatArray]:
    """Minimize tau |X|_* + |X|_F^2 / 2 over all matrices X that equal `matrix` at its observed entries.

    |X|_* is the nuclear norm, the sum of the singular values, and |X|_F the Frobenius norm. tau is
    `TAU` * sqrt(A * B).

    Args:
        matrix: [A, B], entries of the order of one; A should be the smaller dimension.
        is_observed: [A, B] mask, True for the observed entries.
        iterations: Maximum number of iterations.

    Returns:
        X [A, B], and the dual variable Y [A, B], which is zero where nothing is observed. X is Y after
        `shrink_singular_values`.
    """
    known = np.where(is_observed, matrix, 0.0)
    norm = float(np.linalg.norm(known))
    tau = TAU * np.sqrt(matrix.size)
    step = min(STEP * matrix.size / is_observed.sum(), MAX_STEP)
    # X stays zero until the largest singular value of Y exceeds tau; these iterations are skipped.
    dual = np.ceil(tau / (step * np.linalg.norm(known, 2))) * step * known
    low_rank = shrink_singular_values(dual, tau)
    for _ in range(iterations):
        residual = np.where(is_observed, known - low_rank, 0.0)
        if np.linalg.norm(residual) <= TOLERANCE * norm:
            break
        dual = dual + step * residual
        low_rank = shrink_singular_values(dual, tau)
    return low_rank, dual


def shrink_singular_values(matrix: FloatArray, tau: float) -> FloatArray:
    """Lower every singular value of `matrix` [A, B] by tau, but not below zero.

    The singular values are computed from the A x A Gram matrix, so B may be large.
    """
    values, vectors = np.linalg.eigh(matrix @ matrix.T)
    singular = np.sqrt(np.maximum(values, 0.0))
    kept = singular > tau
    basis = vectors[:, kept]
    shrunk: FloatArray = (basis * (1.0 - tau / singular[kept])) @ (basis.T @ matrix)
    return shrunk


def mean_landmarks(landmarks: FloatArray) -> FloatArray:
    """Compute the mean position [K, 2] of each landmark.

    A landmark that was found in no image gets the average of the other landmarks' mean positions.

    Args:
        landmarks: [N, K, 2] landmarks, NaN where missing.

    Raises:
        InputError: If no landmark was found in any image.
    """
    is_found = mask_found_landmarks(landmarks)
    if not is_found.any():
        raise InputError(
            "no landmark was found in any training image, so none can be filled in; train for longer"
        )
    mean = nan_mean(np.where(is_found[..., None], landmarks, np.nan), axis=0)
    is_ever_found: BoolArray = np.any(is_found, axis=0)
    return np.where(is_ever_found[:, None], mean, mean[is_ever_found].mean(axis=0))


def fill_with_mean(landmarks: FloatArray, mean: FloatArray) -> FloatArray:
    """Replace missing landmarks [T, K, 2] by their training mean [K, 2], as the paper does in test images."""
    filled_landmarks: FloatArray = np.where(mask_found_landmarks(landmarks)[..., None], landmarks, mean)
    return filled_landmarks


def points_per_image(landmarks: FloatArray) -> float:
    """Compute the mean number of landmarks that were found per image (the paper's p.p.e.).

    >>> points_per_image(np.array([[[1.0, 1.0], [np.nan, np.nan]], [[2.0, 2.0], [3.0, 3.0]]]))
    1.5
    """
    return float(mask_found_landmarks(landmarks).sum(axis=1).mean())
