"""Compare forward, backward and guessing errors with naive loops and scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge

from selfmark.config import Evaluation
from selfmark.errors import InputError
from selfmark.evaluation.nme import (
    DrawStatistics,
    backward_predictions,
    box_normalizer,
    draw_subsets,
    forward_predictions,
    group_errors,
    image_errors,
    mean_error,
    mean_shape,
    nme,
    point_errors,
    summarize_draws,
)
from selfmark.evaluation.protocol import (
    Examples,
    backward_errors,
    errors_by_num_images,
    forward_errors,
    headline_errors,
    mean_shape_errors,
    stage1_errors,
)
from selfmark.evaluation.regression import Regressor, RegressorFitter, fit_ridge, fit_without_bias

K, L = 5, 7  # landmarks and annotated points
TRAIN, TEST = 50, 20  # images


def make_examples(scene: dict[str, np.ndarray]) -> tuple[Examples, Examples]:
    """Return train and test examples of the protocol; training images need no normalizer."""
    train = [scene[f"train_{name}"] for name in ("landmarks", "truth", "visible")]
    test = [scene[f"test_{name}"] for name in ("landmarks", "truth", "visible")]
    return (
        Examples(*train, np.ones(len(train[0]))),
        Examples(*test, scene["normalizer"]),
    )


def compute_naive_nme(
    predicted: np.ndarray, truth: np.ndarray, visible: np.ndarray, normalizer: np.ndarray
) -> float:
    images = []
    for image in range(len(truth)):
        errors = [
            math.dist(predicted[image, point], truth[image, point]) / normalizer[image]
            for point in range(truth.shape[1])
            if visible[image, point]
        ]
        if errors:
            images.append(sum(errors) / len(errors))
    return 100.0 * sum(images) / len(images)


@pytest.fixture
def scene() -> dict[str, np.ndarray]:
    """Landmarks that follow the annotated points up to noise; hidden annotations are NaN."""
    rng = np.random.default_rng(0)
    truth = rng.normal(60.0, 15.0, (TRAIN + TEST, L, 2))
    mix = rng.normal(0.0, 0.5, (2 * L, 2 * K))
    landmarks = (truth.reshape(len(truth), -1) @ mix).reshape(-1, K, 2) + rng.normal(
        0, 1.0, (TRAIN + TEST, K, 2)
    )
    visible = rng.random((TRAIN + TEST, L)) < 0.8
    visible[-1] = False  # one test image without visible points
    truth = np.where(visible[..., None], truth, np.nan)
    return {
        "train_landmarks": landmarks[:TRAIN],
        "train_truth": truth[:TRAIN],
        "train_visible": visible[:TRAIN],
        "test_landmarks": landmarks[TRAIN:],
        "test_truth": truth[TRAIN:],
        "test_visible": visible[TRAIN:],
        "normalizer": rng.uniform(40.0, 90.0, TEST),
    }


def compute_ridge_alpha(x: np.ndarray, ridge: float) -> float:
    """Return the penalty of scikit-learn that corresponds to our relative `ridge`."""
    centered = x - x.mean(axis=0)
    return float(ridge * (centered.T @ centered).max())


def test_nme_matches_a_hand_computed_case() -> None:
    truth = np.zeros((2, 2, 2))
    predicted = np.array([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 2.0], [6.0, 8.0]]])
    # First image: (5 + 1) / 2 / 10 = 0.3. Second image, with its second point hidden: 2 / 20 = 0.1.
    visible = np.array([[True, True], [True, False]])
    assert nme(predicted, truth, visible, np.array([10.0, 20.0])) == pytest.approx(20.0)


def test_nme_agrees_with_a_naive_loop(scene: dict[str, np.ndarray]) -> None:
    truth, visible, normalizer = scene["test_truth"], scene["test_visible"], scene["normalizer"]
    predicted = np.nan_to_num(truth) + np.random.default_rng(1).normal(0, 5.0, truth.shape)
    assert nme(predicted, truth, visible, normalizer) == pytest.approx(
        compute_naive_nme(predicted, truth, visible, normalizer), rel=1e-12
    )


def test_forward_errors_use_one_ridge_regression_per_annotated_point(scene: dict[str, np.ndarray]) -> None:
    predicted = np.zeros((TEST, L, 2))
    for point in range(L):
        rows = [image for image in range(TRAIN) if scene["train_visible"][image, point]]
        x = scene["train_landmarks"][rows].reshape(len(rows), -1)
        model = Ridge(alpha=compute_ridge_alpha(x, 0.01), solver="cholesky").fit(
            x, scene["train_truth"][rows, point]
        )
        predicted[:, point] = model.predict(scene["test_landmarks"].reshape(TEST, -1))
    expected = compute_naive_nme(predicted, scene["test_truth"], scene["test_visible"], scene["normalizer"])
    errors = forward_errors(*make_examples(scene), partial(fit_ridge, ridge=0.01))
    assert mean_error(errors) == pytest.approx(expected, rel=1e-8)


def test_backward_fills_hidden_annotations_with_their_training_mean(scene: dict[str, np.ndarray]) -> None:
    mean = np.nanmean(scene["train_truth"], axis=0)

    def fill(truth: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(truth), mean, truth).reshape(len(truth), -1)

    x = fill(scene["train_truth"])
    model = Ridge(alpha=compute_ridge_alpha(x, 0.1), solver="cholesky").fit(
        x, scene["train_landmarks"].reshape(TRAIN, -1)
    )
    predicted = model.predict(fill(scene["test_truth"])).reshape(TEST, K, 2)
    all_visible = np.ones((TEST, K), bool)
    expected = compute_naive_nme(predicted, scene["test_landmarks"], all_visible, scene["normalizer"])
    errors = backward_errors(*make_examples(scene), partial(fit_ridge, ridge=0.1))
    assert mean_error(errors) == pytest.approx(expected, rel=1e-8)


def test_guessing_predicts_the_mean_shape(scene: dict[str, np.ndarray]) -> None:
    mean = np.nanmean(scene["train_truth"], axis=0)
    np.testing.assert_allclose(mean_shape(scene["train_truth"], scene["train_visible"]), mean, rtol=1e-12)
    predicted = np.stack([mean] * TEST)
    expected = compute_naive_nme(predicted, scene["test_truth"], scene["test_visible"], scene["normalizer"])
    measured = mean_shape_errors(*make_examples(scene))
    assert measured["forward"] == pytest.approx(expected, rel=1e-12)
    predicted = np.stack([scene["train_landmarks"].mean(axis=0)] * TEST)
    all_visible = np.ones((TEST, K), bool)
    expected = compute_naive_nme(predicted, scene["test_landmarks"], all_visible, scene["normalizer"])
    assert measured["backward"] == pytest.approx(expected, rel=1e-12)


def test_stage1_backward_error_over_found_landmarks_agrees_with_a_naive_loop(
    scene: dict[str, np.ndarray],
) -> None:
    """Landmarks that were not found are neither fitted nor counted; guessing counts the same landmarks."""
    rng = np.random.default_rng(3)
    for part in ("train", "test"):
        missing = rng.random(scene[f"{part}_landmarks"].shape[:2]) < 0.4
        missing[:, 2] |= part == "train"  # landmark 2 is found in no training image
        scene[f"{part}_landmarks"][missing] = np.nan
    scene["test_landmarks"][0] = np.nan  # one test image without landmarks
    mean = np.nanmean(scene["train_truth"], axis=0)
    x, x_test = (
        np.where(np.isnan(scene[name]), mean, scene[name]).reshape(len(scene[name]), -1)
        for name in ("train_truth", "test_truth")
    )
    errors: list[list[float]] = [[] for _ in range(TEST)]
    guesses: list[list[float]] = [[] for _ in range(TEST)]
    for landmark in (0, 1, 3, 4):
        rows = [row for row in range(TRAIN) if np.isfinite(scene["train_landmarks"][row, landmark, 0])]
        known = scene["train_landmarks"][rows, landmark]
        model = Ridge(alpha=compute_ridge_alpha(x[rows], 0.1), solver="cholesky").fit(x[rows], known)
        for image in range(TEST):
            found = scene["test_landmarks"][image, landmark]
            if np.isfinite(found[0]):
                size = scene["normalizer"][image]
                errors[image].append(
                    100 * math.dist(model.predict(x_test[image : image + 1])[0], found) / size
                )
                guesses[image].append(100 * math.dist(known.mean(axis=0), found) / size)
    expected, expected_guess = (
        np.mean([np.mean(image) for image in table if image]) for table in (errors, guesses)
    )
    measured = stage1_errors(*make_examples(scene), Evaluation(ridges=(0.1,), completion_iterations=50))
    assert measured["errors"][1]["backward_found"] == pytest.approx(expected, rel=1e-8)
    assert measured["guessing"]["backward_found"] == pytest.approx(expected_guess, rel=1e-12)
    # The error "backward" includes landmarks that were not found. Their mean position is used instead, and it
    # is easy to predict.
    assert measured["guessing"]["backward"] < measured["guessing"]["backward_found"]


def test_backward_found_equals_backward_if_stage1_found_all_landmarks(
    scene: dict[str, np.ndarray],
) -> None:
    train, test = make_examples(scene)
    measured = stage1_errors(train, test, Evaluation())
    for row in measured["errors"]:
        assert row["backward_found"] == row["backward"]
    assert measured["guessing"]["backward_found"] == measured["guessing"]["backward"]
    assert measured["guessing"]["backward"] == pytest.approx(mean_shape_errors(train, test)["backward"])
    nothing_found = scene | {"test_landmarks": np.full_like(scene["test_landmarks"], np.nan)}
    assert stage1_errors(*make_examples(nothing_found), Evaluation())["errors"][0]["backward_found"] is None


def test_guessing_errors_of_each_landmark_and_their_curve_agree_with_a_loop(
    scene: dict[str, np.ndarray],
) -> None:
    backward = headline_errors(*make_examples(scene), Evaluation())["backward"]
    mean = scene["train_landmarks"].mean(axis=0)
    expected = [
        np.mean(
            [
                100
                * math.dist(mean[landmark], scene["test_landmarks"][image, landmark])
                / scene["normalizer"][image]
                for image in range(TEST)
            ]
        )
        for landmark in range(K)
    ]
    assert backward["guessing_by_point"] == pytest.approx(expected)
    best = sorted(expected)
    assert backward["guessing_cumulative"] == pytest.approx([np.mean(best[: n + 1]) for n in range(K)])
    assert backward["guessing"] == pytest.approx(mean_shape_errors(*make_examples(scene))["backward"])


def test_curves_are_means_over_draws(scene: dict[str, np.ndarray]) -> None:
    """The curves use the same draws as the table of errors by number of images."""
    train, test = make_examples(scene)
    settings = Evaluation(fit_images=(30, 1_000), draws=4, ridges=(0.01,))
    by_num_images = errors_by_num_images(train, test, settings)
    (entry,) = by_num_images.curves
    assert (entry["images"], entry["draws"]) == (30, 4)
    rng = np.random.default_rng([settings.seed, 30])
    curves, means = [], []
    for _ in range(4):
        rows = np.sort(rng.choice(TRAIN, 30, replace=False))
        errors = backward_errors(train.select(rows), test, partial(fit_ridge, ridge=0.01))
        best = sorted(errors.mean(axis=0))
        curves.append([sum(best[: n + 1]) / (n + 1) for n in range(K)])
        means.append(mean_error(errors))
    np.testing.assert_allclose(entry["backward"]["mean"], np.mean(curves, axis=0), rtol=1e-9)
    np.testing.assert_allclose(entry["backward"]["spread"], np.std(curves, axis=0), rtol=1e-9)
    row = next(row for row in by_num_images.rows if row["regressor"] == "ridge 0.01")
    assert row["backward"]["mean"] == pytest.approx(np.mean(means))


def test_perfect_landmarks_have_almost_no_error_and_useless_ones_that_of_guessing() -> None:
    rng = np.random.default_rng(2)
    truth = rng.normal(50, 10, (80, 4, 2))
    visible = np.ones((40, 4), bool)
    annotated = {"train_truth": truth[:40], "test_truth": truth[40:], "normalizer": np.full(40, 30.0)}
    annotated |= {"train_visible": visible, "test_visible": visible}
    perfect = make_examples(annotated | {"train_landmarks": truth[:40], "test_landmarks": truth[40:]})
    assert mean_error(forward_errors(*perfect, partial(fit_ridge, ridge=1e-9))) < 1e-4
    fixed = np.full((40, 3, 2), 5.0)
    useless = make_examples(annotated | {"train_landmarks": fixed, "test_landmarks": fixed})
    error = mean_error(forward_errors(*useless, partial(fit_ridge, ridge=0.1)))
    assert error == pytest.approx(mean_shape_errors(*useless)["forward"])


def test_box_normalizer_is_the_root_of_the_area_around_visible_points() -> None:
    truth = np.array([[[0.0, 0.0], [8.0, 2.0], [100.0, 100.0]], [[1.0, 1.0], [4.0, 5.0], [1.0, 1.0]]])
    visible = np.array([[True, True, False], [False, False, False]])
    assert box_normalizer(truth, visible).tolist() == [4.0, 0.0]


def test_inputs_that_cannot_be_evaluated_are_errors() -> None:
    truth = np.zeros((2, 3, 2))
    with pytest.raises(InputError, match="no image has a visible annotated point"):
        nme(truth, truth, np.zeros((2, 3), bool), np.ones(2))
    with pytest.raises(InputError, match="image number 1"):
        nme(truth, truth, np.ones((2, 3), bool), np.array([1.0, 0.0]))
    with pytest.raises(InputError, match="image number 0"):
        nme(truth, truth, np.ones((2, 3), bool), np.array([np.nan, 1.0]))
    with pytest.raises(ValueError, match="shapes do not agree"):
        nme(truth, truth[:1], np.ones((2, 3), bool), np.ones(2))
    with pytest.raises(ValueError, match="wherever a point is visible"):
        nme(np.full_like(truth, np.nan), truth, np.ones((2, 3), bool), np.ones(2))


def test_a_point_annotated_in_no_training_image_does_not_count(scene: dict[str, np.ndarray]) -> None:
    untrained = {**scene, "train_visible": scene["train_visible"] & (np.arange(L) != 2)}
    untested = {**untrained, "test_visible": untrained["test_visible"] & (np.arange(L) != 2)}
    fit = partial(fit_ridge, ridge=0.1)
    errors = forward_errors(*make_examples(untrained), fit)
    assert np.isnan(errors[:, 2]).all()
    assert mean_error(errors) == pytest.approx(mean_error(forward_errors(*make_examples(untested), fit)))
    assert mean_shape_errors(*make_examples(untrained))["forward"] == pytest.approx(
        mean_shape_errors(*make_examples(untested))["forward"]
    )


def test_point_errors_are_percentages_and_nan_where_unknown() -> None:
    predicted = np.array([[[3.0, 4.0], [0.0, 1.0]], [[9.0, 9.0], [np.nan, 0.0]], [[1.0, 1.0], [1.0, 1.0]]])
    visible = np.array([[True, False], [True, True], [False, False]])
    errors = point_errors(predicted, np.zeros((3, 2, 2)), visible, np.array([50.0, 10.0, 0.0]))
    nan = np.nan
    np.testing.assert_allclose(errors, [[10.0, nan], [90 * math.sqrt(2), nan], [nan, nan]])
    np.testing.assert_allclose(image_errors(errors), [10.0, 90 * math.sqrt(2), nan])
    assert mean_error(errors) == pytest.approx(5 + 45 * math.sqrt(2))
    assert np.isnan(mean_error(errors[2:]))


def select_prediction_arguments(scene: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(
        scene[name] for name in ("train_landmarks", "train_truth", "train_visible", "test_landmarks")
    )


def test_points_visible_in_the_same_images_share_a_fit(scene: dict[str, np.ndarray]) -> None:
    landmarks, truth, visible, test = select_prediction_arguments(scene)
    visible[:, 3] = visible[:, 5] = visible[:, 0]
    visible[:, 6] = False
    truth = np.where(visible[..., None], np.nan_to_num(truth, nan=7.0), np.nan)
    fits = []

    def fit(inputs: np.ndarray, targets: np.ndarray) -> Regressor:
        fits.append(targets.shape[1])
        return fit_without_bias(inputs, targets)

    (joint,) = forward_predictions(landmarks, truth, visible, test, RegressorFitter.of_one(fit))
    assert sorted(fits) == [2, 2, 2, 6]  # x and y of points 1, 2 and 4 alone, and of 0, 3 and 5 together
    assert np.isnan(joint[:, 6]).all()
    for point in range(6):
        rows = visible[:, point]
        model = LinearRegression(fit_intercept=False).fit(
            landmarks[rows].reshape(rows.sum(), -1), truth[rows, point]
        )
        np.testing.assert_allclose(joint[:, point], model.predict(test.reshape(TEST, -1)), atol=1e-8)


def test_a_joint_fit_equals_separate_fits(scene: dict[str, np.ndarray]) -> None:
    landmarks, truth, visible, test = select_prediction_arguments(scene)
    truth, visible = np.nan_to_num(truth, nan=50.0), np.ones_like(visible)
    fitter = RegressorFitter.of_one(partial(fit_ridge, ridge=0.01))
    (joint,) = forward_predictions(landmarks, truth, visible, test, fitter)
    for point in range(L):
        column = slice(point, point + 1)
        (separate,) = forward_predictions(landmarks, truth[:, column], visible[:, column], test, fitter)
        np.testing.assert_allclose(joint[:, column], separate, atol=1e-9)


def test_backward_without_bias_is_plain_least_squares(scene: dict[str, np.ndarray]) -> None:
    landmarks, truth, visible, _ = select_prediction_arguments(scene)
    mean = np.nanmean(truth, axis=0)

    def fill(points: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(points), mean, points).reshape(len(points), -1)

    model = LinearRegression(fit_intercept=False).fit(fill(truth), landmarks.reshape(TRAIN, -1))
    fitter = RegressorFitter.of_one(fit_without_bias)
    (predicted,) = backward_predictions(
        landmarks, truth, visible, scene["test_truth"], scene["test_visible"], fitter
    )
    np.testing.assert_allclose(
        predicted.reshape(TEST, -1), model.predict(fill(scene["test_truth"])), atol=1e-8
    )


def measure_over_draws(
    measure: Callable[[np.ndarray], float], num_images: int, images_per_draw: int, draws: int
) -> DrawStatistics:
    """Measure the errors of regressors that are fitted on random subsets of the training images."""
    subsets = draw_subsets(num_images, images_per_draw, draws, np.random.default_rng(0))
    return summarize_draws([measure(rows) for rows in subsets], len(subsets[0]))


def test_draws_are_subsets_without_repetition() -> None:
    draws = []

    def measure(rows: np.ndarray) -> float:
        draws.append(tuple(rows.tolist()))
        return float(rows.sum())

    statistics = measure_over_draws(measure, 9, 4, 6)
    assert len(draws) == 6
    assert len(set(draws)) > 1
    assert all(len(set(rows)) == 4 and set(rows) <= set(range(9)) for rows in draws)
    totals = [sum(rows) for rows in draws]
    mean = sum(totals) / 6
    deviation = math.sqrt(sum((total - mean) ** 2 for total in totals) / 6)
    assert (statistics.mean, statistics.spread, statistics.draws) == pytest.approx((mean, deviation, 6))
    assert measure_over_draws(measure, 9, 4, 6) == statistics


@pytest.mark.parametrize("images_per_draw", [9, 50])
def test_a_draw_of_all_images_is_made_only_once(images_per_draw: int) -> None:
    draws = []
    statistics = measure_over_draws(lambda rows: draws.append(rows.tolist()) or 2.5, 9, images_per_draw, 6)
    assert draws == [list(range(9))]
    assert statistics == DrawStatistics(2.5, 0.0, 1)


def test_draws_without_a_measurable_point_are_left_out() -> None:
    # Point 0 is annotated in image 0 only, point 1 in the others only; the test image shows point 1 only.
    rng = np.random.default_rng(0)
    landmarks, truth = rng.uniform(0, 50, (5, 2, 2)), rng.uniform(0, 50, (5, 2, 2))
    visible = np.array([[True, False]] + [[False, True]] * 4)
    test_visible, normalizer = np.array([[False, True]]), np.array([10.0])
    error_by_row = {}

    def measure(rows: np.ndarray) -> float:
        (predicted,) = forward_predictions(
            landmarks[rows],
            truth[rows],
            visible[rows],
            landmarks[:1],
            RegressorFitter.of_one(fit_without_bias),
        )
        error_by_row[int(rows[0])] = mean_error(point_errors(predicted, truth[:1], test_visible, normalizer))
        return error_by_row[int(rows[0])]

    statistics = measure_over_draws(measure, 5, 1, 40)
    assert set(error_by_row) == set(range(5))
    assert np.isnan(error_by_row.pop(0))
    assert statistics.draws < 40
    assert min(error_by_row.values()) < statistics.mean < max(error_by_row.values())
    with pytest.raises(InputError, match="3 drawn training images"):
        measure_over_draws(lambda rows: math.nan, 9, 3, 4)
    with pytest.raises(ValueError, match="at least 1"):
        measure_over_draws(measure, 5, 0, 1)


def test_group_errors_average_the_known_errors_of_each_group() -> None:
    errors = np.array([1.0, 2.0, np.nan, 6.0, np.nan])
    grouped = group_errors(errors, [30, 60, 60, 30, 90])
    assert grouped == {30: (3.5, 2), 60: (2.0, 1)}
    with pytest.raises(ValueError):
        group_errors(errors, [1, 2])
