"""Linear regressors between landmarks and annotated points (paper, Evaluation Metrics).

Discovered landmarks have no names. They are judged by how well a linear map predicts the annotated points
from them, and the other way around.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray


@dataclass(frozen=True)
class Regressor:
    """A linear map of centered vectors: (inputs - input_mean) @ weights + target_mean.

    Attributes:
        weights: [A, B].
        input_mean: [A].
        target_mean: [B].
    """

    weights: FloatArray
    input_mean: FloatArray
    target_mean: FloatArray

    def predict(self, inputs: FloatArray) -> FloatArray:
        """Map inputs [N, A] to predictions [N, B]."""
        # The means are mapped once instead of once per image.
        predicted: FloatArray = inputs @ self.weights + (self.target_mean - self.input_mean @ self.weights)
        return predicted


Fit = Callable[[FloatArray, FloatArray], Regressor]  # `fit_without_bias`, or `partial(fit_ridge, ridge=...)`


def fit_ridge(inputs: FloatArray, targets: FloatArray, ridge: float) -> Regressor:
    """Fit least squares with a penalty of lambda |weights|^2 on centered inputs and targets.

    Lambda is `ridge` times the largest entry of X'X, so its effect depends neither on the number of images
    nor on the unit of the coordinates. The means are not penalized.

    Args:
        inputs: [N, A], N >= 1.
        targets: [N, B].
        ridge: At least 0; with 0 and fewer images than inputs, the result is the minimum-norm solution.

    >>> inputs = np.array([[0.0], [1.0], [2.0]])
    >>> fit_ridge(inputs, 3.0 * inputs + 1.0, ridge=0.0).predict(np.array([[10.0]])).round(6)
    array([[31.]])
    """
    if ridge < 0:
        raise ValueError(f"ridge must be at least 0, not {ridge}")
    x, y = _as_double(inputs, targets)
    input_mean, target_mean = x.mean(axis=0), y.mean(axis=0)
    x, y = x - input_mean, y - target_mean
    gram = x.T @ x
    penalty = ridge * gram.max()
    if penalty > 0:
        weights = np.linalg.solve(gram + penalty * np.eye(len(gram)), x.T @ y)
    else:  # the matrix is singular with too few images or a landmark that never moves
        weights = np.linalg.lstsq(gram, x.T @ y, rcond=None)[0]
    return Regressor(weights, input_mean, target_mean)


def fit_without_bias(inputs: FloatArray, targets: FloatArray) -> Regressor:
    """Fit plain least squares on raw coordinates: the paper's "simple regressor with no bias" (Evaluation).

    Unlike `fit_ridge`, the result depends on the origin of the coordinates. With fewer images than inputs,
    the result is the minimum-norm solution.

    Args:
        inputs: [N, A], N >= 1.
        targets: [N, B].

    >>> inputs = np.array([[1.0], [2.0]])
    >>> fit_without_bias(inputs, 3.0 * inputs).predict(np.array([[10.0]])).round(6)
    array([[30.]])
    """
    x, y = _as_double(inputs, targets)
    # Solved on X itself: raw coordinates share one large mean, and X'X would square that condition number.
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    return Regressor(weights, np.zeros(x.shape[1]), np.zeros(y.shape[1]))


def _as_double(inputs: FloatArray, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return both arrays in double precision, after checking that they have the same number of images."""
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(
            f"inputs and targets must have the same number of rows, at least 1, not {len(inputs)} and "
            f"{len(targets)}"
        )
    return np.asarray(inputs, np.float64), np.asarray(targets, np.float64)
