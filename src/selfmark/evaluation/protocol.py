"""Implement the paper's evaluation protocol: which metrics, on which images, and with which regressor.

All coordinates are network pixels. Errors are percentages of the normalizer. `Metrics` are dictionaries of
plain numbers, ready for metrics.json. Shapes: N training images, T test images, K landmarks, L annotated
points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.config import Evaluation
from selfmark.evaluation.completion import (
    complete_landmarks,
    fill_with_mean,
    mean_landmarks,
    points_per_image,
)
from selfmark.evaluation.curves import (
    area_under_curve,
    cumulative_by_landmark,
    cumulative_by_threshold,
    errors_by_point,
)
from selfmark.evaluation.nme import (
    BoolArray,
    backward_predictions,
    draw_subsets,
    forward_predictions,
    group_errors,
    image_errors,
    mask_found_landmarks,
    mean_error,
    mean_shape,
    nan_mean,
    point_errors,
    summarize_draws,
)
from selfmark.evaluation.regression import (
    Fit,
    Regressor,
    RegressorFitter,
    fit_ridge,
    fit_ridges,
    fit_without_bias,
)
from selfmark.points import FloatArray

Metrics = dict[str, Any]

NUM_THRESHOLDS = 41  # error thresholds of a cumulative error curve


@dataclass(frozen=True)
class Examples:
    """Landmarks and annotated points of N images, to fit regressors on or to test them.

    Attributes:
        landmarks: [N, K, 2] discovered landmarks, NaN where Stage 1 did not find a landmark.
        truth: [N, L, 2] annotated points, arbitrary where not visible.
        visible: [N, L] bool, whether each annotated point is visible.
        normalizer: [N] lengths that errors are divided by.
    """

    landmarks: FloatArray
    truth: FloatArray
    visible: BoolArray
    normalizer: FloatArray

    def __len__(self) -> int:
        return len(self.landmarks)

    def select(self, rows: npt.NDArray[np.integer | np.bool_]) -> Examples:
        """Return the images at these indices, or where a mask is True."""
        return Examples(self.landmarks[rows], self.truth[rows], self.visible[rows], self.normalizer[rows])


@dataclass(frozen=True)
class Regressors:
    """The regressors of an evaluation.

    Attributes:
        names: Names of the regressors to report. The first is the regressor of the paper, which has no bias.
            The others are the centered ridge regression of the authors' program, with each penalty of
            `evaluation.ridges`.
        fitter: Function that fits these regressors, and after them the headline regressor if it has another
            penalty.
        headline: Index of the headline regressor, whose penalty is `evaluation.ridge`.
    """

    names: tuple[str, ...]
    fitter: RegressorFitter
    headline: int

    @classmethod
    def of(cls, settings: Evaluation) -> Regressors:
        """Return the regressors that the settings name."""
        ridges = tuple(dict.fromkeys((*settings.ridges, settings.ridge)))

        def fit(inputs: FloatArray, targets: FloatArray) -> list[Regressor]:
            return [fit_without_bias(inputs, targets), *fit_ridges(inputs, targets, ridges)]

        names = ("no bias", *(f"ridge {ridge:g}" for ridge in dict.fromkeys(settings.ridges)))
        return cls(names, RegressorFitter(fit, 1 + len(ridges)), 1 + ridges.index(settings.ridge))


# --- forward and backward ----------------------------------------------------------------------------


def forward_errors(train: Examples, test: Examples, fit: Fit) -> FloatArray:
    """Compute the errors [T, L] of predicting annotated points from landmarks.

    An error is NaN if the point is not visible in the test image, or if it is visible in no training image.
    """
    errors: FloatArray = _forward_table(train, test, RegressorFitter.of_one(fit))[0]
    return errors


def backward_errors(train: Examples, test: Examples, fit: Fit) -> FloatArray:
    """Compute the errors [T, K] of predicting landmarks from annotated points.

    Errors are NaN for landmarks that were missed in the test image, and for those found in no training image.
    """
    errors: FloatArray = _backward_table(train, test, RegressorFitter.of_one(fit))[0]
    return errors


def guessing_errors(train: Examples, test: Examples) -> dict[str, FloatArray]:
    """Compute the errors of guessing: predicting the mean shape of the training images for every image.

    Returns:
        "forward" [T, L], errors of the annotated points, and "backward" [T, K], errors of the landmarks. They
        are NaN in the same places as those of `forward_errors` and `backward_errors`.
    """
    truth = np.broadcast_to(mean_shape(train.truth, train.visible), test.truth.shape)
    mean = mean_shape(train.landmarks, mask_found_landmarks(train.landmarks))
    landmarks = np.broadcast_to(mean, test.landmarks.shape)
    is_counted = test.visible & train.visible.any(axis=0)
    return {
        "forward": point_errors(truth, test.truth, is_counted, test.normalizer),
        "backward": point_errors(
            landmarks, test.landmarks, _predictable_landmarks(train, test), test.normalizer
        ),
    }


def _predictable_landmarks(train: Examples, test: Examples) -> BoolArray:
    """Return a mask [T, K] of the landmarks that were found in the test image and in a training image."""
    return mask_found_landmarks(test.landmarks) & mask_found_landmarks(train.landmarks).any(axis=0)


@dataclass(frozen=True)
class ErrorTables:
    """Errors of R regressors in T test images, in percent; NaN where a point is left out.

    Attributes:
        forward: [R, T, L] errors of annotated points that are predicted from landmarks.
        backward: [R, T, K] errors of landmarks that are predicted from annotated points.
    """

    forward: FloatArray
    backward: FloatArray

    def rescale(self, rows: npt.NDArray[np.int64], factor: FloatArray) -> ErrorTables:
        """Return the errors of these test images [T'], multiplied by a factor [T'] per image."""
        scale = factor[:, None]
        return ErrorTables(self.forward[:, rows] * scale, self.backward[:, rows] * scale)


def error_tables(train: Examples, test: Examples, fitter: RegressorFitter) -> ErrorTables:
    """Compute `forward_errors` and `backward_errors` of several regressors."""
    return ErrorTables(_forward_table(train, test, fitter), _backward_table(train, test, fitter))


def _forward_table(train: Examples, test: Examples, fitter: RegressorFitter) -> FloatArray:
    predicted = forward_predictions(train.landmarks, train.truth, train.visible, test.landmarks, fitter)
    # Points that are visible in no training image cannot be predicted.
    is_counted = test.visible & train.visible.any(axis=0)
    return np.stack([point_errors(points, test.truth, is_counted, test.normalizer) for points in predicted])


def _backward_table(train: Examples, test: Examples, fitter: RegressorFitter) -> FloatArray:
    predicted = backward_predictions(
        train.landmarks, train.truth, train.visible, test.truth, test.visible, fitter
    )
    is_counted = _predictable_landmarks(train, test)
    return np.stack(
        [point_errors(points, test.landmarks, is_counted, test.normalizer) for points in predicted]
    )


DIRECTIONS = ("forward", "backward")


class ErrorsByNumImages(NamedTuple):
    """Errors for several numbers of annotated training images.

    Attributes:
        rows: One entry per regressor and number of images: `regressor`, `images`, `all` (True for the row
            that is fitted on all training images), and for each direction `mean`, `spread` (standard
            deviation over draws) and `draws`.
        curves: One entry for each number that is smaller than the training set: `images`, `draws`, and for
            each direction the `mean` and `spread` of the cumulative curve of `headline_errors`.
    """

    rows: list[Metrics]
    curves: list[Metrics]


def errors_by_num_images(
    train: Examples, test: Examples, settings: Evaluation, tables: ErrorTables | None = None
) -> ErrorsByNumImages:
    """Measure forward and backward errors for every regressor and number of annotated training images.

    Args:
        train: Images to fit regressors on.
        test: Images to measure errors on.
        settings: Regressors, numbers of images and draws.
        tables: Errors of `Regressors.of(settings)`, fitted on all training images; None computes them.
    """
    regressors = Regressors.of(settings)
    if tables is None:
        tables = error_tables(train, test, regressors.fitter)
    sizes = [count for count in settings.fit_images if count < len(train)]
    by_size, curves = [], []
    for count in sizes:
        # All regressors and directions use the same draws, so that rows can be compared.
        rng = np.random.default_rng([settings.seed, count])
        subsets = draw_subsets(len(train), count, settings.draws, rng)
        drawn = [
            _DrawErrors.of(error_tables(train.select(rows), test, regressors.fitter), regressors.headline)
            for rows in subsets
        ]
        by_size.append(drawn)
        curves.append(
            {"images": count, "draws": settings.draws}
            | {
                direction: _summarize_curves([draw.curves[direction] for draw in drawn])
                for direction in DIRECTIONS
            }
        )
    by_size.append([_DrawErrors.of(tables, regressors.headline)])
    rows = [
        {"regressor": name, "images": count, "all": count == len(train)}
        | {
            direction: asdict(summarize_draws([draw.means[direction][index] for draw in drawn], count))
            for direction in DIRECTIONS
        }
        for index, name in enumerate(regressors.names)
        for count, drawn in zip([*sizes, len(train)], by_size, strict=True)
    ]
    return ErrorsByNumImages(rows, curves)


class _DrawErrors(NamedTuple):
    """Errors of one draw of training images, for each direction.

    means:  mean error of each regressor
    curves: cumulative curve of the headline regressor
    """

    means: dict[str, list[float]]
    curves: dict[str, FloatArray]

    @classmethod
    def of(cls, tables: ErrorTables, headline: int) -> _DrawErrors:
        by_direction = {"forward": tables.forward, "backward": tables.backward}
        return cls(
            {name: [mean_error(errors) for errors in table] for name, table in by_direction.items()},
            {
                name: cumulative_by_landmark(errors_by_point(table[headline]))
                for name, table in by_direction.items()
            },
        )


def _summarize_curves(curves: Sequence[FloatArray]) -> Metrics:
    """Return the mean and the standard deviation of cumulative curves over draws."""
    # A point that is visible in no drawn image has no error, so the curve of that draw is shorter.
    table = np.full((len(curves), max(map(len, curves))), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[: len(curve)] = curve
    mean = nan_mean(table, axis=0)
    spread = np.sqrt(nan_mean((table - mean) ** 2, axis=0))
    return {"mean": to_json_list(mean), "spread": to_json_list(spread)}


def mean_shape_errors(train: Examples, test: Examples) -> Metrics:
    """Measure the baseline that predicts the mean shape of the training images for every image."""
    return {direction: mean_error(errors) for direction, errors in guessing_errors(train, test).items()}


def headline_errors(
    train: Examples, test: Examples, settings: Evaluation, tables: ErrorTables | None = None
) -> Metrics:
    """Measure the headline errors: those with the penalty `evaluation.ridge` and all training images.

    Args:
        train: Images to fit regressors on.
        test: Images to measure errors on.
        settings: Regressors and thresholds.
        tables: Errors of `Regressors.of(settings)`, fitted on all training images; None computes them.

    Returns:
        The name of the regressor, `thresholds`, and for each direction: `error`, the mean error; `by_point`,
        the mean error of each point; `cumulative`, the mean errors of the best 1, 2, ... points, as in the
        paper; `within`, for each threshold the fraction of points with at most this error; `area`, the area
        under the curve `within`; `guessing`, `guessing_by_point` and `guessing_cumulative`, the errors of the
        mean shape.
    """
    regressors = Regressors.of(settings)
    if tables is None:
        tables = error_tables(train, test, regressors.fitter)
    thresholds = np.linspace(0.0, settings.max_curve_error, NUM_THRESHOLDS)
    metrics: Metrics = {"regressor": f"ridge {settings.ridge:g}", "thresholds": thresholds.tolist()}
    guessing = guessing_errors(train, test)
    for direction in DIRECTIONS:
        errors = getattr(tables, direction)[regressors.headline]
        by_point, guessing_by_point = errors_by_point(errors), errors_by_point(guessing[direction])
        fractions = cumulative_by_threshold(errors, thresholds)
        metrics[direction] = {
            "error": mean_error(errors),
            "by_point": to_json_list(by_point),
            "cumulative": to_json_list(cumulative_by_landmark(by_point)),
            "within": to_json_list(fractions),
            "area": area_under_curve(fractions, thresholds),
            "guessing": mean_error(guessing[direction]),
            "guessing_by_point": to_json_list(guessing_by_point),
            "guessing_cumulative": to_json_list(cumulative_by_landmark(guessing_by_point)),
        }
    return metrics


def errors_by_group(train: Examples, test: Examples, values: Sequence[Any], settings: Evaluation) -> Metrics:
    """Measure forward and backward errors for each group of test images.

    Args:
        train: Images to fit regressors on.
        test: Images to measure errors on.
        values: [T] group of each test image.
        settings: Penalty of the regressor.

    Returns:
        Mapping from each group to the number of images, the errors and the errors of guessing; None for
        unknown errors.
    """
    fit: Fit = partial(fit_ridge, ridge=settings.ridge)
    names = [str(value) for value in values]
    guessing = guessing_errors(train, test)
    errors = {
        "forward": forward_errors(train, test, fit),
        "backward": backward_errors(train, test, fit),
        "guessing_forward": guessing["forward"],
        "guessing_backward": guessing["backward"],
    }
    # `by_group` maps each kind of error to the mean error and the number of images of each group.
    by_group = {key: group_errors(image_errors(table), names) for key, table in errors.items()}
    metrics: Metrics = {}
    for name, (_, count) in sorted(by_group["backward"].items(), key=_numeric_order):
        metrics[name] = {"images": count}
        for key, groups in by_group.items():
            metrics[name][key] = groups[name][0] if name in groups else None
    return metrics


def _numeric_order(item: tuple[str, Any]) -> tuple[float, str]:
    """Return a sort key for items by name: names that start with a number come first, in numeric order."""
    try:
        return float(item[0].split(" ")[0]), item[0]
    except ValueError:
        return np.inf, item[0]


# --- Stage 1, which may miss landmarks ---------------------------------------------------------------


@dataclass(frozen=True)
class Stage1Tables:
    """Errors of Stage 1 with regressors fitted on all training images.

    Attributes:
        filled: Errors of R regressors after the gaps have been filled.
        found: [R, T, K] backward errors without filling, NaN for landmarks that were not found.
    """

    filled: ErrorTables
    found: FloatArray

    def rescale(self, rows: npt.NDArray[np.int64], factor: FloatArray) -> Stage1Tables:
        """Return the errors of these test images [T'], multiplied by a factor [T'] per image."""
        return Stage1Tables(self.filled.rescale(rows, factor), self.found[:, rows] * factor[:, None])


def stage1_tables(
    train: Examples, test: Examples, settings: Evaluation, completed: FloatArray
) -> Stage1Tables:
    """Compute the errors of Stage 1; see `stage1_errors` for the arguments."""
    fitter = Regressors.of(settings).fitter
    filled = error_tables(*_fill_gaps(train, test, completed), fitter)
    return Stage1Tables(filled, _backward_table(train, test, fitter))


def _fill_gaps(train: Examples, test: Examples, completed: FloatArray) -> tuple[Examples, Examples]:
    """Fill gaps of the training images with `completed`, and gaps of the test images with mean positions."""
    filled = fill_with_mean(test.landmarks, mean_landmarks(train.landmarks))
    return replace(train, landmarks=completed), replace(test, landmarks=filled)


def stage1_errors(
    train: Examples,
    test: Examples,
    settings: Evaluation,
    completed: FloatArray | None = None,
    tables: Stage1Tables | None = None,
) -> Metrics:
    """Measure the errors of Stage 1, whose landmarks are NaN where they were not found.

    As in the paper, gaps are filled by singular value thresholding in the training images, and with the
    training mean in the test images. A landmark at its mean is easy to predict, which lowers the backward
    error. So `backward_found`, the backward error without filling, is also measured: it counts only
    landmarks that were found, and each regressor is fitted on the training images in which its landmark was
    found. `guessing` has the errors of the mean shape.

    Args:
        train: Images to fit regressors on.
        test: Images to measure errors on.
        settings: Regressors, and the number of iterations for filling the gaps.
        completed: [N, K, 2] landmarks of the training images without gaps; None fills the gaps here.
        tables: The errors of `stage1_tables`; None computes them.
    """
    if completed is None:
        completed = complete_landmarks(train.landmarks, settings.completion_iterations)
    if tables is None:
        tables = stage1_tables(train, test, settings, completed)
    rows = [
        {
            "regressor": name,
            "forward": mean_error(tables.filled.forward[index]),
            "backward": mean_error(tables.filled.backward[index]),
            "backward_found": to_json_number(mean_error(tables.found[index])),
        }
        for index, name in enumerate(Regressors.of(settings).names)
    ]
    guessing = mean_shape_errors(*_fill_gaps(train, test, completed))
    guessing["backward_found"] = to_json_number(mean_error(guessing_errors(train, test)["backward"]))
    return {"points_per_image": points_per_image(test.landmarks), "errors": rows, "guessing": guessing}


def to_json_number(value: float) -> float | None:
    """Return a number for JSON, None for NaN."""
    return float(value) if np.isfinite(value) else None


def to_json_list(values: FloatArray) -> list[float | None]:
    """Return an array as a list for JSON, with None for NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
