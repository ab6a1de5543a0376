"""Describe the verdict on a run in words, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERDICTS = {
    "good": "The landmarks mark the same parts on different individuals.",
    "usable": "Some landmarks probably mark different parts on different individuals: check each landmark "
    "before you rely on it.",
    "failed": "The landmarks do not mark the same parts on different individuals: do not rely on them.",
}
"""The possible verdicts, each as a sentence."""


def describe_verdict(checks: Mapping[str, Any]) -> str:
    """Describe the verdict and the expected error that led to it.

    Args:
        checks: results of the label-free checks, as in metrics.json.
    """
    expected = f"{checks['expected_forward']:.2f}"
    return (
        f"{VERDICTS[checks['verdict']]} The error of predicting body points from them is expected to be "
        f"{expected} times the error of guessing."
    )


def describe_agreement(verification: Mapping[str, Any]) -> str:
    """Describe how well a second run agrees with this run.

    Args:
        verification: content of verification.json.
    """
    return (
        f"A second detector was trained on {verification['second_run_images']} of the images and compared on "
        f"{verification['images']} images that neither detector had seen. Predicting its landmarks from "
        f"those of this run has an error of {verification['forward']:.2f} % of the image's side (guessing: "
        f"{verification['guessing_forward']:.2f} %). Predicting the landmarks of this run from those of the "
        f"second one has an error of {verification['backward']:.2f} % (guessing: "
        f"{verification['guessing_backward']:.2f} %)."
    )
