"""Test cross-validation against explicit loops, and selection on objects where one option must win."""

from __future__ import annotations

import numpy as np
import pytest

from selfmark.mapping.model_selection import (
    MAX_FOLDS,
    MIN_IMAGES_TO_SELECT,
    RIDGES,
    FitOptions,
    compute_cross_validation_errors,
    fit_with_options,
    select_map,
)
from selfmark.mapping.point_map import MappingExamples, MirrorPartners
from selfmark.points import FloatArray

SHAPE = np.array([[70.0, 90], [185, 90], [127.5, 140], [95, 190], [160, 190]])
PARTNERS = (1, 0, 2, 4, 3)
# Each annotated point is a weighted mean of the landmarks plus an offset, which rotates with the object.
BLEND = np.array([[0.7, 0, 0, 0.3, 0], [0, 0.7, 0, 0, 0.3], [0.3, 0.3, 0.4, 0, 0]])
OFFSET = np.array([[-25.0, 5], [25, 5], [0, -40]])
MIRROR = MirrorPartners(PARTNERS, (1, 0, 2), 256)


def _make_examples(count: int, seed: int = 0, noise: float = 3.0, rotated: bool = False) -> MappingExamples:
    """Return random shapes with noise as landmarks, and points that depend on the shapes without noise."""
    rng = np.random.default_rng(seed)
    shape: FloatArray = SHAPE + rng.normal(0, 10, (count, 5, 2))
    points: FloatArray = np.einsum("lk,nkc->nlc", BLEND, shape) + OFFSET
    shape = shape + rng.normal(0, noise, shape.shape)
    if rotated:
        angle = rng.uniform(0, 2 * np.pi, count)
        shape, points = _rotate(shape, angle), _rotate(points, angle)
    visible = rng.random((count, 3)) < 0.8
    visible[:, 0] = True
    return MappingExamples(shape, np.ones((count, 5)), points, visible, np.arange(count, dtype=np.int64))


def _rotate(xy: FloatArray, angle: FloatArray) -> FloatArray:
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    x, y = xy[..., 0] - 127.5, xy[..., 1] - 127.5
    return np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1) + 127.5


@pytest.mark.parametrize(
    "options", [FitOptions(True, True, 0.1), FitOptions(False, True, 0.05), FitOptions(False, False, 0.2)]
)
def test_held_out_error_equals_error_of_a_fit_without_the_object(options: FitOptions) -> None:
    examples, lengths = _make_examples(7), np.linspace(50, 80, 7)
    errors = compute_cross_validation_errors(examples, lengths, MIRROR, options)
    for row in range(7):
        rest = examples.select(np.array([index for index in range(7) if index != row]))
        point_map = fit_with_options(rest, MIRROR, options)
        predicted = point_map.predict(examples.landmarks[[row]], examples.score[[row]])[0]
        for point in range(3):
            distance = float(np.hypot(*(predicted[point] - examples.points[row, point])))
            if examples.visible[row, point]:
                assert errors[row, point] == pytest.approx(100 * distance / lengths[row])
            else:
                assert np.isnan(errors[row, point])


def test_objects_of_one_image_are_held_out_together() -> None:
    """Each image has the same object twice. If only one copy were held out, its error would be too small."""
    single_examples = _make_examples(6, noise=15.0)
    repeated_examples = single_examples.select(np.repeat(np.arange(6), 2))
    lengths = np.full(12, 60.0)
    options = FitOptions(False, False, 0.0)
    together = compute_cross_validation_errors(repeated_examples, lengths, None, options)
    errors_apart = compute_cross_validation_errors(
        MappingExamples(
            repeated_examples.landmarks,
            repeated_examples.score,
            repeated_examples.points,
            repeated_examples.visible,
            np.arange(12, dtype=np.int64),
        ),
        lengths,
        None,
        options,
    )
    assert np.nanmean(errors_apart) < 0.7 * np.nanmean(together)


def test_many_images_are_held_out_in_folds() -> None:
    examples, options = _make_examples(MAX_FOLDS + 10), FitOptions(False, False, 0.1)
    errors = compute_cross_validation_errors(examples, np.full(len(examples), 60.0), None, options)
    rows = np.array([3, MAX_FOLDS + 3])  # both images are in the same fold
    rest = examples.select(np.setdiff1d(np.arange(len(examples)), rows))
    point_map = fit_with_options(rest, None, options)
    predicted = point_map.predict(examples.landmarks[rows], examples.score[rows])
    distance = np.linalg.norm(predicted - examples.points[rows], axis=2)[:, 0]
    np.testing.assert_allclose(errors[rows, 0], 100 * distance / 60)


def test_selected_options_have_the_lowest_error_and_generalize() -> None:
    examples, new_examples = _make_examples(30), _make_examples(200, seed=7)
    lengths = np.full(30, 60.0)
    selected = select_map(examples, lengths, MIRROR)
    all_options = [
        FitOptions(aligned, mirrored, ridge)
        for aligned in (True, False)
        for mirrored in (True, False)
        for ridge in RIDGES
    ]
    errors = [compute_cross_validation_errors(examples, lengths, MIRROR, options) for options in all_options]
    lowest = min(np.nanmean(_average_by_image(option_errors)) for option_errors in errors)
    assert np.nanmean(_average_by_image(selected.errors)) == pytest.approx(lowest)
    predicted = selected.map.predict(new_examples.landmarks, new_examples.score)
    error_on_fresh = 100 * np.linalg.norm(predicted - new_examples.points, axis=2).mean() / 60
    assert np.nanmean(selected.errors) == pytest.approx(error_on_fresh, rel=0.25)


def _average_by_image(errors: FloatArray) -> FloatArray:
    return np.array([np.nanmean(row) for row in errors])


def test_objects_in_any_orientation_are_aligned() -> None:
    examples, lengths = _make_examples(8, rotated=True), np.full(8, 60.0)
    selected = select_map(examples, lengths, None)
    assert selected.options.aligned
    assert np.nanmean(selected.errors) < 10
    unaligned = compute_cross_validation_errors(examples, lengths, None, FitOptions(False, False, 0.1))
    assert np.nanmean(unaligned) > 1.2 * np.nanmean(selected.errors)


def test_wrong_mirror_partners_are_not_used() -> None:
    wrong_partners = MirrorPartners(PARTNERS, (0, 1, 2), 256)  # left stays left
    assert not select_map(_make_examples(20), np.full(20, 60.0), wrong_partners).options.mirrored


def test_single_image_has_no_error() -> None:
    selected = select_map(_make_examples(1), np.full(1, 60.0), MIRROR)
    assert selected.options == FitOptions(True, True, RIDGES[0])
    assert np.isnan(selected.errors).all()
    assert selected.map.known_points().all()


def test_few_images_use_the_default_options_and_have_errors() -> None:
    selected = select_map(
        _make_examples(MIN_IMAGES_TO_SELECT - 1), np.full(MIN_IMAGES_TO_SELECT - 1, 60.0), None
    )
    assert selected.options == FitOptions(True, False, RIDGES[0])
    assert np.isfinite(selected.errors[:, 0]).all()
