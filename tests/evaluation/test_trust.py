"""Broken landmarks rank last, and each fails a different check."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from selfmark.config import Augment, Evaluation
from selfmark.evaluation.consistency import DeformationErrors, deformation_errors, mirror_errors
from selfmark.evaluation.trust import LandmarkTrust, judge_landmarks
from tests.evaluation.fakes import CENTER, GREEN, LEFTMOST, RANDOM, RARE, RED, blob_detector, draw_blobs

AGREEMENT_RADIUS = Evaluation().agreement_radius
IMAGES = 60
MILD = Augment(noise=0.0, blur_fraction=0.0, color_fraction=0.0)  # affine maps, contrast and brightness


@pytest.fixture(scope="module")
def deformed() -> DeformationErrors:
    torch.manual_seed(0)  # for the landmark at random positions
    generator = torch.Generator().manual_seed(1)
    return deformation_errors(blob_detector(), draw_blobs(IMAGES).pixels, 2, MILD, generator, batch=32)


@pytest.fixture(scope="module")
def trust(deformed: DeformationErrors) -> LandmarkTrust:
    torch.manual_seed(0)
    mirror = mirror_errors(blob_detector(), draw_blobs(IMAGES).pixels, batch=32)
    found = np.ones((IMAGES, 6), bool)
    found[::10, [RED, GREEN]] = False
    found[3:, RARE] = False
    separation, score = np.arange(6.0), np.full((IMAGES, 6), 0.5)  # neither affects the trust
    return judge_landmarks(deformed, mirror, found, separation, score, AGREEMENT_RADIUS)


def test_good_landmarks_rank_before_broken_ones(trust: LandmarkTrust) -> None:
    assert set(trust.order[:2].tolist()) == {RED, GREEN}
    assert trust.trust[[RED, GREEN]].min() > 0.8
    assert trust.trust[[CENTER, RANDOM, LEFTMOST, RARE]].max() < 0.1
    assert sorted(trust.order.tolist()) == list(range(6))
    assert (np.diff(trust.trust[trust.order]) <= 0).all()


def test_each_broken_landmark_fails_its_own_check(trust: LandmarkTrust) -> None:
    assert trust.stable[CENTER] == 0.0
    assert trust.symmetric[CENTER] == 1.0
    assert trust.stable[RANDOM] < 0.1
    assert trust.stable[LEFTMOST] > 0.9
    assert trust.symmetric[LEFTMOST] == 0.0
    assert trust.stable[RARE] > 0.9
    assert trust.symmetric[RARE] > 0.9
    assert trust.found[RARE] == pytest.approx(0.05)


def test_the_error_alone_does_not_reveal_a_fixed_landmark(
    deformed: DeformationErrors, trust: LandmarkTrust
) -> None:
    """Most deformations hardly move the center; only the others reveal that it is fixed."""
    assert (deformed.error[:, CENTER] <= AGREEMENT_RADIUS).mean() > 0.6
    assert trust.deformation[CENTER] < 100 * AGREEMENT_RADIUS


def test_small_example() -> None:
    error = np.array([[0.01, 0.20], [0.03, np.nan], [0.01, 0.04], [0.09, 0.01]])
    moved = np.array([[0.30, 0.30], [0.01, 0.30], [0.30, 0.30], [0.30, 0.02]])
    mirror = np.array([[0.0, 0.05], [0.2, 0.06]])
    found = np.array([[True, True], [True, False], [False, False]])
    score = np.array([[0.2, 0.4], [0.4, 0.8]])
    trust = judge_landmarks(
        DeformationErrors(error, moved), mirror, found, np.array([0.5, 0.6]), score, agreement_radius=0.05
    )
    np.testing.assert_allclose(trust.deformation, [2.0, 4.0])
    np.testing.assert_allclose(trust.stable, [2 / 3, 1 / 2])
    np.testing.assert_allclose(trust.symmetric, [1 / 2, 1 / 2])
    np.testing.assert_allclose(trust.found, [2 / 3, 1 / 3])
    np.testing.assert_allclose(trust.score, [0.3, 0.6])
    np.testing.assert_allclose(trust.separation, [0.5, 0.6])
    np.testing.assert_allclose(trust.trust, [2 / 3 * 1 / 2, 1 / 2 * 1 / 2 * 1 / 2])
    assert trust.order.tolist() == [0, 1]


def test_skipped_checks_do_not_count() -> None:
    deformed = DeformationErrors(np.array([[0.01, 0.01], [0.5, 0.01]]), np.full((2, 2), 0.3))
    trust = judge_landmarks(deformed, None, None, None, np.ones((2, 2)), agreement_radius=0.05)
    assert np.isnan([trust.symmetric, trust.found, trust.separation]).all()
    np.testing.assert_allclose(trust.trust, [0.5, 1.0])
    assert trust.order.tolist() == [1, 0]


def test_a_landmark_without_evidence_is_not_trusted() -> None:
    """Every deformation moves it out of the image, so there is no evidence for it."""
    deformed = DeformationErrors(np.array([[np.nan, 0.01], [np.nan, 0.01]]), np.full((2, 2), 0.3))
    trust = judge_landmarks(deformed, None, None, None, np.ones((2, 2)), agreement_radius=0.05)
    assert np.isnan(trust.deformation[0])
    assert np.isnan(trust.stable[0])
    np.testing.assert_allclose(trust.trust, [0.0, 1.0])


def test_trust_is_zero_if_stage_1_found_nothing() -> None:
    deformed = DeformationErrors(np.full((2, 2), 0.01), np.full((2, 2), 0.3))
    trust = judge_landmarks(
        deformed, None, np.zeros((3, 2), bool), None, np.ones((2, 2)), agreement_radius=0.05
    )
    np.testing.assert_allclose(trust.trust, [0.0, 0.0])


def test_equal_trust_is_ordered_by_error() -> None:
    deformed = DeformationErrors(np.array([[0.03, 0.01, 0.02]]), np.full((1, 3), 0.3))
    assert judge_landmarks(
        deformed, None, None, None, np.ones((1, 3)), agreement_radius=0.05
    ).order.tolist() == [1, 2, 0]
