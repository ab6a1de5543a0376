"""Test the assignment of landmarks to annotated points, and how often a landmark hits its point."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfmark.evaluation.landmark_matching import (
    compute_mean_distances,
    group_means,
    hit_rates,
    match_landmarks,
)


def make_scene(seed: int = 0, N: int = 12, K: int = 4, L: int = 3) -> tuple[np.ndarray, ...]:
    """Return landmarks [N, K, 2] with gaps, annotated points [N, L, 2], visibility [N, L] and lengths [N]."""
    rng = np.random.default_rng(seed)
    landmarks = rng.uniform(0, 50, (N, K, 2))
    landmarks[rng.random((N, K)) < 0.2] = np.nan
    visible = rng.random((N, L)) < 0.7
    truth = np.where(visible[..., None], rng.uniform(0, 50, (N, L, 2)), np.nan)
    return landmarks, truth, visible, rng.uniform(20, 40, N)


def test_distances_agree_with_a_naive_loop() -> None:
    landmarks, truth, visible, normalizer = make_scene()
    landmarks[:, 3] = np.nan  # a landmark that is never found
    normalizer[2], normalizer[5] = np.nan, 0.0  # these images do not count
    ours = compute_mean_distances(landmarks, truth, visible, normalizer)
    for k, point in itertools.product(range(4), range(3)):
        distances = [
            math.dist(landmarks[i, k], truth[i, point]) / normalizer[i]
            for i in range(12)
            if visible[i, point] and not np.isnan(landmarks[i, k, 0]) and i not in (2, 5)
        ]
        expected = sum(distances) / len(distances) if distances else math.nan
        assert ours[k, point] == pytest.approx(expected, nan_ok=True)


def find_minimum_cost(cost: np.ndarray) -> float:
    """Return the minimum total cost of all one-to-one assignments, by exhaustive search."""
    wide_cost = cost if cost.shape[0] <= cost.shape[1] else cost.T
    return min(
        sum(wide_cost[row, column] for row, column in enumerate(order))
        for order in itertools.permutations(range(wide_cost.shape[1]), len(wide_cost))
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10_000))
def test_the_assignment_has_minimum_cost(K: int, L: int, seed: int) -> None:
    cost = np.random.default_rng(seed).uniform(0, 1, (K, L))
    matched = match_landmarks(cost)
    used = matched[matched >= 0]
    assert len(used) == len(set(used.tolist())) == min(K, L)
    assert sum(cost[matched[p], p] for p in range(L) if matched[p] >= 0) == pytest.approx(
        find_minimum_cost(cost)
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_unknown_pairs_are_used_last_and_reported_as_unmatched(K: int, L: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cost = np.where(rng.random((K, L)) < 0.5, np.nan, rng.uniform(0, 100, (K, L)))
    matched = match_landmarks(cost)
    pairs = [(int(matched[p]), p) for p in range(L) if matched[p] >= 0]
    assert not any(np.isnan(cost[pair]) for pair in pairs)
    # Search all assignments for the most known pairs and, with that number of pairs, for the minimum cost.
    # -1 stands for no landmark.
    max_pairs, min_cost = 0, 0.0
    for order in itertools.permutations([*range(K), *[-1] * L], L):
        known = [cost[k, p] for p, k in enumerate(order) if k >= 0 and not np.isnan(cost[k, p])]
        if len(known) > max_pairs or (len(known) == max_pairs and sum(known) < min_cost):
            max_pairs, min_cost = len(known), sum(known)
    assert (len(pairs), sum(cost[pair] for pair in pairs)) == pytest.approx((max_pairs, min_cost))


def test_the_assignment_is_not_greedy() -> None:
    # Landmark 0 is nearest to both points, but assigning it to the first is very costly for the second.
    assert match_landmarks(np.array([[1.0, 2.0], [2.0, 90.0], [50.0, 80.0]])).tolist() == [1, 0]
    assert match_landmarks(np.array([[3.0, 1.0]])).tolist() == [-1, 0]
    assert match_landmarks(np.full((2, 2), np.nan)).tolist() == [-1, -1]


def test_hit_rates_match_a_hand_computed_case() -> None:
    landmarks = np.array(
        [[[0.0, 0.0], [10.0, 0.0]], [[0.0, 0.0], [10.0, 0.0]], [[np.nan, np.nan], [10.0, 0.0]]]
    )
    truth = np.array(
        [
            [[10.0, 3.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]],
            [[10.0, 3.1], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]],
            [[10.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
        ]
    )
    visible = np.array([[True, True, True, False], [True, False, True, False], [True, True, True, False]])
    rates = hit_rates(landmarks, truth, visible, np.array([5.0, 3.0, 5.0]), np.array([1, 0, -1, 0]))
    # Point 0 is hit in images 0 (3 <= 5) and 2 (0 <= 5), not in 1 (3.1 > 3). Point 1 is hit in image 0
    # (exactly 5), and its landmark is missing in image 2. Point 2 has no landmark.
    assert rates[:3].tolist() == pytest.approx([2 / 3, 1 / 2, 0.0])
    assert np.isnan(rates[3])


def test_hits_agree_with_a_naive_loop() -> None:
    landmarks, truth, visible, _ = make_scene(1, N=40)
    limit = np.random.default_rng(2).uniform(5, 30, 40)
    limit[:4] = np.nan
    matched = np.array([2, -1, 0])
    ours = hit_rates(landmarks, truth, visible, limit, matched)
    for point in range(3):
        hits = [
            matched[point] >= 0
            and not np.isnan(landmarks[i, matched[point], 0])
            and math.dist(landmarks[i, matched[point]], truth[i, point]) <= limit[i]
            for i in range(4, 40)
            if visible[i, point]
        ]
        assert ours[point] == pytest.approx(sum(hits) / len(hits))


def test_group_means_ignore_unknown_rates() -> None:
    rates = np.array([0.5, 0.7, np.nan, 0.1])
    means = group_means(rates, {"eyes": (0, 1), "mouth": (2, 3), "ear": (2,)})
    assert means["eyes"] == pytest.approx(0.6)
    assert means["mouth"] == pytest.approx(0.1)
    assert list(means) == ["eyes", "mouth", "ear"]
    assert np.isnan(means["ear"])
