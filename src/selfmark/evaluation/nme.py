"""Normalized mean errors of points, and linear predictions between landmarks and annotated points.

Shapes: K discovered landmarks, L annotated points, N images, T test images. Errors are percentages of the
normalizer [N], one length per image in the same pixels as the points. Coordinates of annotated points that
are not `visible` are ignored; the errors of these points are NaN and do not count.
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
    """Compute distance / normalizer in percent, [N, L]; NaN where a point is not visible or not predicted.

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
    unusable = visible.any(axis=1) & ~(normalizer > 0)
    if unusable.any():
        first = int(np.flatnonzero(unusable)[0])
        raise InputError(
            f"image number {first} has the normalizer {normalizer[first]}; it must be positive, so leave out "
            "images whose visible points span no box"
        )
    # An image without visible points may have no normalizer.
    size = np.where(visible.any(axis=1), normalizer, 1.0).astype(np.float64)
    offset = predicted.astype(np.float64) - truth
    distance = np.hypot(offset[..., 0], offset[..., 1])
    errors: FloatArray = np.where(visible, 100.0 * distance / size[:, None], np.nan)
    return errors


def image_errors(errors: FloatArray) -> FloatArray:
    """Compute the mean error of each image, [N, L] to [N]; NaN if all its errors are NaN."""
    return nan_mean(errors, axis=1)


def mean_error(errors: FloatArray) -> float:
    """Compute the mean of `image_errors`, so that all images count equally; NaN if all errors are NaN."""
    return float(nan_mean(image_errors(errors), axis=0))


def nme(predicted: FloatArray, truth: FloatArray, visible: BoolArray, normalizer: FloatArray) -> float:
    """Compute the normalized mean error: the mean over images of the mean over visible points, in percent.

    Images without visible points are left out. Arguments as in `point_errors`.

    >>> truth = np.zeros((1, 2, 2))
    >>> predicted = np.array([[[3.0, 4.0], [99.0, 99.0]]])
    >>> nme(predicted, truth, np.array([[True, False]]), np.array([50.0]))
    10.0
    """
    errors = point_errors(predicted, truth, visible, normalizer)
    if not visible.any():
        raise InputError("no image has a visible landmark, so there is nothing to evaluate")
    # A missing prediction must not be mistaken for a point that is left out.
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
    """Predict annotated points [T, L, 2] from landmarks.

    Each annotated point has its own regressor, fitted on the training images in which it is visible; a point
    that is never visible is predicted as NaN.

    Args:
        train_landmarks: [N, K, 2] landmarks of the training images.
        train_truth: [N, L, 2] annotated points of the training images.
        train_visible: [N, L].
        test_landmarks: [T, K, 2].
        fit: Fits a regressor.
    """
    predicted = np.full((len(test_landmarks), train_truth.shape[1], 2), np.nan)
    # Points visible in the same images share one fit, because targets of a linear regressor do not interact.
    points_by_images: dict[bytes, list[int]] = {}
    for point, column in enumerate(train_visible.T):
        points_by_images.setdefault(column.tobytes(), []).append(point)
    for points in points_by_images.values():
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
    """Predict landmarks [T, K, 2] from annotated points; arguments as in `forward_prediction`.

    Annotated points that are not visible are replaced by their training mean. Each landmark has its own
    regressor, fitted on the training images in which it was found, that is, where it is not NaN; a landmark
    that was never found is predicted as NaN.
    """
    mean = mean_shape(train_truth, train_visible)
    known_train = np.where(train_visible[..., None], train_truth, mean)
    known_test = np.where(test_visible[..., None], test_truth, mean)
    return forward_prediction(known_train, train_landmarks, found_landmarks(train_landmarks), known_test, fit)


def found_landmarks(landmarks: FloatArray) -> BoolArray:
    """Return whether each landmark of [N, K, 2] was found, [N, K]; missing ones are NaN."""
    found: BoolArray = np.all(np.isfinite(landmarks), axis=2)
    return found


def mean_shape(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Compute the mean position [L, 2] of each point where it is visible; (0, 0) if it is never visible."""
    total = np.where(visible[..., None], truth, 0.0).sum(axis=0, dtype=np.float64)
    mean: FloatArray = total / np.maximum(visible.sum(axis=0), 1)[:, None]
    return mean


def box_normalizer(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Compute the root of the area of the tight box around visible points, [N]; 0 if there are none."""
    low = np.where(visible[..., None], truth, np.inf).min(axis=1)
    high = np.where(visible[..., None], truth, -np.inf).max(axis=1)
    sides = np.where(visible.any(axis=1, keepdims=True), high - low, 0.0)
    root: FloatArray = np.sqrt(sides[:, 0] * sides[:, 1])
    return root


@dataclass(frozen=True)
class DrawStatistics:
    """Mean and standard deviation of a metric over random draws."""

    mean: float
    spread: float
    draws: int


def measure_over_draws(
    measure: Callable[[IntArray], float],
    num_images: int,
    images_per_draw: int,
    draws: int,
    rng: np.random.Generator,
) -> DrawStatistics:
    """Measure with regressors fitted on random subsets of the training images (paper, Evaluation).

    Annotated points that are visible in none of the drawn images cannot be predicted. They are left out of
    that draw's error: `measure` should return the `mean_error` of `point_errors`, where they are NaN. A draw
    for which it returns NaN does not count.

    >>> measure_over_draws(lambda rows: float(len(rows)), 8, 5, 10, np.random.default_rng(0))
    DrawStatistics(mean=5.0, spread=0.0, draws=10)

    Args:
        measure: Returns the error for the drawn rows, which are ascending.
        num_images: Number of training images to draw from.
        images_per_draw: Images per draw, without replacement. If it is at least `num_images`, a single draw
            of all images is made.
        draws: Number of draws.
        rng: Random number generator.
    """
    subsets = draw_subsets(num_images, images_per_draw, draws, rng)
    errors = [error for error in (measure(rows) for rows in subsets) if not math.isnan(error)]
    if not errors:
        raise InputError(
            f"no test image shows an annotated point that the {len(subsets[0])} training images drawn "
            "also show, so there is nothing to evaluate; fit on more images"
        )
    return DrawStatistics(float(np.mean(errors)), float(np.std(errors)), len(errors))


def draw_subsets(
    num_images: int, images_per_draw: int, draws: int, rng: np.random.Generator
) -> list[IntArray]:
    """Draw random subsets of rows, each ascending; arguments as in `measure_over_draws`."""
    if images_per_draw < 1 or draws < 1:
        raise ValueError(f"images_per_draw and draws must be at least 1, not {images_per_draw} and {draws}")
    if images_per_draw >= num_images:
        return [np.arange(num_images, dtype=np.int64)]
    return [np.sort(rng.choice(num_images, images_per_draw, replace=False)) for _ in range(draws)]


Group = TypeVar("Group", bound=Hashable)


def group_errors(errors: FloatArray, groups: Sequence[Group]) -> dict[Group, tuple[float, int]]:
    """Compute the mean error and number of images of each group, in order of appearance.

    Images whose error is NaN do not count; a group in which all are NaN is left out.

    >>> group_errors(np.array([1.0, 4.0, 3.0]), ["left", "right", "left"])
    {'left': (2.0, 2), 'right': (4.0, 1)}

    Args:
        errors: [N] per image, see `image_errors`.
        groups: The group of each image, e.g. its range of yaw.
    """
    members: dict[Group, list[float]] = {}
    for error, group in zip(errors.tolist(), groups, strict=True):
        if not math.isnan(error):
            members.setdefault(group, []).append(error)
    return {group: (float(np.mean(values)), len(values)) for group, values in members.items()}


def _flat(points: FloatArray) -> FloatArray:
    return points.reshape(len(points), -1)


def nan_mean(values: FloatArray, axis: int) -> FloatArray:
    """Compute the mean of the values that are not NaN; unlike `np.nanmean`, do not warn if all are NaN."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis, dtype=np.float64)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
