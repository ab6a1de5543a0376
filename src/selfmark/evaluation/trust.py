"""Estimate the trust in each discovered landmark: does it mark the same part on different individuals?

Trust is 1 minus the expected error of the landmark. An error of 1 is the error of guessing the landmark's
mean position. Trust is lowered if Stage 1 found the landmark in few images. The expected error is a weighted
sum of the results of checks that need no labels. The weights were fitted to runs whose true errors are known
(docs/results/trust.json).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfmark.config import Evaluation
from selfmark.points import FloatArray


@dataclass(frozen=True)
class TrustEvidence:
    """Results of the checks from which the errors of K landmarks are estimated.

    All errors are divided by the error of guessing the mean position.

    Attributes:
        stable: [K] fraction of deformations that the landmark follows, see `compute_stable_fraction`.
        appearance_error: [K] error of predicting the landmark from places that are found by appearance alone,
            see `individuals.IndividualChecks`; all NaN if there are no features or too few images.
        unexplained: [K] error of predicting the landmark from the other landmarks, used if `appearance_error`
            was not measured.
        found: [K] fraction of images in which Stage 1 found the landmark.
        second_run_error: [K] error of predicting the landmark from the landmarks of a second run, see
            `second_run`; None without a second run.
    """

    stable: FloatArray
    appearance_error: FloatArray
    unexplained: FloatArray
    found: FloatArray
    second_run_error: FloatArray | None = None


@dataclass(frozen=True)
class LandmarkTrust:
    """Trust in each of K landmarks.

    Attributes:
        expected_error: [K] expected error, divided by the error of guessing the mean position; at least 0.
        trust: [K] 0..1.
        order: [K] int64, landmarks from the most to the least trusted.
    """

    expected_error: FloatArray
    trust: FloatArray
    order: npt.NDArray[np.int64]


def judge_landmarks(evidence: TrustEvidence, settings: Evaluation) -> LandmarkTrust:
    """Estimate the error of each landmark, and rank the landmarks by trust.

    An unknown error or stability counts as the worst possible value. A landmark that Stage 1 found in few
    images is trusted less, whatever the other checks say.
    """
    has_appearance = np.isfinite(evidence.appearance_error).any()
    appearance = evidence.appearance_error if has_appearance else evidence.unexplained
    columns = [1 - _fill(evidence.stable, 0.0), _fill(appearance, 1.0)]
    weights: tuple[float, ...] = settings.error_weights
    if evidence.second_run_error is not None:
        columns.append(_fill(evidence.second_run_error, 1.0))
        weights = settings.verified_error_weights
    constant, *factors = weights
    terms = [factor * np.clip(column, 0, 1) for factor, column in zip(factors, columns, strict=True)]
    expected = np.maximum(constant + np.sum(terms, axis=0), 0.0)
    # If appearance locates a landmark no better than guessing, the landmark marks no part of the object,
    # however stable it is. So its expected error is at least 1.
    marks_no_part = evidence.appearance_error >= 1
    expected = np.where(marks_no_part, np.maximum(expected, 1.0), expected)
    found_factor = np.minimum(_fill(evidence.found, 1.0) / settings.full_found_rate, 1.0)
    trust = np.clip(1 - expected, 0, 1) * found_factor
    return LandmarkTrust(expected, trust, np.lexsort((expected, -trust)))


def _fill(values: FloatArray, replacement: float) -> FloatArray:
    """Replace unknown values."""
    filled: FloatArray = np.where(np.isfinite(values), values, replacement)
    return filled
