"""Agreement of two independent detectors of the same objects: each is the annotation of the other.

A landmark that marks the same part of every individual can be predicted from the landmarks of the other
detector. A landmark that wanders cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from selfmark.evaluation.curves import landmark_errors
from selfmark.evaluation.nme import mean_error
from selfmark.evaluation.protocol import Examples, backward_errors, forward_errors, mean_shape_errors
from selfmark.evaluation.regression import fit_ridge
from selfmark.points import FloatArray


@dataclass(frozen=True)
class LocatedByBoth:
    """Landmarks of the same N images, found by two detectors, in network pixels.

    Attributes:
        first: [N, K, 2] landmarks of the detector to judge.
        second: [N, L, 2] landmarks of the other detector.
    """

    first: FloatArray
    second: FloatArray

    def to_examples(self, size: int) -> Examples:
        """Return the landmarks of the second detector as annotations; errors are relative to the side."""
        visible = np.ones(self.second.shape[:2], dtype=bool)
        return Examples(self.first, self.second, visible, np.full(len(self.first), float(size)))


@dataclass(frozen=True)
class SecondRunErrors:
    """Errors of landmarks against those of a second run, in percent of the side of the image.

    Attributes:
        images: number of images that neither detector was trained on, on which errors are measured.
        forward: error of predicting the landmarks of the second run from those of the first.
        guessing_forward: error of guessing their mean position.
        backward: error of predicting the landmarks of the first run from those of the second.
        guessing_backward: error of guessing their mean position.
        backward_shares: [K] error of predicting each landmark of the first run, divided by that of guessing.
    """

    images: int
    forward: float
    guessing_forward: float
    backward: float
    guessing_backward: float
    backward_shares: FloatArray


def compare_detectors(fit: LocatedByBoth, test: LocatedByBoth, size: int, ridge: float) -> SecondRunErrors:
    """Predict the landmarks of each detector from those of the other.

    Args:
        fit: images to fit regressors on.
        test: images that neither detector was trained on.
        size: side of the network image.
        ridge: penalty of the regressors, see `fit_ridge`.
    """
    train, held_out = fit.to_examples(size), test.to_examples(size)
    regressor = partial(fit_ridge, ridge=ridge)
    backward = backward_errors(train, held_out, regressor)
    guessed = np.linalg.norm(test.first - fit.first.mean(axis=0), axis=2).mean(axis=0) * (100 / size)
    guessing = mean_shape_errors(train, held_out)
    return SecondRunErrors(
        images=len(held_out),
        forward=mean_error(forward_errors(train, held_out, regressor)),
        guessing_forward=guessing["forward"],
        backward=mean_error(backward),
        guessing_backward=guessing["backward"],
        backward_shares=landmark_errors(backward) / np.maximum(guessed, 1e-9),
    )
