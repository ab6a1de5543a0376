"""The regressor that carries one set of points over to another (paper, Evaluation Metrics).

Discovered landmarks have no names, so they are judged by how well a linear map predicts the annotated ones
from them, and the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray


@dataclass(frozen=True)
class Regressor:
    """A linear map of mean-free vectors: (inputs - input_mean) @ weights + target_mean.

    weights:     [A, B]
    input_mean:  [A]
    target_mean: [B]
    """

    weights: FloatArray
    input_mean: FloatArray
    target_mean: FloatArray

    def predict(self, inputs: FloatArray) -> FloatArray:
        """[N, A] to [N, B]."""
        predicted: FloatArray = (inputs - self.input_mean) @ self.weights + self.target_mean
        return predicted


def fit_ridge(inputs: FloatArray, targets: FloatArray, ridge: float) -> Regressor:
    """Least squares with a penalty of lambda |weights|^2, on mean-free inputs and targets.

    Lambda is `ridge` times the largest entry of X'X, so its effect depends neither on the number of images
    nor on the unit of the coordinates. The means stay out of the penalty.

    Args:
        inputs: [N, A], N >= 1.
        targets: [N, B].
        ridge: At least 0; with 0 and fewer images than inputs, the smallest weights that fit are taken.

    >>> inputs = np.array([[0.0], [1.0], [2.0]])
    >>> fit_ridge(inputs, 3.0 * inputs + 1.0, ridge=0.0).predict(np.array([[10.0]])).round(6)
    array([[31.]])
    """
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(
            f"inputs and targets must be of the same images, not {len(inputs)} and {len(targets)}"
        )
    if ridge < 0:
        raise ValueError(f"ridge must be at least 0, not {ridge}")
    x, y = np.asarray(inputs, np.float64), np.asarray(targets, np.float64)
    input_mean, target_mean = x.mean(axis=0), y.mean(axis=0)
    x, y = x - input_mean, y - target_mean
    gram = x.T @ x
    penalty = ridge * gram.max() * np.eye(len(gram))
    # lstsq, not solve: constant inputs (a landmark that never moves) leave the matrix singular.
    weights = np.linalg.lstsq(gram + penalty, x.T @ y, rcond=None)[0]
    return Regressor(weights, input_mean, target_mean)
