"""Compare the scores of points in two views, whose homography is known, with values computed by hand."""

import cv2
import numpy as np
import pytest

from training.keypoints.measure import (
    DetectedPoints,
    average_scores,
    compare,
    compute_euclidean,
    sample_homography,
)

SHIFT = np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]])


def make_points(points):
    xy = np.array(points, float)
    return DetectedPoints(xy, np.eye(8)[: len(xy)])


def test_perfect_points_score_one():
    score = compare(
        make_points([[20, 20], [40, 60]]),
        make_points([[30, 20], [50, 60]]),
        SHIFT,
        100,
        3.0,
        compute_euclidean,
    )
    assert (score.repeatability, score.matching, score.points) == (1.0, 1.0, 2.0)


def test_points_outside_the_other_view_do_not_count():
    # The point (95, 5) is outside the second view, and (4, 5) of the second view is outside the first.
    first, second = make_points([[20, 20], [95, 5]]), make_points([[30, 22], [4, 5]])
    score = compare(first, second, SHIFT, 100, 3.0, compute_euclidean)
    assert (score.repeatability, score.matching, score.points) == (1.0, 1.0, 1.0)


def test_matches_must_be_correct_and_mutual():
    first = DetectedPoints(np.array([[20.0, 20], [40, 60], [60, 30]]), np.array([[1.0, 0], [0, 1], [0, 0.9]]))
    second = DetectedPoints(np.array([[30.0, 20], [50, 60], [70, 38]]), np.array([[0.0, 1], [1, 0], [5, 5]]))
    # In the second view, the third point is off by 8 pixels, and the descriptors of the others are swapped.
    score = compare(first, second, SHIFT, 100, 3.0, compute_euclidean)
    assert score.repeatability == pytest.approx(2 / 3)
    assert score.matching == 0


def test_scores_are_averaged():
    scores = [
        compare(make_points([[20, 20]]), make_points([[x, 20]]), SHIFT, 100, 3.0, compute_euclidean)
        for x in (30, 50)
    ]
    assert average_scores(scores).repeatability == 0.5


def test_a_random_homography_stays_within_its_ranges():
    rng = np.random.default_rng(0)
    corners = np.array([[[0, 0], [99, 0], [99, 99], [0, 99]]], float)
    for _ in range(20):
        matrix = sample_homography(rng, 100, rotation=20, zoom=1.2, perspective=0.0, shift=0.1)
        moved = cv2.perspectiveTransform(corners, matrix)[0]
        assert np.abs(moved.mean(axis=0) - 49.5).max() <= 10.01
        side = np.linalg.norm(moved[1] - moved[0])
        assert 99 / 1.2 - 0.01 <= side <= 99 * 1.2 + 0.01
        angle = np.degrees(np.arctan2(*(moved[1] - moved[0])[::-1]))
        assert abs(angle) <= 20.01
