"""Test maps from landmarks to annotated points.

The objects are synthetic: their annotated points are known functions of their landmarks.

A fit combines the annotated images with a prior: points move with the landmarks around them.
"""

from __future__ import annotations

import numpy as np
import pytest

from selfmark.mapping.point_map import (
    MappingExamples,
    MirrorPartners,
    add_mirrored,
    compute_mean_shape,
    fit_point_map,
    make_empty_reference,
)
from selfmark.points import FloatArray

K, L = 5, 3  # numbers of landmarks and of annotated points
SHAPE = np.array([[80.0, 90], [170, 95], [128, 140], [95, 190], [165, 185]])
# Each annotated point is a linear combination of the landmarks, with weights that add up to 1.
BLEND = np.array([[0.5, 0.5, 0, 0, 0], [0, 0.2, 0.3, 0.5, 0], [1.5, -0.5, 0, 0, 0]])


def _draw_objects(count: int, seed: int = 0, bend: float = 8.0) -> FloatArray:
    """Return landmarks of objects that are randomly shifted and deformed."""
    rng = np.random.default_rng(seed)
    return SHAPE + rng.normal(0, 20, (count, 1, 2)) + rng.normal(0, bend, (count, K, 2))


def _make_examples(landmarks: FloatArray, points: FloatArray) -> MappingExamples:
    count = len(landmarks)
    return MappingExamples(
        landmarks,
        np.ones(landmarks.shape[:2]),
        points,
        np.ones(points.shape[:2], bool),
        np.arange(count, dtype=np.int64),
    )


def _transform(xy: FloatArray, angle: float, scale: float, shift: tuple[float, float]) -> FloatArray:
    matrix = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    moved: FloatArray = xy @ matrix + np.array(shift)
    return moved


def test_many_images_recover_a_linear_relation() -> None:
    """The relation is random, so the prior does not favor it."""
    rng = np.random.default_rng(1)
    matrix, constant = rng.normal(0, 0.5, (2 * K, 2 * L)), rng.normal(128, 30, 2 * L)
    landmarks, new_landmarks = _draw_objects(4000, bend=20.0), _draw_objects(50, seed=2, bend=20.0)
    points = (landmarks.reshape(-1, 2 * K) @ matrix + constant).reshape(-1, L, 2)
    expected = (new_landmarks.reshape(-1, 2 * K) @ matrix + constant).reshape(-1, L, 2)
    learned = fit_point_map(_make_examples(landmarks, points), make_empty_reference(), ridge=0.0)
    assert np.abs(learned.predict(new_landmarks, np.ones((50, K))) - expected).max() < 0.5
    assert np.abs(learned.weights - matrix).max() < 0.01
    # The remaining error comes from the prior, which has the weight of three images. With fewer images, the
    # prior matters more and the error is larger.
    from_fewer = fit_point_map(
        _make_examples(landmarks[:400], points[:400]), make_empty_reference(), ridge=0.0
    )
    assert np.abs(from_fewer.weights - matrix).max() > 2 * np.abs(learned.weights - matrix).max()


@pytest.mark.parametrize("reference_shape", [make_empty_reference(), SHAPE], ids=["unaligned", "aligned"])
def test_mean_residual_is_zero(reference_shape: FloatArray) -> None:
    """Residuals of a regression with a constant have mean zero; with alignment, only approximately."""
    landmarks = _draw_objects(7)
    points = np.einsum("lk,nkc->nlc", BLEND, landmarks) + np.random.default_rng(3).normal(0, 3, (7, L, 2))
    learned = fit_point_map(_make_examples(landmarks, points), reference_shape, ridge=0.1)
    residual = learned.predict(landmarks, np.ones((7, K))) - points
    assert np.abs(residual.mean(axis=0)).max() < (1e-9 if len(reference_shape) == 0 else 3.0)


def test_with_one_image_points_follow_translation_rotation_and_scale() -> None:
    points = np.einsum("lk,kc->lc", BLEND, SHAPE)[None]
    learned = fit_point_map(
        _make_examples(SHAPE[None], points), compute_mean_shape(SHAPE[None], np.ones((1, K))), ridge=0.1
    )
    full_scores = np.ones((1, K))
    assert np.abs(learned.predict(SHAPE[None], full_scores) - points).max() < 1e-9
    change = (2.5, 0.6, (30.0, 250.0))
    expected = _transform(points, *change)
    moved = learned.predict(_transform(SHAPE[None], *change), full_scores)
    assert np.abs(moved - expected).max() < 0.1  # not exact, because the alignment is slightly regularized


def test_with_one_image_a_point_follows_the_nearest_landmark() -> None:
    points = SHAPE[None, :1] + 1.0
    learned = fit_point_map(_make_examples(SHAPE[None], points), make_empty_reference(), ridge=0.1)
    start = learned.predict(SHAPE[None], np.ones((1, K)))
    nearest_moved, farthest_moved = SHAPE.copy(), SHAPE.copy()
    nearest_moved[0] += 10
    farthest_moved[4] += 10
    shift_with_nearest = learned.predict(nearest_moved[None], np.ones((1, K))) - start
    shift_with_farthest = learned.predict(farthest_moved[None], np.ones((1, K))) - start
    assert shift_with_nearest.min() > 4
    assert np.abs(shift_with_farthest).max() < 2


def test_points_missing_in_some_images_are_fitted_on_the_other_images() -> None:
    landmarks = _draw_objects(12)
    points = np.einsum("lk,nkc->nlc", BLEND, landmarks)
    visible = np.ones((12, L), bool)
    visible[4:, 1] = False
    visible[:, 2] = False
    corrupted = np.where(visible[..., None], points, 1e6)
    complete = _make_examples(landmarks, points)
    incomplete = MappingExamples(landmarks, complete.score, corrupted, visible, complete.group)
    learned = fit_point_map(incomplete, make_empty_reference(), ridge=0.1)
    new_landmarks = _draw_objects(3, seed=9)
    predicted = learned.predict(new_landmarks, np.ones((3, K)))
    from_all_images = fit_point_map(complete, make_empty_reference(), ridge=0.1).predict(
        new_landmarks, np.ones((3, K))
    )
    from_four_images = fit_point_map(
        complete.select(np.arange(4)), make_empty_reference(), ridge=0.1
    ).predict(new_landmarks, np.ones((3, K)))
    np.testing.assert_allclose(predicted[:, 0], from_all_images[:, 0])
    np.testing.assert_allclose(predicted[:, 1], from_four_images[:, 1])
    assert np.isnan(predicted[:, 2]).all()
    assert learned.known_points().tolist() == [True, True, False]
    reordered = learned.select(np.array([1, 0]))
    np.testing.assert_allclose(reordered.predict(new_landmarks, np.ones((3, K))), predicted[:, [1, 0]])


def test_mirror_images_teach_the_mirror_partner() -> None:
    """Only the left point is annotated; the map still predicts its mirror partner."""
    landmarks = np.array([[[80.0, 90], [175, 90], [128, 140]]])
    left = landmarks[:, :1] + np.array([3.0, -2.0])
    points = np.concatenate([left, np.full((1, 1, 2), 1e6)], axis=1)
    examples = MappingExamples(
        landmarks, np.ones((1, 3)), points, np.array([[True, False]]), np.zeros(1, np.int64)
    )
    augmented = add_mirrored(examples, MirrorPartners((1, 0, 2), (1, 0), 256))
    assert augmented.group.tolist() == [0, 0]
    predicted = fit_point_map(augmented, make_empty_reference(), ridge=0.1).predict(
        landmarks, np.ones((1, 3))
    )
    np.testing.assert_allclose(predicted[0, 0] - landmarks[0, 0], [3, -2], atol=0.5)
    np.testing.assert_allclose(predicted[0, 1] - landmarks[0, 1], [-3, -2], atol=0.5)


def test_the_mean_shape_of_rotated_and_scaled_copies_is_the_shape() -> None:
    copies = np.stack([SHAPE, _transform(SHAPE, 1.0, 2.0, (5, 9)), _transform(SHAPE, -2.0, 0.7, (200, 9))])
    np.testing.assert_allclose(compute_mean_shape(copies, np.ones((3, K))), SHAPE, atol=0.1)


def test_landmarks_all_in_one_place_give_finite_points() -> None:
    landmarks = np.full((2, K, 2), 50.0)
    points = np.full((2, L, 2), 60.0)
    for reference_shape in (make_empty_reference(), compute_mean_shape(landmarks, np.ones((2, K)))):
        learned = fit_point_map(_make_examples(landmarks, points), reference_shape, ridge=0.1)
        np.testing.assert_allclose(learned.predict(landmarks, np.ones((2, K))), points)


def test_point_scores_follow_the_landmarks_with_the_most_influence() -> None:
    landmarks = _draw_objects(200, bend=20.0)
    points = landmarks[:, :2].copy()
    learned = fit_point_map(_make_examples(landmarks, points), make_empty_reference(), ridge=0.0)
    landmark_scores = np.array([[0.9, 0.1, 0.1, 0.1, 0.1], [0.3] * K])
    point_scores = learned.point_scores(landmark_scores)
    assert point_scores[0, 0] > 0.8
    assert point_scores[0, 1] < 0.2
    np.testing.assert_allclose(point_scores[1], 0.3)


def test_arrays_of_different_lengths_raise() -> None:
    with pytest.raises(ValueError, match="shapes of the arrays do not match"):
        MappingExamples(
            np.zeros((2, K, 2)),
            np.zeros((2, K)),
            np.zeros((3, L, 2)),
            np.zeros((2, L), bool),
            np.zeros(2, np.int64),
        )
