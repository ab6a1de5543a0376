"""Compare two detectors of the same objects that were trained independently.

The landmarks of one detector serve as annotations for the other. A landmark that marks the same part of every
individual can be predicted from the landmarks of the other detector. A landmark that marks different parts
cannot be predicted in this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from selfmark.evaluation.curves import errors_by_point
from selfmark.evaluation.nme import mean_error
from selfmark.evaluation.protocol import Examples, backward_errors, forward_errors, mean_shape_errors
from selfmark.evaluation.regression import fit_ridge
from selfmark.points import FloatArray


@dataclass(frozen=True)
class PairedLandmarks:
    """Landmarks that two detectors find in the same N images, in network pixels.

    Attributes:
        first: [N, K, 2] landmarks of the detector to judge.
        second: [N, L, 2] landmarks of the other detector.
    """

    first: FloatArray
    second: FloatArray

    def to_examples(self, size: int) -> Examples:
        """Return the landmarks of the first detector, with those of the second one as annotated points.

        Args:
            size: side of the network image, which is the normalizer.
        """
        visible = np.ones(self.second.shape[:2], dtype=bool)
        return Examples(self.first, self.second, visible, np.full(len(self.first), float(size)))


@dataclass(frozen=True)
class SecondRunErrors:
    """Errors of predicting the landmarks of two runs from each other, in percent of the side of the image.

    Attributes:
        images: number of images that errors are measured on; neither detector was trained on them.
        forward: error of predicting the landmarks of the second run from those of the first.
        guessing_forward: error of guessing the mean positions of the landmarks of the second run.
        backward: error of predicting the landmarks of the first run from those of the second.
        guessing_backward: error of guessing the mean positions of the landmarks of the first run.
        backward_shares: [K] error of predicting each landmark of the first run, divided by the error of
            guessing its mean position; not in percent.
    """

    images: int
    forward: float
    guessing_forward: float
    backward: float
    guessing_backward: float
    backward_shares: FloatArray


def compare_detectors(
    train_pairs: PairedLandmarks, test_pairs: PairedLandmarks, size: int, ridge: float
) -> SecondRunErrors:
    """Measure how well the landmarks of each detector can be predicted from those of the other.

    Args:
        train_pairs: landmarks in the images to fit regressors on.
        test_pairs: landmarks in the images to measure errors on, on which neither detector was trained.
        size: side of the network image.
        ridge: penalty of the regressors, see `fit_ridge`.
    """
    train, held_out = train_pairs.to_examples(size), test_pairs.to_examples(size)
    regressor = partial(fit_ridge, ridge=ridge)
    backward = backward_errors(train, held_out, regressor)
    guessing = mean_shape_errors(train, held_out)
    distance_to_mean = np.linalg.norm(test_pairs.first - train_pairs.first.mean(axis=0), axis=2)
    guessing_by_landmark = distance_to_mean.mean(axis=0) * (100 / size)
    return SecondRunErrors(
        images=len(held_out),
        forward=mean_error(forward_errors(train, held_out, regressor)),
        guessing_forward=guessing["forward"],
        backward=mean_error(backward),
        guessing_backward=guessing["backward"],
        backward_shares=errors_by_point(backward) / np.maximum(guessing_by_landmark, 1e-9),
    )
