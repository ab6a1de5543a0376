"""Test trust: values computed by hand, and stability on a detector that is broken in known ways."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.config import Augment, Evaluation
from selfmark.evaluation.consistency import (
    DeformationErrors,
    compute_agreeing_fraction,
    compute_stable_fraction,
    measure_deformation_errors,
    measure_mirror_errors,
)
from selfmark.evaluation.trust import TrustEvidence, judge_landmarks
from selfmark.evaluation.verdict import judge_run
from selfmark.points import FloatArray
from tests.evaluation.fakes import CENTER, GREEN, LEFTMOST, RANDOM, RED, build_blob_detector, draw_blobs

SETTINGS = Evaluation(
    error_weights=(0.1, 0.3, 0.6), verified_error_weights=(0.1, 0.2, 0.4, 0.3), full_found_rate=0.5
)
AGREEMENT_RADIUS = SETTINGS.agreement_radius
IMAGES = 60
# This augmentation consists of affine maps and changes of contrast and brightness.
MILD = Augment(noise=0.0, blur_fraction=0.0, color_fraction=0.0)


def _make_evidence(stable: list[float], appearance_error: list[float], **changes: Any) -> TrustEvidence:
    count = len(stable)
    values: dict[str, FloatArray] = {
        "stable": np.array(stable),
        "appearance_error": np.array(appearance_error),
        "unexplained": np.zeros(count),
        "found": np.ones(count),
    }
    return TrustEvidence(**values | {name: np.array(value) for name, value in changes.items()})


@pytest.fixture(scope="module")
def deformation_errors() -> DeformationErrors:
    torch.manual_seed(0)  # the landmark RANDOM draws from this generator
    generator = torch.Generator().manual_seed(1)
    return measure_deformation_errors(
        build_blob_detector(), draw_blobs(IMAGES).pixels, 2, MILD, generator, batch=32
    )


def test_landmarks_that_follow_nothing_are_not_stable(deformation_errors: DeformationErrors) -> None:
    stable = compute_stable_fraction(deformation_errors, AGREEMENT_RADIUS)
    assert stable[[RED, GREEN, LEFTMOST]].min() > 0.9
    assert stable[CENTER] == 0.0
    assert stable[RANDOM] < 0.1


def test_the_error_alone_does_not_reveal_a_fixed_landmark(deformation_errors: DeformationErrors) -> None:
    """Most deformations hardly move the center, so a landmark that is fixed there has a small error."""
    assert (deformation_errors.error[:, CENTER] <= AGREEMENT_RADIUS).mean() > 0.6


def test_a_landmark_that_confuses_left_and_right_does_not_agree_with_its_partner() -> None:
    mirror = measure_mirror_errors(build_blob_detector(), draw_blobs(IMAGES).pixels, batch=32)
    symmetric = compute_agreeing_fraction(mirror, AGREEMENT_RADIUS, 6)
    assert symmetric[LEFTMOST] == 0.0
    assert symmetric[CENTER] == 1.0
    assert np.isnan(compute_agreeing_fraction(None, AGREEMENT_RADIUS, 6)).all()


def test_fractions_match_a_hand_computed_case() -> None:
    error = np.array([[0.01, 0.20], [0.03, np.nan], [0.01, 0.04], [0.09, 0.01]])
    moved = np.array([[0.30, 0.30], [0.01, 0.30], [0.30, 0.30], [0.30, 0.02]])
    np.testing.assert_allclose(compute_stable_fraction(DeformationErrors(error, moved), 0.05), [2 / 3, 1 / 2])
    mirror = np.array([[0.0, 0.05], [0.2, 0.06]])
    np.testing.assert_allclose(compute_agreeing_fraction(mirror, 0.05, 2), [1 / 2, 1 / 2])


def test_the_expected_error_is_a_weighted_sum() -> None:
    trust = judge_landmarks(_make_evidence([1.0, 0.5], [0.2, 0.8]), SETTINGS)
    np.testing.assert_allclose(trust.expected_error, [0.1 + 0.6 * 0.2, 0.1 + 0.3 * 0.5 + 0.6 * 0.8])
    np.testing.assert_allclose(trust.trust, 1 - trust.expected_error)
    assert trust.order.tolist() == [0, 1]


def test_a_stable_landmark_that_looks_different_everywhere_is_not_trusted() -> None:
    trust = judge_landmarks(_make_evidence([1.0, 1.0], [0.99, 1.0]), SETTINGS)
    np.testing.assert_allclose(trust.expected_error, [0.1 + 0.6 * 0.99, 1])
    assert judge_run(np.ones(5), math.nan, Evaluation()).verdict == "failed"


def test_the_error_of_a_second_run_counts_if_there_is_one() -> None:
    evidence = _make_evidence([1.0, 1.0], [0.2, 0.2], second_run_error=[0.1, 0.9])
    trust = judge_landmarks(evidence, SETTINGS)
    np.testing.assert_allclose(
        trust.expected_error, [0.1 + 0.4 * 0.2 + 0.3 * 0.1, 0.1 + 0.4 * 0.2 + 0.3 * 0.9]
    )


def test_checks_without_a_result_count_as_failed() -> None:
    """The stability of the first landmark is unknown, and the appearance error of the second."""
    trust = judge_landmarks(_make_evidence([np.nan, 1.0], [0.2, np.nan]), SETTINGS)
    np.testing.assert_allclose(trust.expected_error, [0.1 + 0.3 + 0.6 * 0.2, 0.1 + 0.6])


def test_without_features_the_unexplained_error_replaces_the_appearance_error() -> None:
    evidence = _make_evidence([1.0, 1.0], [np.nan, np.nan], unexplained=[0.1, 0.5])
    np.testing.assert_allclose(judge_landmarks(evidence, SETTINGS).expected_error, [0.16, 0.4])


def test_trust_is_between_0_and_1() -> None:
    trust = judge_landmarks(_make_evidence([0.0, 1.0], [7.0, 0.0]), Evaluation(error_weights=(0.2, 0.9, 0.9)))
    assert trust.trust.tolist() == [0.0, 0.8]


def test_trust_depends_on_the_absolute_found_rate() -> None:
    """A landmark found in fewer than half of the images loses trust, however often others are found."""
    trust = judge_landmarks(_make_evidence([1.0] * 3, [0.0] * 3, found=[0.39, 0.0, 0.6]), SETTINGS)
    np.testing.assert_allclose(trust.trust, [0.9 * 0.39 / 0.5, 0.0, 0.9])


@pytest.mark.parametrize(
    ("expected_error", "verdict"),
    [([0.1, 0.1, 0.1], "good"), ([0.5, 0.6, 0.5], "usable"), ([0.95, 1.0, 0.97], "failed")],
)
def test_a_run_is_judged_by_its_best_landmarks(expected_error: list[float], verdict: str) -> None:
    result = judge_run(np.array(expected_error), math.nan, Evaluation())
    assert result.verdict == verdict
    constant, factor = Evaluation().run_error_weights
    assert result.expected_forward == pytest.approx(
        constant + factor * np.quantile(expected_error, Evaluation().best_fraction), abs=1e-4
    )


@pytest.mark.parametrize(("missed", "verdict"), [(0.1, "good"), (0.6, "usable"), (1.0, "failed")])
def test_a_run_without_features_is_judged_by_the_movement_that_its_landmarks_miss(
    missed: float, verdict: str
) -> None:
    for expected_error in (0.1, 0.9):
        result = judge_run(np.full(4, expected_error), missed, Evaluation())
        assert result.verdict == verdict
        factor = Evaluation().missed_movement_weight
        assert result.expected_forward == pytest.approx(factor * missed, abs=1e-4)
