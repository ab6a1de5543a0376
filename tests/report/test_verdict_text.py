"""Test that the verdict in words agrees with the trust of the landmarks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfmark.config import Evaluation
from selfmark.evaluation.verdict import judge_run
from selfmark.report.verdict_text import VERDICTS, describe_verdict


def _describe(expected_error: list[float]) -> tuple[str, str]:
    """Return the verdict on landmarks with these expected errors, and its description."""
    judged = judge_run(np.array(expected_error), math.nan, Evaluation())
    checks = {**judged._asdict(), "trust": [1 - error for error in expected_error]}
    return judged.verdict, describe_verdict(checks)


def test_the_verdict_mentions_that_no_landmark_is_trustworthy() -> None:
    verdict, text = _describe([0.6] * 7 + [0.9])
    assert verdict == "usable"
    assert "do not rely on any single one. None of 8 landmarks is trustworthy" in text
    assert "Some landmarks" not in text
    assert "0.48 times the error of guessing" in text  # 0.01 + 0.79 * 0.6


@pytest.mark.parametrize(
    ("expected_error", "verdict", "count"),
    [
        ([0.1, 0.2, 0.9], "good", "2 of 3 landmarks are trustworthy"),
        ([0.45, 0.8, 0.9], "usable", "1 of 3 landmarks is trustworthy"),
        ([0.5, 0.8], "usable", "1 of 2 landmarks is trustworthy"),  # The limit counts as trustworthy.
        ([0.95, 1.0], "failed", "None of 2 landmarks is trustworthy"),
    ],
)
def test_the_number_of_trustworthy_landmarks_follows_the_verdict(
    expected_error: list[float], verdict: str, count: str
) -> None:
    judged, text = _describe(expected_error)
    assert judged == verdict
    assert text.startswith(f"{VERDICTS[verdict]} {count}")
