"""Normalized mean errors: of points, of the maps between discovered and annotated points, of the mean shape.

Shapes: K discovered landmarks, L annotated ones, N images, T test images. Errors are percentages of the
normalizer [N], one length per image in the same pixels as the points. Where `visible` is false an annotated
point is treated as unknown, whatever its coordinates say; its error is NaN, and NaN means "left out".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.evaluation.regression import Fit
from selfmark.points import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


def point_errors(
    predicted: FloatArray, truth: FloatArray, visible: BoolArray, normalizer: FloatArray
) -> FloatArray:
    """Distance / normalizer in percent, [N, L]; NaN where a point is not visible or not predicted.

    Args:
        predicted: [N, L, 2].
        truth: [N, L, 2].
        visible: [N, L].
        normalizer: [N], positive wherever a point is visible.
    """
    if predicted.shape != truth.shape or visible.shape != truth.shape[:2] or len(normalizer) != len(truth):
        raise ValueError(
            f"shapes do not agree: predicted {predicted.shape}, truth {truth.shape}, "
            f"visible {visible.shape}, normalizer {normalizer.shape}"
        )
    refused = visible.any(axis=1) & ~(normalizer > 0)
    if refused.any():
        worst = int(np.flatnonzero(refused)[0])
        raise InputError(
            f"image number {worst} has the normalizer {normalizer[worst]}; it must be positive, so leave out "
            "images whose visible points span no box"
        )
    # Divided only where it counts: an image without visible points may have no size at all.
    size = np.where(visible.any(axis=1), normalizer, 1.0).astype(np.float64)
    offset = predicted.astype(np.float64) - truth
    distance = np.hypot(offset[..., 0], offset[..., 1])
    errors: FloatArray = np.where(visible, 100.0 * distance / size[:, None], np.nan)
    return errors


def image_errors(errors: FloatArray) -> FloatArray:
    """Mean over the points of each image, [N, L] to [N]; NaN where an image has none."""
    return mean_of_known(errors, axis=1)


def mean_error(errors: FloatArray) -> float:
    """Mean of `image_errors`: every image weighs the same, however many points it shows; NaN if none does."""
    return float(mean_of_known(image_errors(errors), axis=0))


def nme(predicted: FloatArray, truth: FloatArray, visible: BoolArray, normalizer: FloatArray) -> float:
    """Mean over images of the mean, over an image's visible points, of distance / normalizer, in percent.

    Images without visible points are left out. Arguments as in `point_errors`.

    >>> truth = np.zeros((1, 2, 2))
    >>> predicted = np.array([[[3.0, 4.0], [99.0, 99.0]]])
    >>> nme(predicted, truth, np.array([[True, False]]), np.array([50.0]))
    10.0
    """
    errors = point_errors(predicted, truth, visible, normalizer)
    if not visible.any():
        raise InputError("no image has a visible landmark, so there is nothing to evaluate")
    # A missing prediction must not pass for a point left out.
    if np.isnan(errors[visible]).any():
        raise ValueError("predicted and truth must be numbers wherever a point is visible")
    return mean_error(errors)


def forward_prediction(
    train_landmarks: FloatArray,
    train_truth: FloatArray,
    train_visible: BoolArray,
    test_landmarks: FloatArray,
    fit: Fit,
) -> FloatArray:
    """Annotated points [T, L, 2] predicted from the discovered ones.

    Each annotated point has its own regressor, fitted on the training images in which it is visible; a point
    visible in none is predicted as NaN.

    Args:
        train_landmarks: [N, K, 2] discovered, training images.
        train_truth: [N, L, 2] annotated, training images.
        train_visible: [N, L].
        test_landmarks: [T, K, 2].
        fit: How to fit.
    """
    predicted = np.full((len(test_landmarks), train_truth.shape[1], 2), np.nan)
    # Points visible in the same images share one fit, as the targets of a linear regressor do not interact.
    alike: dict[bytes, list[int]] = {}
    for point, column in enumerate(train_visible.T):
        alike.setdefault(column.tobytes(), []).append(point)
    for points in alike.values():
        known = train_visible[:, points[0]]
        if known.any():
            regressor = fit(_flat(train_landmarks[known]), _flat(train_truth[known][:, points]))
            predicted[:, points] = regressor.predict(_flat(test_landmarks)).reshape(len(predicted), -1, 2)
    return predicted


def backward_prediction(
    train_landmarks: FloatArray,
    train_truth: FloatArray,
    train_visible: BoolArray,
    test_truth: FloatArray,
    test_visible: BoolArray,
    fit: Fit,
) -> FloatArray:
    """Discovered points [T, K, 2] predicted from the annotated ones; arguments as in `forward_prediction`.

    Invisible annotated points are replaced by their training mean.
    """
    mean = mean_shape(train_truth, train_visible)
    known_train = np.where(train_visible[..., None], train_truth, mean)
    known_test = np.where(test_visible[..., None], test_truth, mean)
    regressor = fit(_flat(known_train), _flat(train_landmarks))
    predicted: FloatArray = regressor.predict(_flat(known_test)).reshape(len(test_truth), -1, 2)
    return predicted


def mean_shape(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Mean place [L, 2] of each point over the images where it is visible; the origin if it never is."""
    total = np.where(visible[..., None], truth, 0.0).sum(axis=0, dtype=np.float64)
    mean: FloatArray = total / np.maximum(visible.sum(axis=0), 1)[:, None]
    return mean


def box_normalizer(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Root of the area of the tight box around an image's visible points, [N]; 0 where there are none."""
    low = np.where(visible[..., None], truth, np.inf).min(axis=1)
    high = np.where(visible[..., None], truth, -np.inf).max(axis=1)
    sides = np.where(visible.any(axis=1, keepdims=True), high - low, 0.0)
    root: FloatArray = np.sqrt(sides[:, 0] * sides[:, 1])
    return root


@dataclass(frozen=True)
class DrawStatistics:
    """A figure measured on several random draws: its mean and standard deviation over them."""

    mean: float
    spread: float
    draws: int


def measure_over_draws(
    measure: Callable[[IntArray], float], images: int, fitted: int, draws: int, rng: np.random.Generator
) -> DrawStatistics:
    """Measure with regressors fitted on random subsets of the training images (paper, Evaluation).

    In a draw, annotated points visible in none of the drawn images cannot be predicted. They are left out of
    that draw's error: `measure` is meant to be the `mean_error` of `point_errors`, where they are NaN. A draw
    with nothing left, for which `measure` answers NaN, does not count.

    >>> over_draws(lambda rows: float(len(rows)), 8, 5, 10, np.random.default_rng(0))
    Spread(mean=5.0, spread=0.0, draws=10)

    Args:
        measure: Given the drawn rows, ascending, the error to average.
        images: Training images to draw from.
        fitted: Images per draw, without replacement; if there are no more, all are taken, once.
        draws: Number of draws.
        rng: Where the draws come from.
    """
    if fitted < 1 or draws < 1:
        raise ValueError(f"fitted and draws must be at least 1, not {fitted} and {draws}")
    if fitted >= images:
        subsets = [np.arange(images, dtype=np.int64)]
    else:
        subsets = [np.sort(rng.choice(images, fitted, replace=False)) for _ in range(draws)]
    measured = [value for value in (measure(rows) for rows in subsets) if not math.isnan(value)]
    if not measured:
        raise InputError(
            f"no test image shows an annotated point that the {min(fitted, images)} training images drawn "
            "show too, so there is nothing to evaluate; fit on more images"
        )
    return DrawStatistics(float(np.mean(measured)), float(np.std(measured)), len(measured))


Group = TypeVar("Group", bound=Hashable)


def group_errors(errors: FloatArray, groups: Sequence[Group]) -> dict[Group, tuple[float, int]]:
    """Mean error and number of images of each group, in order of appearance, e.g. of each range of yaw.

    Images whose error is NaN do not count; a group without others is left out.

    >>> by_group(np.array([1.0, 4.0, 3.0]), ["left", "right", "left"])
    {'left': (2.0, 2), 'right': (4.0, 1)}

    Args:
        errors: [N] per image, see `image_errors`.
        groups: The group of each image.
    """
    members: dict[Group, list[float]] = {}
    for error, group in zip(errors.tolist(), groups, strict=True):
        if not math.isnan(error):
            members.setdefault(group, []).append(error)
    return {group: (float(np.mean(values)), len(values)) for group, values in members.items()}


def _flat(points: FloatArray) -> FloatArray:
    return points.reshape(len(points), -1)


def mean_of_known(values: FloatArray, axis: int) -> FloatArray:
    """Mean of what is not NaN; NaN, without numpy's warning, where there is nothing."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis, dtype=np.float64)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
