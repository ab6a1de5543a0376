"""Test how mirror partners of landmarks are found, from counts and from labels with a known symmetry."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from selfmark.correspondence.mirror import (
    LandmarkPartners,
    count_nearest_in_mirror,
    drop_unlike_partners,
    find_mirror_partners,
    measure_partner_likeness,
    mirror_cooccurrence,
)


def test_cooccurrence_matches_a_loop() -> None:
    rng = np.random.default_rng(0)
    label, mirrored = rng.integers(-1, 5, 200), rng.integers(-1, 5, 200)
    expected = np.zeros((5, 5), dtype=int)
    for k, mirrored_k in zip(label, mirrored, strict=True):
        if k >= 0 and mirrored_k >= 0:
            expected[k, mirrored_k] += 1
    np.testing.assert_array_equal(mirror_cooccurrence(label, mirrored, 5), expected)


def test_nearest_landmarks_match_a_loop() -> None:
    rng = np.random.default_rng(1)
    xy, mirrored_xy = rng.uniform(0, 64, (2, 40, 6, 2)).astype(np.float32)
    expected = np.zeros((6, 6), dtype=int)
    for points, mirrored_points in zip(xy, mirrored_xy, strict=True):
        for k, point in enumerate(points):
            distances = [float(np.hypot(*(point - other))) for other in mirrored_points]
            expected[k, distances.index(min(distances))] += 1
    np.testing.assert_array_equal(count_nearest_in_mirror(xy, mirrored_xy), expected)


def test_partners_are_found_from_landmark_positions_in_mirror_images() -> None:
    """In mirror images, a detector mistakes the eyes for each other, but still finds the nose."""
    rng = np.random.default_rng(2)
    xy = np.array([[20.0, 10.0], [44.0, 10.0], [32.0, 30.0]]) + rng.normal(0, 8, (50, 1, 2))
    mirrored_xy = xy[:, [1, 0, 2]] + rng.normal(0, 2, xy.shape)
    assert find_mirror_partners(count_nearest_in_mirror(xy, mirrored_xy)).mirror == (1, 0, 2)


@given(st.integers(0, 10_000), st.integers(1, 12), st.floats(0, 0.3))
def test_a_known_symmetry_is_recovered_from_noisy_labels(seed: int, pairs: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    landmarks = 2 * pairs + 1
    truth = np.arange(landmarks)
    for pair in range(pairs):
        truth[2 * pair], truth[2 * pair + 1] = 2 * pair + 1, 2 * pair
    order = rng.permutation(landmarks)  # landmarks are in random order
    truth = order[truth[np.argsort(order)]]
    label = np.repeat(np.arange(landmarks), 200)
    mirrored = truth[label]
    is_wrong = rng.random(len(label)) < noise
    mirrored = np.where(is_wrong, rng.integers(0, landmarks, len(label)), mirrored)
    partners = find_mirror_partners(mirror_cooccurrence(label, mirrored, landmarks))
    assert partners.mirror == tuple(truth)
    assert partners.unpaired == ()


@given(st.integers(0, 100_000), st.integers(1, 15))
def test_partners_are_each_others_most_frequent_ones(seed: int, landmarks: int) -> None:
    table = np.random.default_rng(seed).integers(0, 50, (landmarks, landmarks))
    partners = find_mirror_partners(table)
    assert [partners.mirror[partner] for partner in partners.mirror] == list(range(landmarks))
    exchanged = table + table.T
    for landmark, (partner, is_paired) in enumerate(zip(partners.mirror, partners.is_paired, strict=True)):
        if is_paired:
            assert exchanged[landmark, partner] == max(exchanged[landmark]) == max(exchanged[partner])
        else:
            assert partner == landmark
    assert partners.unpaired == tuple(np.flatnonzero(~np.array(partners.is_paired)))


def test_a_landmark_without_counts_has_no_partner() -> None:
    table = np.zeros((3, 3), dtype=np.int64)
    table[0, 1] = 5
    partners = find_mirror_partners(table)
    assert (partners.mirror, partners.unpaired) == ((1, 0, 2), (2,))


def test_the_third_of_three_similar_landmarks_has_no_partner() -> None:
    """Landmarks 1 and 2 both become landmark 0; landmark 1 does so more often."""
    partners = find_mirror_partners(np.array([[0, 6, 4], [9, 0, 0], [7, 0, 1]]))
    assert (partners.mirror, partners.unpaired) == ((1, 0, 2), (2,))


def test_likeness_matches_a_loop() -> None:
    rng = np.random.default_rng(2)
    descriptor, mirrored = rng.normal(size=(2, 30, 5, 8))
    partners = LandmarkPartners((3, 1, 4, 0, 2), (True,) * 5)
    mean = descriptor.mean(axis=0)
    mean = [vector / np.sqrt((vector**2).sum()) for vector in mean]
    counts = np.zeros(5)
    for image in mirrored:
        for landmark, partner in enumerate(partners.mirror):
            counts[landmark] += image[landmark] @ mean[partner] > image[landmark] @ mean[landmark]
    expected = [(counts[k] + counts[partner]) / 60 for k, partner in enumerate(partners.mirror)]
    expected[1] = 1.0  # landmark 1 is its own partner
    np.testing.assert_allclose(measure_partner_likeness(descriptor, mirrored, partners), expected)


def test_only_pairs_that_do_not_look_alike_are_dropped() -> None:
    partners = LandmarkPartners((1, 0, 3, 2, 4, 5), (True, True, True, True, True, False))
    likeness = np.array([0.3, 0.3, 0.1, 0.1, 1.0, 1.0])
    checked = drop_unlike_partners(partners, likeness, 0.3)
    assert checked.mirror == (1, 0, 2, 3, 4, 5)
    assert checked.unpaired == (2, 3, 5)
