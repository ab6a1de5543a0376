"""Compute normalized mean errors of points, and predict annotated points from landmarks and vice versa.

Shapes: K discovered landmarks, L annotated points, N images, T test images. Errors are percentages of the
normalizer. The normalizer [N] is a length for each image, in the same pixels as the points. Annotated points
that are not `visible` do not count: their coordinates are ignored, and their errors are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.evaluation.regression import RegressorFitter
from selfmark.points import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


def point_errors(
    predicted: FloatArray, truth: FloatArray, visible: BoolArray, normalizer: FloatArray
) -> FloatArray:
    """Compute distance / normalizer in percent, [N, L]; NaN where a point is not visible or not predicted.

    Args:
        predicted: [N, L, 2] predicted points.
        truth: [N, L, 2] annotated points.
        visible: [N, L] bool, whether each annotated point is visible.
        normalizer: [N] lengths, positive for every image with a visible point.

    Raises:
        InputError: If the normalizer of an image with a visible point is not positive.
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
    divisor = np.where(visible.any(axis=1), normalizer, 1.0).astype(np.float64)
    offset = predicted.astype(np.float64) - truth
    distance = np.hypot(offset[..., 0], offset[..., 1])
    errors: FloatArray = np.where(visible, 100.0 * distance / divisor[:, None], np.nan)
    return errors


def image_errors(errors: FloatArray) -> FloatArray:
    """Compute the mean error of each image, [N, L] to [N]; NaN if all errors of the image are NaN."""
    return nan_mean(errors, axis=1)


def mean_error(errors: FloatArray) -> float:
    """Compute the mean over images of `image_errors`; NaN if all errors are NaN.

    All images count equally, however many points are visible in them.
    """
    return float(nan_mean(image_errors(errors), axis=0))


def nme(predicted: FloatArray, truth: FloatArray, visible: BoolArray, normalizer: FloatArray) -> float:
    """Compute the normalized mean error: the mean over images of the mean over visible points, in percent.

    Images without visible points are left out. See `point_errors` for the arguments.

    >>> truth = np.zeros((1, 2, 2))
    >>> predicted = np.array([[[3.0, 4.0], [99.0, 99.0]]])
    >>> nme(predicted, truth, np.array([[True, False]]), np.array([50.0]))
    10.0
    """
    errors = point_errors(predicted, truth, visible, normalizer)
    if not visible.any():
        raise InputError("no image has a visible annotated point, so there is nothing to evaluate")
    # The mean would silently leave out a missing prediction.
    if np.isnan(errors[visible]).any():
        raise ValueError("predicted and truth must be numbers wherever a point is visible")
    return mean_error(errors)


def forward_predictions(
    train_landmarks: FloatArray,
    train_truth: FloatArray,
    train_visible: BoolArray,
    test_landmarks: FloatArray,
    fitter: RegressorFitter,
) -> FloatArray:
    """Predict annotated points from landmarks, with each of R regressors.

    Each annotated point has its own regressor, fitted on the training images in which the point is visible.
    The prediction of a point that is never visible is NaN.

    Args:
        train_landmarks: [N, K, 2] landmarks of the training images.
        train_truth: [N, L, 2] annotated points of the training images.
        train_visible: [N, L] bool, whether each point is visible in the training images.
        test_landmarks: [T, K, 2] landmarks of the test images.
        fitter: Function that fits the regressors.

    Returns:
        [R, T, L, 2] predicted points.
    """
    # Points that are visible in the same images share one fit, because a linear regressor predicts each of
    # its targets independently. The key is the mask of these images.
    points_by_images: dict[bytes, list[int]] = {}
    for point, column in enumerate(np.ascontiguousarray(train_visible.T)):
        if column.any():
            points_by_images.setdefault(column.tobytes(), []).append(point)
    inputs, num_points = _flatten(test_landmarks), train_truth.shape[1]
    predicted = np.full((fitter.count, len(inputs), num_points, 2), np.nan)
    for points in points_by_images.values():
        known = train_visible[:, points[0]]
        x, y = train_landmarks, train_truth
        if not known.all():
            x, y = x[known], y[known]
        if len(points) < num_points:
            y = y[:, points]
        for table, regressor in zip(predicted, fitter.fit(_flatten(x), _flatten(y)), strict=True):
            table[:, points] = regressor.predict(inputs).reshape(len(inputs), -1, 2)
    return predicted


def backward_predictions(
    train_landmarks: FloatArray,
    train_truth: FloatArray,
    train_visible: BoolArray,
    test_truth: FloatArray,
    test_visible: BoolArray,
    fitter: RegressorFitter,
) -> FloatArray:
    """Predict landmarks from annotated points, with each of R regressors.

    Annotated points that are not visible are replaced by their training mean. Each landmark has its own
    regressor, fitted on the training images in which the landmark was found. The prediction of a landmark
    that was never found is NaN.

    Args:
        train_landmarks: [N, K, 2] landmarks of the training images, NaN where not found.
        train_truth: [N, L, 2] annotated points of the training images.
        train_visible: [N, L] bool, whether each point is visible in the training images.
        test_truth: [T, L, 2] annotated points of the test images.
        test_visible: [T, L] bool, whether each point is visible in the test images.
        fitter: Function that fits the regressors.

    Returns:
        [R, T, K, 2] predicted landmarks.
    """
    known_train, known_test = train_truth, test_truth
    if not (train_visible.all() and test_visible.all()):
        mean = mean_shape(train_truth, train_visible)
        known_train = np.where(train_visible[..., None], train_truth, mean)
        known_test = np.where(test_visible[..., None], test_truth, mean)
    found = mask_found_landmarks(train_landmarks)
    return forward_predictions(known_train, train_landmarks, found, known_test, fitter)


def mask_found_landmarks(landmarks: FloatArray) -> BoolArray:
    """Return a mask [N, K] of the landmarks [N, K, 2] that were found; the others are NaN."""
    finite = np.isfinite(landmarks)
    found: BoolArray = finite[..., 0] & finite[..., 1]  # much faster than `all` over an axis of two
    return found


def mean_shape(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Compute the mean position [L, 2] of each point over the images in which it is visible.

    A point that is never visible gets (0, 0).
    """
    total = np.where(visible[..., None], truth, 0.0).sum(axis=0, dtype=np.float64)
    mean: FloatArray = total / np.maximum(visible.sum(axis=0), 1)[:, None]
    return mean


def box_normalizer(truth: FloatArray, visible: BoolArray) -> FloatArray:
    """Compute for each image the root of the area of the tight box around its visible points.

    Args:
        truth: [N, L, 2] annotated points.
        visible: [N, L] bool, whether each annotated point is visible.

    Returns:
        [N]; 0 for images without visible points.
    """
    low = np.where(visible[..., None], truth, np.inf).min(axis=1)
    high = np.where(visible[..., None], truth, -np.inf).max(axis=1)
    sides = np.where(visible.any(axis=1, keepdims=True), high - low, 0.0)
    root: FloatArray = np.sqrt(sides[:, 0] * sides[:, 1])
    return root


@dataclass(frozen=True)
class DrawStatistics:
    """Statistics of a metric over random draws.

    Attributes:
        mean: Mean.
        spread: Standard deviation.
        draws: Number of draws that count: those whose metric is not NaN.
    """

    mean: float
    spread: float
    draws: int


def summarize_draws(measured: Sequence[float], images_per_draw: int) -> DrawStatistics:
    """Return the statistics of the errors of several draws; a draw whose error is NaN does not count.

    Args:
        measured: Error of each draw.
        images_per_draw: Number of training images per draw, for messages.

    Raises:
        InputError: If no draw counts.
    """
    errors = [error for error in measured if not math.isnan(error)]
    if not errors:
        raise InputError(
            f"the {images_per_draw} drawn training images have no visible annotated point in common with a "
            "test image, so there is nothing to evaluate; fit on more images"
        )
    return DrawStatistics(float(np.mean(errors)), float(np.std(errors)), len(errors))


def draw_subsets(
    num_images: int, images_per_draw: int, draws: int, rng: np.random.Generator
) -> list[IntArray]:
    """Draw random subsets of training images to fit regressors on, as in the paper (Evaluation).

    Args:
        num_images: Number of training images to draw from.
        images_per_draw: Number of images per draw, without replacement. If this number is at least
            `num_images`, a single draw of all images is made.
        draws: Number of draws.
        rng: Random number generator.

    Returns:
        Ascending rows of the images of each draw.
    """
    if images_per_draw < 1 or draws < 1:
        raise ValueError(f"images_per_draw and draws must be at least 1, not {images_per_draw} and {draws}")
    if images_per_draw >= num_images:
        return [np.arange(num_images, dtype=np.int64)]
    return [np.sort(rng.choice(num_images, images_per_draw, replace=False)) for _ in range(draws)]


Group = TypeVar("Group", bound=Hashable)


def group_errors(errors: FloatArray, groups: Sequence[Group]) -> dict[Group, tuple[float, int]]:
    """Compute the mean error and number of images of each group, in order of appearance.

    Images whose error is NaN do not count. A group in which all errors are NaN is left out.

    >>> group_errors(np.array([1.0, 4.0, 3.0]), ["left", "right", "left"])
    {'left': (2.0, 2), 'right': (4.0, 1)}

    Args:
        errors: [N] error of each image, see `image_errors`.
        groups: The group of each image, e.g. its range of yaw angles.
    """
    members: dict[Group, list[float]] = {}
    for error, group in zip(errors.tolist(), groups, strict=True):
        if not math.isnan(error):
            members.setdefault(group, []).append(error)
    return {group: (float(np.mean(values)), len(values)) for group, values in members.items()}


def _flatten(points: FloatArray) -> FloatArray:
    """Return points [N, K, 2] as vectors [N, 2K]."""
    return points.reshape(len(points), -1)


def nan_mean(values: FloatArray, axis: int) -> FloatArray:
    """Compute the mean of the values that are not NaN; unlike `np.nanmean`, without warnings."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis, dtype=np.float64)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean
