"""Test constellations, which are the landmarks of an image, and the common shape that is fitted to them.

The tests cover landmarks that leave this shape, duplicates, and landmarks that others predict.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from selfmark.evaluation.constellation import (
    fit_constellations,
    group_duplicates,
    measure_unexplained_by_others,
)

SHAPE = np.array([[0, 0], [10, 0], [12, 7], [3, 9], [-6, 4], [-4, -8]], dtype=float)
IMAGES = 40


def _place_individuals(noise: float = 0.0, mirrored: bool = True) -> npt.NDArray[np.float64]:
    """Return copies [IMAGES, 6, 2] of SHAPE with random position, size and direction.

    If `mirrored`, every second copy is mirrored.
    """
    random = np.random.default_rng(0)
    xy = []
    for index in range(IMAGES):
        angle, scale = random.uniform(0, 2 * np.pi), random.uniform(0.5, 2)
        rotation = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        mirror = np.diag([-1.0 if mirrored and index % 2 else 1.0, 1.0])
        noisy = SHAPE + random.normal(0, noise, SHAPE.shape) if noise else SHAPE
        xy.append(noisy @ mirror @ rotation.T + random.uniform(-100, 100, 2))
    return np.stack(xy)


def test_individuals_of_one_shape_fit_exactly() -> None:
    fitted = fit_constellations(_place_individuals())
    assert fitted.residual.max() < 1e-6
    distances, expected = (
        np.linalg.norm(shape[:, None] - shape[None], axis=-1) for shape in (fitted.shape, SHAPE)
    )
    np.testing.assert_allclose(distances / distances.max(), expected / expected.max(), atol=1e-6)
    assert np.sqrt((fitted.shape**2).sum(axis=1).mean()) == pytest.approx(1)


def test_a_landmark_that_jumps_leaves_the_shape_and_other_landmarks_stay() -> None:
    xy = _place_individuals(noise=0.1)
    jumps = np.arange(IMAGES) % 3 == 0
    xy[jumps, 4] = xy[jumps, 1]  # for example, landmark 4 is on the head instead of the tail
    residual = fit_constellations(xy).residual
    assert (residual[jumps, 4] > 0.5).all()
    assert (residual[~jumps] < 0.1).mean() > 0.95
    assert (np.delete(residual[jumps], 4, axis=1) < 0.15).mean() > 0.9


def test_unrelated_points_do_not_fit() -> None:
    unrelated = np.random.default_rng(1).uniform(0, 100, (IMAGES, 8, 2))
    assert np.median(fit_constellations(unrelated).residual) > 0.3
    assert np.median(fit_constellations(_place_individuals(noise=0.3)).residual) < 0.05


def test_coinciding_points_have_finite_residuals_and_one_landmark_is_an_error() -> None:
    fitted = fit_constellations(np.zeros((5, 3, 2)))
    assert np.isfinite(fitted.residual).all()
    with pytest.raises(ValueError, match="at least 2 landmarks"):
        fit_constellations(np.zeros((5, 1, 2)))


def test_duplicates_are_close_in_most_images() -> None:
    xy = _place_individuals()
    xy = np.concatenate([xy, xy[:, 2:3] + 0.2, xy[:, 5:6]], axis=1)
    xy[:8, 7] += 50  # landmark 7, a copy of landmark 5, is elsewhere in a fifth of the images
    assert group_duplicates(xy, 0.5) == [[2, 6], [5, 7]]
    xy[:25, 7] += 50  # now it is elsewhere in 25 of 40 images
    assert group_duplicates(xy, 0.5) == [[2, 6]]


def test_landmarks_that_others_predict_have_a_low_error() -> None:
    """The third landmark is the mean of the first two, the fourth is noise, the fifth copies the fourth."""
    random = np.random.default_rng(2)
    free_landmarks = random.normal(0, 10, (200, 2, 2))
    noise = random.normal(0, 10, (200, 1, 2))
    xy = np.concatenate(
        [free_landmarks, free_landmarks.mean(axis=1, keepdims=True), noise, noise + 0.01], axis=1
    )
    errors = measure_unexplained_by_others(xy, group_duplicates(xy, 1.0))
    assert errors[2] < 0.1
    assert (errors[3:] > 0.9).all()
    # If the fourth and the fifth do not count as duplicates, each predicts the other.
    assert (measure_unexplained_by_others(xy, [])[3:] < 0.1).all()
    assert np.isnan(measure_unexplained_by_others(xy[:, 3:], [[0, 1]])).all()
