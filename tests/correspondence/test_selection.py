"""Test the choice of K landmarks out of more candidates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from selfmark.correspondence.agreement import RIDGE
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.correspondence.selection import Targets, choose_landmarks
from selfmark.points import FloatArray

SCALE = 8.0  # pixels


def _compute_prediction_error(candidates: FloatArray, targets: FloatArray, chosen: list[int]) -> float:
    """Return the error of predicting all targets from the chosen candidates, computed point by point."""
    x, y = candidates[:, chosen].reshape(len(candidates), -1), targets.reshape(len(targets), -1)
    error = 0.0
    for parity in (0, 1):
        fit, test = x[parity::2], x[1 - parity :: 2]
        fit_targets, test_targets = y[parity::2], y[1 - parity :: 2]
        centered = fit - fit.mean(axis=0)
        gram = centered.T @ centered
        weights = np.linalg.inv(gram + RIDGE * gram.max() * np.eye(len(gram))) @ centered.T @ fit_targets
        predicted = fit_targets.mean(axis=0) + (test - fit.mean(axis=0)) @ weights
        for difference in (predicted - test_targets).reshape(-1, 2):
            distance = float(np.hypot(*difference))
            error += distance**2 / (distance**2 + SCALE**2)
    return error


def _weigh(xy: FloatArray, weight: FloatArray | float = 1.0) -> Targets:
    return Targets(xy, np.broadcast_to(weight, xy.shape[:2]).astype(np.float64))


def _make_body(rng: np.random.Generator, num_images: int = 80) -> FloatArray:
    """Return points [N, 7, 2]: 0 to 3 and 6 move with a rigid body, 4 and 5 are free legs."""
    body = rng.normal(0, 20, (num_images, 1, 2))
    legs = rng.normal(0, 10, (num_images, 2, 2))
    points: FloatArray = np.concatenate([body + np.arange(8).reshape(1, 4, 2), body + legs, body], axis=1)
    return points


def test_free_parts_are_chosen_before_points_that_move_together_and_before_noise() -> None:
    rng = np.random.default_rng(0)
    points = _make_body(rng)
    noise = np.array([1.0, 1, 1, 1, 1, 1, 15])[:, None]
    seen, mirrored = (points + noise * rng.normal(0, 1, points.shape) for _ in range(2))
    chosen = choose_landmarks(seen, _weigh(mirrored), LandmarkPartners.identity(7), 3, SCALE)
    assert {4, 5} < set(chosen.tolist())
    assert chosen[0] < 4, "one of the accurate points of the body, not the noisy point 6"


@pytest.mark.parametrize("count", [1, 2])
def test_each_choice_is_the_best_of_all_remaining_candidates(count: int) -> None:
    rng = np.random.default_rng(1)
    points = _make_body(rng, 30)
    seen, mirrored = (points + rng.normal(0, 2, points.shape) for _ in range(2))
    first = min(range(7), key=lambda index: _compute_prediction_error(seen, mirrored, [index]))
    second = min(
        (index for index in range(7) if index != first),
        key=lambda index: _compute_prediction_error(seen, mirrored, [first, index]),
    )
    chosen = choose_landmarks(seen, _weigh(mirrored), LandmarkPartners.identity(7), count, SCALE)
    assert chosen.tolist() == sorted([first, second][:count])


def test_mirror_partners_are_chosen_together() -> None:
    rng = np.random.default_rng(2)
    points = _make_body(rng)
    seen, mirrored = (points + rng.normal(0, 1, points.shape) for _ in range(2))
    partners = LandmarkPartners((1, 0, 3, 2, 5, 4, 6), (True,) * 7)
    for count in (2, 3, 4, 5, 7):
        chosen = set(choose_landmarks(seen, _weigh(mirrored), partners, count, SCALE).tolist())
        assert len(chosen) == count
        split = [pair for pair in ((0, 1), (2, 3), (4, 5)) if len(chosen & set(pair)) == 1]
        # Candidate 6 is its own partner. With it, an even count leaves room for only one of two partners.
        assert not split or (6 in chosen and count % 2 == 0), (count, chosen)


def test_every_count_can_be_filled_even_if_all_candidates_are_pairs() -> None:
    points = np.random.default_rng(3).normal(0, 10, (12, 4, 2))
    partners = LandmarkPartners((1, 0, 3, 2), (True,) * 4)
    for count in range(1, 5):
        assert len(set(choose_landmarks(points, _weigh(points), partners, count, SCALE).tolist())) == count


def test_candidates_that_never_move_can_be_chosen() -> None:
    still_positions = np.zeros((6, 3, 2))
    assert choose_landmarks(
        still_positions, _weigh(still_positions), LandmarkPartners.identity(3), 2, SCALE
    ).tolist() == [0, 1]


def test_the_choice_does_not_depend_on_the_numbers_of_the_candidates() -> None:
    rng = np.random.default_rng(4)
    points = _make_body(rng)
    seen, mirrored = (points + rng.normal(0, 1, points.shape) for _ in range(2))
    expected = set(choose_landmarks(seen, _weigh(mirrored), LandmarkPartners.identity(7), 3, SCALE).tolist())
    for order in itertools.islice(itertools.permutations(range(7)), 0, 5040, 700):
        shuffled = choose_landmarks(
            seen[:, order], _weigh(mirrored[:, order]), LandmarkPartners.identity(7), 3, SCALE
        ).tolist()
        assert {order[index] for index in shuffled} == expected


def test_a_candidate_that_sometimes_jumps_far_away_is_not_preferred() -> None:
    rng = np.random.default_rng(5)
    points = _make_body(rng)
    points[::4, 6] += 300
    seen, mirrored = (points + rng.normal(0, 1, points.shape) for _ in range(2))
    assert 6 not in choose_landmarks(seen, _weigh(mirrored), LandmarkPartners.identity(7), 3, SCALE)


def test_uncertain_candidates_are_chosen_last() -> None:
    """The two legs are equally useful, so the one with the smaller weight is not chosen."""
    rng = np.random.default_rng(6)
    points = _make_body(rng)
    seen, mirrored = (points + rng.normal(0, 1, points.shape) for _ in range(2))
    for uncertain in (4, 5):
        weight = np.ones(7)
        weight[uncertain] = 0.1
        chosen = choose_landmarks(seen, _weigh(mirrored, weight), LandmarkPartners.identity(7), 2, SCALE)
        assert uncertain not in chosen
        assert 9 - uncertain in chosen, "the other leg is chosen"
