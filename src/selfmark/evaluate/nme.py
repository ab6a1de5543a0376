"""Normalised mean errors: of points, of the maps between discovered and annotated points, of the mean shape.

Shapes: K discovered landmarks, L annotated ones, N images. Errors are percentages of the normaliser [N], one
length per image in the same pixels as the points. Where `visible` is false an annotated point is treated as
unknown, whatever its coordinates say.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.evaluate.regression import fit_ridge
from selfmark.points import FloatArray

BoolArray = npt.NDArray[np.bool_]


def nme(predicted: FloatArray, truth: FloatArray, visible: BoolArray, normaliser: FloatArray) -> float:
    """Mean over images of the mean, over an image's visible points, of distance / normaliser, in percent.

    So every image weighs the same, however many of its points are visible. Images without any are left out.

    >>> truth = np.zeros((1, 2, 2))
    >>> predicted = np.array([[[3.0, 4.0], [99.0, 99.0]]])
    >>> nme(predicted, truth, np.array([[True, False]]), np.array([50.0]))
    10.0

    Args:
        predicted: [N, L, 2].
        truth: [N, L, 2].
        visible: [N, L].
        normaliser: [N].
    """
    if predicted.shape != truth.shape or visible.shape != truth.shape[:2] or len(normaliser) != len(truth):
        raise ValueError(
            f"shapes do not agree: predicted {predicted.shape}, truth {truth.shape}, "
            f"visible {visible.shape}, normaliser {normaliser.shape}"
        )
    counted = visible.any(axis=1)
    if not counted.any():
        raise InputError("no image has a visible landmark, so there is nothing to evaluate")
    lengths = np.asarray(normaliser, np.float64)[counted]
    if not np.all(lengths > 0):
        worst = int(np.flatnonzero(counted)[np.flatnonzero(~(lengths > 0))[0]])
        raise InputError(
            f"image number {worst} has the normaliser {normaliser[worst]}; it must be positive, so leave out "
            "images whose visible points span no box"
        )
    # Unknown points may hold anything, NaN included: they must not enter even multiplied by zero.
    offset = np.where(visible[..., None], predicted.astype(np.float64) - truth, 0.0)[counted]
    total = np.linalg.norm(offset, axis=2).sum(axis=1)
    return float(100.0 * np.mean(total / visible[counted].sum(axis=1) / lengths))


def forward_nme(
    train_landmarks: FloatArray,
    train_truth: FloatArray,
    test_landmarks: FloatArray,
    test_truth: FloatArray,
    test_visible: BoolArray,
    normaliser: FloatArray,
    ridge: float,
    train_visible: BoolArray,
) -> float:
    """Error of predicting the annotated points from the discovered ones.

    Each annotated point has its own regressor, fitted on the training images in which it is visible.

    Args:
        train_landmarks: [N, K, 2] discovered, training images.
        train_truth: [N, L, 2] annotated, training images.
        test_landmarks: [T, K, 2].
        test_truth: [T, L, 2].
        test_visible: [T, L].
        normaliser: [T].
        ridge: See `fit_ridge`.
        train_visible: [N, L].
    """
    predicted = np.zeros(test_truth.shape)
    for index in range(train_truth.shape[1]):
        known = train_visible[:, index]
        if known.any():
            regressor = fit_ridge(_flat(train_landmarks[known]), train_truth[known, index], ridge)
            predicted[:, index] = regressor.predict(_flat(test_landmarks))
        else:
            _require_unseen(test_visible, index)
    return nme(predicted, test_truth, test_visible, normaliser)


def backward_nme(
    train_landmarks: FloatArray,
    train_truth: FloatArray,
    test_landmarks: FloatArray,
    test_truth: FloatArray,
    test_visible: BoolArray,
    normaliser: FloatArray,
    ridge: float,
    train_visible: BoolArray,
) -> float:
    """Error of predicting the discovered points from the annotated ones; arguments as in `forward_nme`.

    Low only if the discovered points stay put on the object: the forward error alone forgives bad points as
    long as others make up for them. Invisible annotated points are replaced by their training mean.
    """
    mean = mean_shape(train_truth, train_visible)
    known_train = np.where(train_visible[..., None], train_truth, mean)
    known_test = np.where(test_visible[..., None], test_truth, mean)
    regressor = fit_ridge(_flat(known_train), _flat(train_landmarks), ridge)
    predicted = regressor.predict(_flat(known_test)).reshape(test_landmarks.shape)
    return nme(predicted, test_landmarks, np.ones(test_landmarks.shape[:2], bool), normaliser)


def mean_shape_nme(
    train_truth: FloatArray,
    train_visible: BoolArray,
    test_truth: FloatArray,
    test_visible: BoolArray,
    normaliser: FloatArray,
) -> float:
    """Error of the training set's mean shape as the answer for every test image: what guessing costs."""
    for index in np.flatnonzero(~train_visible.any(axis=0)):
        _require_unseen(test_visible, int(index))
    predicted = np.broadcast_to(mean_shape(train_truth, train_visible), test_truth.shape)
    return nme(predicted, test_truth, test_visible, normaliser)


def mean_shape(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Mean place [L, 2] of each point over the images where it is visible; the origin if it never is."""
    total = np.where(visible[..., None], truth, 0.0).sum(axis=0, dtype=np.float64)
    mean: FloatArray = total / np.maximum(visible.sum(axis=0), 1)[:, None]
    return mean


def box_normaliser(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Root of the area of the tight box around an image's visible points, [N]; 0 where there are none."""
    low = np.where(visible[..., None], truth, np.inf).min(axis=1)
    high = np.where(visible[..., None], truth, -np.inf).max(axis=1)
    sides = np.where(visible.any(axis=1, keepdims=True), high - low, 0.0)
    root: FloatArray = np.sqrt(sides[:, 0] * sides[:, 1])
    return root


def pair_normaliser(truth: FloatArray, i: int, j: int) -> FloatArray:
    """Distance [N] between annotated points i and j, e.g. the eyes (inter-ocular) or the shoulders."""
    distance: FloatArray = np.linalg.norm(truth[:, i] - truth[:, j], axis=1)
    return distance


def _flat(points: FloatArray) -> FloatArray:
    return points.reshape(len(points), -1)


def _require_unseen(test_visible: BoolArray, index: int) -> None:
    """A point never annotated in training cannot be predicted; harmless only if testing never asks for it."""
    if test_visible[:, index].any():
        raise InputError(
            f"annotated landmark number {index} is visible in no training image but in some test image; "
            "annotate it in training images or leave it out"
        )
