"""Fit linear regressors between landmarks and annotated points (paper, Evaluation Metrics).

Discovered landmarks have no names. So they are judged by the errors of two linear maps. The forward map
predicts the annotated points from the landmarks. The backward map predicts the landmarks from the annotated
points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray


@dataclass(frozen=True)
class Regressor:
    """A linear map of centered vectors: (inputs - input_mean) @ weights + target_mean.

    Attributes:
        weights: [A, B] matrix of the map.
        input_mean: [A] mean of the inputs.
        target_mean: [B] mean of the targets.
    """

    weights: FloatArray
    input_mean: FloatArray
    target_mean: FloatArray

    def predict(self, inputs: FloatArray) -> FloatArray:
        """Map inputs [N, A] to predictions [N, B]."""
        # Equal to (inputs - input_mean) @ weights + target_mean, but without a centered copy of the inputs.
        predicted: FloatArray = inputs @ self.weights + (self.target_mean - self.input_mean @ self.weights)
        return predicted


# Fits a regressor to inputs [N, A] and targets [N, B]: `fit_without_bias` or `partial(fit_ridge, ridge=...)`.
Fit = Callable[[FloatArray, FloatArray], Regressor]


@dataclass(frozen=True)
class RegressorFitter:
    """A function that fits several regressors on the same images.

    Attributes:
        fit: Function that fits the regressors to inputs [N, A] and targets [N, B].
        count: Number of regressors that `fit` returns.
    """

    fit: Callable[[FloatArray, FloatArray], list[Regressor]]
    count: int

    @classmethod
    def of_one(cls, fit: Fit) -> RegressorFitter:
        """Return a fitter of a single regressor."""
        return cls(lambda inputs, targets: [fit(inputs, targets)], 1)


def fit_ridge(inputs: FloatArray, targets: FloatArray, ridge: float) -> Regressor:
    """Fit least squares with a penalty of lambda |weights|^2 on centered inputs and targets.

    Lambda is `ridge` times the largest entry of X'X, where X are the centered inputs. So the effect of
    `ridge` depends neither on the number of images nor on the unit of the coordinates.

    Args:
        inputs: [N, A] vectors to predict from, N >= 1.
        targets: [N, B] vectors to predict.
        ridge: Strength of the penalty, at least 0. With 0, the solution may not be unique; then the solution
            of minimum norm is returned.

    >>> inputs = np.array([[0.0], [1.0], [2.0]])
    >>> fit_ridge(inputs, 3.0 * inputs + 1.0, ridge=0.0).predict(np.array([[10.0]])).round(6)
    array([[31.]])
    """
    return fit_ridges(inputs, targets, (ridge,))[0]


def fit_ridges(inputs: FloatArray, targets: FloatArray, ridges: Sequence[float]) -> list[Regressor]:
    """Fit the regressors of `fit_ridge` for several penalties, computing X'X and X'Y only once."""
    for ridge in ridges:
        if ridge < 0:
            raise ValueError(f"ridge must be at least 0, not {ridge}")
    x, y = _as_double(inputs, targets)
    input_mean, target_mean = x.mean(axis=0), y.mean(axis=0)
    x, y = x - input_mean, y - target_mean
    gram, cross = x.T @ x, x.T @ y
    return [Regressor(_solve(gram, cross, ridge), input_mean, target_mean) for ridge in ridges]


def _solve(gram: FloatArray, cross: FloatArray, ridge: float) -> FloatArray:
    """Return the weights [A, B] of a ridge regressor from X'X [A, A] and X'Y [A, B]."""
    penalty = ridge * gram.max()
    if penalty > 0:
        weights: FloatArray = np.linalg.solve(gram + penalty * np.eye(len(gram)), cross)
    else:  # the matrix is singular if there are too few images or if a landmark never moves
        weights = np.linalg.lstsq(gram, cross, rcond=None)[0]
    return weights


def fit_without_bias(inputs: FloatArray, targets: FloatArray) -> Regressor:
    """Fit plain least squares on raw coordinates: the paper's "simple regressor with no bias" (Evaluation).

    The result depends on the origin of the coordinates, unlike that of `fit_ridge`. If there are fewer images
    than input coordinates, N < A, the solution of minimum norm is returned.

    Args:
        inputs: [N, A] vectors to predict from, N >= 1.
        targets: [N, B] vectors to predict.

    >>> inputs = np.array([[1.0], [2.0]])
    >>> fit_without_bias(inputs, 3.0 * inputs).predict(np.array([[10.0]])).round(6)
    array([[30.]])
    """
    x, y = _as_double(inputs, targets)
    # X'X would square the condition number of X, which is large because raw coordinates have a large mean.
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    return Regressor(weights, np.zeros(x.shape[1]), np.zeros(y.shape[1]))


def _as_double(inputs: FloatArray, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Check that both arrays have the same number of rows, and return them in double precision."""
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(
            f"inputs and targets must have the same number of rows, at least 1, not {len(inputs)} and "
            f"{len(targets)}"
        )
    return np.asarray(inputs, np.float64), np.asarray(targets, np.float64)
