"""The paper's evaluation protocol: which metrics are computed, on which images, and with which regressor.

All coordinates are network pixels. Errors are percentages of the normalizer. `Metrics` are dictionaries of
plain numbers, ready for metrics.json. Shapes: N training images, T test images, K landmarks, L annotated
points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
    landmark_errors,
)
from selfmark.evaluation.landmark_matching import (
    compute_mean_distances,
    group_means,
    hit_rates,
    match_landmarks,
)
from selfmark.evaluation.nme import (
    BoolArray,
    IntArray,
    backward_prediction,
    draw_subsets,
    forward_prediction,
    group_errors,
    image_errors,
    mask_found_landmarks,
    mean_error,
    mean_shape,
    measure_over_draws,
    nan_mean,
    point_errors,
)
from selfmark.evaluation.oks import Detections, TargetObjects, average_precision, choose_sigmas
from selfmark.evaluation.regression import Fit, fit_ridge, fit_without_bias
from selfmark.points import FloatArray

Metrics = dict[str, Any]

NUM_THRESHOLDS = 41  # error thresholds of a cumulative error curve


@dataclass(frozen=True)
class Examples:
    """Landmarks and annotated points of N images, to fit regressors on or to test them.

    Attributes:
        landmarks: [N, K, 2] discovered landmarks, NaN where Stage 1 did not find a landmark.
        truth: [N, L, 2] annotated points, arbitrary where not visible.
        visible: [N, L].
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


def build_regressors(settings: Evaluation) -> dict[str, Fit]:
    """Return the function that fits each regressor, by name.

    The regressors are that of the paper, without bias, and the centered ridge regression of the authors'
    program with each penalty of `evaluation.ridges`.
    """
    ridges: dict[str, Fit] = {
        f"ridge {ridge:g}": partial(fit_ridge, ridge=ridge) for ridge in settings.ridges
    }
    return {"no bias": fit_without_bias, **ridges}


# --- forward and backward ----------------------------------------------------------------------------


def forward_errors(train: Examples, test: Examples, fit: Fit) -> FloatArray:
    """Compute the errors [T, L] of predicting annotated points from landmarks.

    Errors are NaN for points that are not visible in the test image or in any training image.
    """
    predicted = forward_prediction(train.landmarks, train.truth, train.visible, test.landmarks, fit)
    # Points that are visible in no training image cannot be predicted.
    is_counted = test.visible & train.visible.any(axis=0)
    return point_errors(predicted, test.truth, is_counted, test.normalizer)


def backward_errors(train: Examples, test: Examples, fit: Fit) -> FloatArray:
    """Compute the errors [T, K] of predicting landmarks from annotated points.

    Errors are NaN for landmarks that were not found in the test image or in any training image.
    """
    predicted = backward_prediction(
        train.landmarks, train.truth, train.visible, test.truth, test.visible, fit
    )
    return point_errors(predicted, test.landmarks, _predictable_landmarks(train, test), test.normalizer)


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


DIRECTIONS: dict[str, Callable[[Examples, Examples, Fit], FloatArray]] = {
    "forward": forward_errors,
    "backward": backward_errors,
}


def errors_by_num_images(train: Examples, test: Examples, settings: Evaluation) -> list[Metrics]:
    """Measure forward and backward errors for every regressor and number of annotated training images."""
    sizes = [count for count in settings.fit_images if count < len(train)] + [len(train)]
    rows = []
    for name, fit in build_regressors(settings).items():
        for count in sizes:
            # "all" is True for the row that is fitted on all training images.
            row: Metrics = {"regressor": name, "images": count, "all": count == len(train)}
            for direction, compute_errors in DIRECTIONS.items():
                # All regressors and directions use the same draws, so that rows can be compared.
                rng = np.random.default_rng([settings.seed, count])
                measure = _mean_error_function(compute_errors, train, test, fit)
                statistics = measure_over_draws(measure, len(train), count, settings.draws, rng)
                row[direction] = {
                    "mean": statistics.mean,
                    "spread": statistics.spread,
                    "draws": statistics.draws,
                }
            rows.append(row)
    return rows


def _mean_error_function(
    compute_errors: Callable[[Examples, Examples, Fit], FloatArray], train: Examples, test: Examples, fit: Fit
) -> Callable[[IntArray], float]:
    """Return a function of rows that fits a regressor on these training images and returns its test error."""
    return lambda rows: mean_error(compute_errors(train.select(rows), test, fit))


def mean_shape_errors(train: Examples, test: Examples) -> Metrics:
    """Measure the baseline that predicts the mean shape of the training images for every image."""
    return {direction: mean_error(errors) for direction, errors in guessing_errors(train, test).items()}


def headline_errors(train: Examples, test: Examples, settings: Evaluation) -> Metrics:
    """Measure the errors to report first: with the penalty `evaluation.ridge` and all training images.

    Returns:
        The name of the regressor, `thresholds`, and for each direction: `error`, the mean error; `by_point`,
        the mean error of each point; `cumulative`, whose entry n is the mean error of the n + 1 best points,
        as in the paper; `within`, the fraction of points with at most the error of each threshold; `area`,
        the area under that curve; `guessing`, `guessing_by_point` and `guessing_cumulative`, the errors of
        the mean shape.
    """
    fit: Fit = partial(fit_ridge, ridge=settings.ridge)
    thresholds = np.linspace(0.0, settings.max_curve_error, NUM_THRESHOLDS)
    metrics: Metrics = {"regressor": f"ridge {settings.ridge:g}", "thresholds": thresholds.tolist()}
    guessing = guessing_errors(train, test)
    for direction, compute_errors in DIRECTIONS.items():
        errors = compute_errors(train, test, fit)
        by_point, guessing_by_point = landmark_errors(errors), landmark_errors(guessing[direction])
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


def curves_by_num_images(train: Examples, test: Examples, settings: Evaluation) -> list[Metrics]:
    """Measure the cumulative curves of `headline_errors` with fewer training images, over random draws.

    Returns:
        One entry for each number in `fit_images` that is smaller than the training set: `images`, `draws`,
        and for each direction the `mean` and `spread` (standard deviation over draws) of the curve. The draws
        are those of `errors_by_num_images`.
    """
    fit: Fit = partial(fit_ridge, ridge=settings.ridge)
    entries = []
    for count in (count for count in settings.fit_images if count < len(train)):
        entry: Metrics = {"images": count, "draws": settings.draws}
        for direction, compute_errors in DIRECTIONS.items():
            rng = np.random.default_rng([settings.seed, count])
            curves = [
                cumulative_by_landmark(landmark_errors(compute_errors(train.select(rows), test, fit)))
                for rows in draw_subsets(len(train), count, settings.draws, rng)
            ]
            # A point that is visible in no drawn image has no error, so the curve of that draw is shorter.
            table = np.full((len(curves), max(map(len, curves))), np.nan)
            for row, curve in zip(table, curves, strict=True):
                row[: len(curve)] = curve
            mean = nan_mean(table, axis=0)
            spread = np.sqrt(nan_mean((table - mean) ** 2, axis=0))
            entry[direction] = {"mean": to_json_list(mean), "spread": to_json_list(spread)}
        entries.append(entry)
    return entries


def errors_by_group(train: Examples, test: Examples, values: Sequence[Any], settings: Evaluation) -> Metrics:
    """Measure forward and backward errors for each group of test images.

    Args:
        train: Images to fit regressors on.
        test: Images to measure errors on.
        values: [T] group of each test image.
        settings: Penalty of the regressor.

    Returns:
        For each group: the number of images, the errors and the errors of guessing.
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
    means = {key: group_errors(image_errors(table), names) for key, table in errors.items()}
    return {
        name: {"images": count, **{key: group.get(name, (None, 0))[0] for key, group in means.items()}}
        for name, (_, count) in sorted(means["backward"].items(), key=_numeric_order)
    }


def _numeric_order(item: tuple[str, Any]) -> tuple[float, str]:
    """Return a sort key for items by name: names that start with a number come first, in numeric order."""
    try:
        return float(item[0].split(" ")[0]), item[0]
    except ValueError:
        return np.inf, item[0]


# --- Stage 1, which may miss landmarks ---------------------------------------------------------------


def stage1_errors(
    train: Examples, test: Examples, settings: Evaluation, completed: FloatArray | None = None
) -> Metrics:
    """Measure the errors of Stage 1, whose landmarks are NaN where they were not found.

    As in the paper, gaps are filled by singular value thresholding in the training images, and with the
    training mean in the test images. A landmark at its mean is easy to predict, which lowers the backward
    error. So `backward_found` is the backward error without filling: it counts only landmarks that were
    found, and each regressor is fitted on the training images in which its landmark was found. `guessing`
    has the errors of the mean shape.

    Args:
        train: Images to fit regressors on.
        test: Images to measure errors on.
        settings: Regressors, and the number of iterations for filling the gaps.
        completed: [N, K, 2] landmarks of the training images without gaps; None fills the gaps here.
    """
    if completed is None:
        completed = complete_landmarks(train.landmarks, settings.completion_iterations)
    filled = fill_with_mean(test.landmarks, mean_landmarks(train.landmarks))
    filled_train, filled_test = replace(train, landmarks=completed), replace(test, landmarks=filled)
    rows = [
        {
            "regressor": name,
            "forward": mean_error(forward_errors(filled_train, filled_test, fit)),
            "backward": mean_error(backward_errors(filled_train, filled_test, fit)),
            "backward_found": to_json_number(mean_error(backward_errors(train, test, fit))),
        }
        for name, fit in build_regressors(settings).items()
    ]
    found = to_json_number(mean_error(guessing_errors(train, test)["backward"]))
    guessing = mean_shape_errors(filled_train, filled_test) | {"backward_found": found}
    return {"points_per_image": points_per_image(test.landmarks), "errors": rows, "guessing": guessing}


# --- landmarks used as detections of the annotated points --------------------------------------------


def match_annotated_points(train: Examples) -> IntArray:
    """Match annotated points to landmarks: return the landmark [L] of each point, -1 if it gets none."""
    return match_landmarks(
        compute_mean_distances(train.landmarks, train.truth, train.visible, train.normalizer)
    )


def hit_rates_by_limit(
    predicted: FloatArray,
    matched: IntArray,
    test: Examples,
    limits: Mapping[str, FloatArray],
    groups: Mapping[str, tuple[int, ...]],
) -> Metrics:
    """Measure the percentage of annotated points that are hit, for several definitions of a hit.

    Args:
        predicted: [T, P, 2] points that stand for the annotated points.
        matched: [L] index of the predicted point of each annotated point; -1 if there is none, which counts
            as a miss.
        test: The annotated images.
        limits: For each definition, the maximum distance [T] of a hit in each image. Images in which it is
            not positive are left out.
        groups: Indices of the annotated points of each body part.
    """
    metrics: Metrics = {}
    for name, limit in limits.items():
        counted = test.visible & (limit > 0)[:, None]
        rates = 100.0 * hit_rates(predicted, test.truth, counted, limit, matched)
        parts = group_means(rates, groups)
        metrics[name] = {
            "images": int((limit > 0).sum()),
            "average": float(np.nanmean(rates)),
            "by_part": dict(zip(parts, to_json_list(np.array(list(parts.values()))), strict=True)),
            "by_point": to_json_list(rates),
        }
    return metrics


def oks_metrics(
    detections: Detections, targets: TargetObjects, names: Sequence[str], settings: Evaluation
) -> Metrics:
    """Measure AP and AR of COCO, as means over OKS thresholds and at single thresholds.

    Args:
        detections: Detected objects.
        targets: Annotated objects.
        names: L names of the points, which determine their sigmas.
        settings: Thresholds, and the sigma of points that COCO does not annotate.
    """
    sigmas = choose_sigmas(names, settings.oks_sigma)

    def measure(thresholds: Sequence[float]) -> tuple[float, float]:
        result = average_precision(detections, targets, sigmas, np.array(thresholds))
        return float(np.mean(result.ap)), float(np.mean(result.ar))

    precision, recall = measure(settings.oks_thresholds)
    metrics: Metrics = {"AP": precision, "AR": recall}
    for threshold in settings.oks_single:
        precision, recall = measure((threshold,))
        metrics |= {f"AP {threshold:g}": precision, f"AR {threshold:g}": recall}
    return metrics


def build_detections(landmarks: FloatArray, score: FloatArray, matched: IntArray) -> Detections:
    """Return one detection per image, which consists of the landmarks matched to the annotated points.

    Args:
        landmarks: [N, K, 2].
        score: [N, K].
        matched: [L], see `match_annotated_points`.
    """
    column = np.maximum(matched, 0)
    # A point without a landmark is placed far outside the image, so that its similarity is 0.
    xy = np.where((matched >= 0)[None, :, None], landmarks[:, column], 1e6)
    mean_score = score[:, column][:, matched >= 0].mean(axis=1)
    return Detections(np.arange(len(landmarks)), xy, mean_score)


def to_json_number(value: float) -> float | None:
    """Return a number for JSON, None for NaN."""
    return float(value) if np.isfinite(value) else None


def to_json_list(values: FloatArray) -> list[float | None]:
    """Return an array as a list for JSON, with None for NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
