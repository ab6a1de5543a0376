"""The paper's evaluation, from arrays to figures: which metric is taken of what, with which regressor.

Everything is in network pixels, and every function returns plain numbers in dictionaries, ready for
metrics.json. Errors are percentages of the normalizer.
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
    area_under,
    cumulative_by_landmark,
    cumulative_by_threshold,
    landmark_errors,
)
from selfmark.evaluation.landmark_matching import group_means, hit_rates, match_landmarks, mean_distances
from selfmark.evaluation.nme import (
    backward_prediction,
    forward_prediction,
    group_errors,
    image_errors,
    mean_error,
    mean_shape,
    measure_over_draws,
    nme,
    point_errors,
)
from selfmark.evaluation.oks import average_precision, sigmas_for
from selfmark.evaluation.regression import Fit, fit_ridge, fit_unbiased
from selfmark.points import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Figures = dict[str, Any]


@dataclass(frozen=True)
class Examples:
    """N labeled images and what was found in them: what regressors are fitted on, or tested on.

    landmarks:  [N, K, 2] discovered
    score:      [N, K]
    truth:      [N, L, 2] annotated; anything where not visible
    visible:    [N, L]
    normalizer: [N] lengths errors are divided by
    """

    landmarks: FloatArray
    score: FloatArray
    truth: FloatArray
    visible: BoolArray
    normalizer: FloatArray

    def __len__(self) -> int:
        return len(self.landmarks)

    def select(self, rows: npt.NDArray[np.integer | np.bool_]) -> Examples:
        return Examples(
            self.landmarks[rows],
            self.score[rows],
            self.truth[rows],
            self.visible[rows],
            self.normalizer[rows],
        )


def regressors(settings: Evaluation) -> dict[str, Fit]:
    """The paper's regressor without bias, then the authors' mean-centered ridge with several penalties."""
    ridges: dict[str, Fit] = {
        f"ridge {ridge:g}": partial(fit_ridge, ridge=ridge) for ridge in settings.ridges
    }
    return {"no bias": fit_unbiased, **ridges}


# --- forward and backward ----------------------------------------------------------------------------


def forward_errors(train: Examples, test: Examples, fit: Fit) -> FloatArray:
    """Errors [T, L] of the annotated points, predicted from the discovered ones; NaN where there is none."""
    predicted = forward_prediction(train.landmarks, train.truth, train.visible, test.landmarks, fit)
    # What is annotated in no image the regressor saw cannot be predicted, and is not counted.
    known = test.visible & train.visible.any(axis=0)
    return point_errors(predicted, test.truth, known, test.normalizer)


def backward_errors(train: Examples, test: Examples, fit: Fit) -> FloatArray:
    """Errors [T, K] of the discovered points, predicted from the annotated ones."""
    predicted = backward_prediction(
        train.landmarks, train.truth, train.visible, test.truth, test.visible, fit
    )
    everywhere = np.ones(test.landmarks.shape[:2], bool)
    return point_errors(predicted, test.landmarks, everywhere, test.normalizer)


def errors_by_images(train: Examples, test: Examples, settings: Evaluation) -> list[Figures]:
    """Forward and backward error for every regressor and every number of annotated training images."""
    sizes = [count for count in settings.fit_images if count < len(train)] + [len(train)]
    rows = []
    for name, fit in regressors(settings).items():
        for count in sizes:
            row: Figures = {"regressor": name, "images": count, "all": count == len(train)}
            for direction, errors in (("forward", forward_errors), ("backward", backward_errors)):
                # The same draws for every regressor and direction, so that rows can be compared.
                rng = np.random.default_rng([settings.seed, count])
                measure = _mean_error(errors, train, test, fit)
                spread = measure_over_draws(measure, len(train), count, settings.draws, rng)
                row[direction] = {"mean": spread.mean, "spread": spread.spread, "draws": spread.draws}
            rows.append(row)
    return rows


def _mean_error(
    errors: Callable[[Examples, Examples, Fit], FloatArray], train: Examples, test: Examples, fit: Fit
) -> Callable[[IntArray], float]:
    return lambda rows: mean_error(errors(train.select(rows), test, fit))


def guessing_errors(train: Examples, test: Examples) -> Figures:
    """What knowing nothing costs: the mean shape of the training images as the answer for every image."""
    truth = np.broadcast_to(mean_shape(train.truth, train.visible), test.truth.shape)
    found = np.broadcast_to(train.landmarks.mean(axis=0), test.landmarks.shape)
    known = test.visible & train.visible.any(axis=0)
    everywhere = np.ones(test.landmarks.shape[:2], bool)
    return {
        "forward": nme(truth, test.truth, known, test.normalizer),
        "backward": nme(found, test.landmarks, everywhere, test.normalizer),
    }


def headline_errors(train: Examples, test: Examples, settings: Evaluation) -> Figures:
    """Forward and backward error with the headline regressor and all training images, point by point.

    The cumulative curves are the paper's: entry n is the mean error of the n + 1 best points. `within` is the
    share of all points whose error is at most each of the thresholds, `area` the area under that curve.
    """
    fit: Fit = partial(fit_ridge, ridge=settings.ridge)
    thresholds = np.linspace(0.0, settings.max_curve_error, 41)
    figures: Figures = {"regressor": f"ridge {settings.ridge:g}", "thresholds": thresholds.tolist()}
    for direction, errors in (
        ("forward", forward_errors(train, test, fit)),
        ("backward", backward_errors(train, test, fit)),
    ):
        by_point = landmark_errors(errors)
        shares = cumulative_by_threshold(errors, thresholds)
        figures[direction] = {
            "error": mean_error(errors),
            "by_point": to_json_list(by_point),
            "cumulative": to_json_list(cumulative_by_landmark(by_point)),
            "within": to_json_list(shares),
            "area": area_under(shares, thresholds),
        }
    return figures


def errors_by_group(train: Examples, test: Examples, values: Sequence[Any], settings: Evaluation) -> Figures:
    """The headline errors for each value of a field, `values` [T] giving it for every test image."""
    fit: Fit = partial(fit_ridge, ridge=settings.ridge)
    names = [str(value) for value in values]
    ahead = group_errors(image_errors(forward_errors(train, test, fit)), names)
    back = group_errors(image_errors(backward_errors(train, test, fit)), names)
    return {
        name: {"images": count, "forward": ahead[name][0] if name in ahead else None, "backward": error}
        for name, (error, count) in sorted(back.items(), key=_natural)
    }


def _natural(item: tuple[str, Any]) -> tuple[float, str]:
    """Groups that begin with a number in the order of the numbers, others after them by the alphabet."""
    try:
        return float(item[0].split(" ")[0]), item[0]
    except ValueError:
        return np.inf, item[0]


# --- Stage 1, which has gaps -------------------------------------------------------------------------


def stage1_errors(
    train: Examples, test: Examples, found: tuple[FloatArray, FloatArray], settings: Evaluation
) -> Figures:
    """The errors of Stage 1's landmarks (`found` in train and test, [N, K, 2] with NaN for gaps).

    As in the paper, gaps are completed by singular value thresholding in the training images, and filled
    with the training mean in the test images.
    """
    whole_train = complete_landmarks(found[0], settings.completion_iterations)
    whole_test = fill_with_mean(found[1], mean_landmarks(found[0]))
    train, test = replace(train, landmarks=whole_train), replace(test, landmarks=whole_test)
    rows = [
        {
            "regressor": name,
            "forward": mean_error(forward_errors(train, test, fit)),
            "backward": mean_error(backward_errors(train, test, fit)),
        }
        for name, fit in regressors(settings).items()
    ]
    return {"points_per_image": points_per_image(found[1]), "errors": rows}


# --- raw and regressed landmarks as detections of the annotated points --------------------------------


def matched_landmarks(train: Examples) -> IntArray:
    """Which discovered landmark stands for each annotated point, [L]; -1 where there are too few of them."""
    return match_landmarks(mean_distances(train.landmarks, train.truth, train.visible, train.normalizer))


def hit_rates_by_limit(
    found: FloatArray,
    stands_for: IntArray,
    test: Examples,
    limits: Mapping[str, FloatArray],
    groups: Mapping[str, tuple[int, ...]],
) -> Figures:
    """Share of annotated points hit, in percent, for several meanings of a hit.

    Args:
        found: [T, F, 2] points.
        stands_for: [L] which of the F points stands for each annotated one; -1: none, always a miss.
        test: the annotated images.
        limits: by name, how far a hit may be off in each image, [T]; images where it is not positive are left
            out.
        groups: annotated points by body part.
    """
    figures: Figures = {}
    for name, limit in limits.items():
        counted = test.visible & (limit > 0)[:, None]
        rates = 100.0 * hit_rates(found, test.truth, counted, limit, stands_for)
        parts = group_means(rates, groups)
        figures[name] = {
            "images": int((limit > 0).sum()),
            "average": float(np.nanmean(rates)),
            "by_part": dict(zip(parts, to_json_list(np.array(list(parts.values()))), strict=True)),
            "by_point": to_json_list(rates),
        }
    return figures


def average_precisions(
    stands_for: IntArray, test: Examples, names: Sequence[str], area: FloatArray, settings: Evaluation
) -> Figures:
    """AP and AR over OKS of the raw landmarks, one detection for each annotated object."""
    used = np.maximum(stands_for, 0)
    # A point no landmark stands for is as far off as can be.
    found = np.where((stands_for >= 0)[None, :, None], test.landmarks[:, used], 1e6)
    score = test.score[:, used][:, stands_for >= 0].mean(axis=1)
    image = np.arange(len(test))
    sigmas = sigmas_for(names, settings.oks_sigma)

    def measured(thresholds: Sequence[float]) -> tuple[float, float]:
        result = average_precision(
            image, found, score, image, test.truth, test.visible, area, sigmas, np.array(thresholds)
        )
        return float(np.mean(result.ap)), float(np.mean(result.ar))

    precision, recall = measured(settings.oks_thresholds)
    figures: Figures = {"AP": precision, "AR": recall}
    for threshold in settings.oks_single:
        precision, recall = measured((threshold,))
        figures |= {f"AP {threshold:g}": precision, f"AR {threshold:g}": recall}
    return figures


def to_json_list(values: FloatArray) -> list[float | None]:
    """An array as a list for JSON, which knows no NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]
