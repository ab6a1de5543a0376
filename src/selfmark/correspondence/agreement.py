"""Measure how well landmarks predict each other, a check that needs no labels.

A landmark that is on the same part of every object can be predicted from the other landmarks, because the
parts of an object move together. A landmark that jumps between parts cannot be predicted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

# Penalty, relative to the largest entry of the Gram matrix, as for the setting `evaluation.ridge`.
RIDGE = 0.01
_MIN_IMAGES = 4  # a landmark counts if it is present in at least this many images of each half


def unexplained_fraction(
    predictors: FloatArray,
    targets: FloatArray,
    present: npt.NDArray[np.bool_],
) -> float:
    """Predict landmarks from other landmarks; return the error relative to guessing the mean position.

    A ridge regression is fitted on every second image and tested on the images between; then the two halves
    are swapped. The result is 0 if the predictors determine the targets, and about 1 if predictors and
    targets are unrelated. It is 1 if no target is present in enough images.

    Args:
        predictors: [N, K, 2] landmarks of N images, in pixels.
        targets: [N, L, 2] landmarks to predict, in pixels.
        present: [N, L] bool, targets that were found in the image.
    """
    is_even = np.arange(len(predictors)) % 2 == 0
    error = baseline = 0.0
    inputs = predictors.reshape(len(predictors), -1).astype(np.float64)
    for landmark in range(targets.shape[1]):
        for is_fitted, is_tested in ((is_even, ~is_even), (~is_even, is_even)):
            fit_rows, test_rows = is_fitted & present[:, landmark], is_tested & present[:, landmark]
            if min(fit_rows.sum(), test_rows.sum()) < _MIN_IMAGES:
                continue
            residual, spread = _fit_and_test(
                inputs[fit_rows], targets[fit_rows, landmark], inputs[test_rows], targets[test_rows, landmark]
            )
            error += residual
            baseline += spread
    return error / baseline if baseline > 0 else 1.0


def _fit_and_test(
    inputs: FloatArray, points: FloatArray, test_inputs: FloatArray, test_points: FloatArray
) -> tuple[float, float]:
    """Return the mean test error of a ridge regression and of guessing the mean position, in pixels."""
    center, mean = inputs.mean(axis=0), points.mean(axis=0)
    centered = inputs - center
    weights = solve_ridge(centered.T @ centered, centered.T @ (points - mean))
    predicted = (test_inputs - center) @ weights + mean
    error = np.linalg.norm(predicted - test_points, axis=1).mean()
    return float(error), float(np.linalg.norm(test_points - mean, axis=1).mean())


def solve_ridge(gram: FloatArray, cross: FloatArray) -> FloatArray:
    """Return the weights [A, B] of a ridge regression from X'X [A, A] and X'Y [A, B]."""
    penalty = max(RIDGE * float(np.abs(gram).max()), 1e-9)
    weights: FloatArray = np.linalg.solve(gram + penalty * np.eye(len(gram)), cross)
    return weights
