"""Choosing by leaving out, against loops written by hand and objects made so that one way must win."""

from __future__ import annotations

import numpy as np
import pytest

from selfmark.mapping.model_selection import (
    ENOUGH,
    FOLDS,
    RIDGES,
    FitOptions,
    fit_with_options,
    left_out_errors,
    select_map,
)
from selfmark.mapping.point_map import MappingExamples, MirrorPartners
from selfmark.points import FloatArray

SHAPE = np.array([[70.0, 90], [185, 90], [127.5, 140], [95, 190], [160, 190]])
PARTNERS = (1, 0, 2, 4, 3)
BLEND = np.array([[0.7, 0, 0, 0.3, 0], [0, 0.7, 0, 0, 0.3], [0.3, 0.3, 0.4, 0, 0]])
BESIDE = np.array([[-25.0, 5], [25, 5], [0, -40]])  # from there; turns with the object
MIRROR = MirrorPartners(PARTNERS, (1, 0, 2), 256)


def _examples(count: int, seed: int = 0, noise: float = 3.0, turned: bool = False) -> MappingExamples:
    rng = np.random.default_rng(seed)
    shape: FloatArray = SHAPE + rng.normal(0, 10, (count, 5, 2))
    points: FloatArray = np.einsum("lk,nkc->nlc", BLEND, shape) + BESIDE
    shape = shape + rng.normal(0, noise, shape.shape)
    if turned:
        angle = rng.uniform(0, 2 * np.pi, count)
        shape, points = _turn(shape, angle), _turn(points, angle)
    visible = rng.random((count, 3)) < 0.8
    visible[:, 0] = True
    return MappingExamples(shape, np.ones((count, 5)), points, visible, np.arange(count, dtype=np.int64))


def _turn(xy: FloatArray, angle: FloatArray) -> FloatArray:
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    x, y = xy[..., 0] - 127.5, xy[..., 1] - 127.5
    return np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1) + 127.5


@pytest.mark.parametrize(
    "way", [FitOptions(True, True, 0.1), FitOptions(False, True, 0.05), FitOptions(False, False, 0.2)]
)
def test_leaving_out_is_fitting_without(way: FitOptions) -> None:
    examples, lengths = _examples(7), np.linspace(50, 80, 7)
    errors = left_out_errors(examples, lengths, MIRROR, way)
    for row in range(7):
        rest = examples.select(np.array([other for other in range(7) if other != row]))
        alone = fit_with_options(rest, MIRROR, way).predict(examples.landmarks[[row]], examples.score[[row]])[
            0
        ]
        for point in range(3):
            distance = float(np.hypot(*(alone[point] - examples.points[row, point])))
            if examples.visible[row, point]:
                assert errors[row, point] == pytest.approx(100 * distance / lengths[row])
            else:
                assert np.isnan(errors[row, point])


def test_objects_of_one_image_are_left_out_together() -> None:
    """Each object stands twice, as twins in one image: left out alone, its twin would give it away."""
    single = _examples(6, noise=15.0)
    twice = single.select(np.repeat(np.arange(6), 2))
    lengths = np.full(12, 60.0)
    way = FitOptions(False, False, 0.0)
    together = left_out_errors(twice, lengths, None, way)
    apart = left_out_errors(
        MappingExamples(
            twice.landmarks, twice.score, twice.points, twice.visible, np.arange(12, dtype=np.int64)
        ),
        lengths,
        None,
        way,
    )
    assert np.nanmean(apart) < 0.7 * np.nanmean(together)


def test_beyond_so_many_images_parts_are_left_out() -> None:
    examples = _examples(FOLDS + 10)
    errors = left_out_errors(examples, np.full(len(examples), 60.0), None, FitOptions(False, False, 0.1))
    rows = np.array([3, FOLDS + 3])  # the same part
    rest = examples.select(np.setdiff1d(np.arange(len(examples)), rows))
    alone = fit_with_options(rest, None, FitOptions(False, False, 0.1)).predict(
        examples.landmarks[rows], examples.score[rows]
    )
    distance = np.linalg.norm(alone - examples.points[rows], axis=2)[:, 0]
    np.testing.assert_allclose(errors[rows, 0], 100 * distance / 60)


def test_the_way_chosen_errs_least_and_serves_new_objects() -> None:
    examples, fresh = _examples(30), _examples(200, seed=7)
    lengths = np.full(30, 60.0)
    found = select_map(examples, lengths, MIRROR)
    every = [FitOptions(a, m, r) for a in (True, False) for m in (True, False) for r in RIDGES]
    least = min(np.nanmean(_by_image(left_out_errors(examples, lengths, MIRROR, way))) for way in every)
    assert np.nanmean(_by_image(found.errors)) == pytest.approx(least)
    predicted = found.map.predict(fresh.landmarks, fresh.score)
    real = 100 * np.linalg.norm(predicted - fresh.points, axis=2).mean() / 60
    assert np.nanmean(found.errors) == pytest.approx(real, rel=0.25)


def _by_image(errors: FloatArray) -> FloatArray:
    return np.array([np.nanmean(row) for row in errors])


def test_objects_that_lie_in_any_direction_are_aligned() -> None:
    examples, lengths = _examples(8, turned=True), np.full(8, 60.0)
    found = select_map(examples, lengths, None)
    assert found.way.aligned
    assert np.nanmean(found.errors) < 10
    crop = left_out_errors(examples, lengths, None, FitOptions(False, False, 0.1))
    assert np.nanmean(crop) > 1.2 * np.nanmean(found.errors)


def test_wrong_mirror_partners_are_not_used() -> None:
    wrong = MirrorPartners(PARTNERS, (0, 1, 2), 256)  # left stays left
    assert not select_map(_examples(20), np.full(20, 60.0), wrong).way.mirrored


def test_a_single_image_is_fitted_without_an_error() -> None:
    found = select_map(_examples(1), np.full(1, 60.0), MIRROR)
    assert found.way == FitOptions(True, True, RIDGES[0])
    assert np.isnan(found.errors).all()
    assert found.map.known().all()


def test_few_images_are_fitted_in_the_first_way_and_their_error_is_known() -> None:
    found = select_map(_examples(ENOUGH - 1), np.full(ENOUGH - 1, 60.0), None)
    assert found.way == FitOptions(True, False, RIDGES[0])
    assert np.isfinite(found.errors[:, 0]).all()
