"""The verdict on a run in words, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERDICTS = {
    "good": "The landmarks mark the same parts on different individuals.",
    "usable": "Most likely some landmarks mark different parts on different individuals: check each landmark "
    "before you rely on it.",
    "failed": "The landmarks do not mark the same parts on different individuals: do not rely on them.",
}
"""The possible verdicts, each as a sentence."""


def describe_verdict(checks: Mapping[str, Any]) -> str:
    """Return the verdict as one sentence and the error expected behind it.

    Args:
        checks: results of the label-free checks, as in metrics.json.
    """
    expected = f"{checks['expected_forward']:.2f}"
    return (
        f"{VERDICTS[checks['verdict']]} The error of predicting body points from them is expected to be "
        f"{expected} of the error of guessing (1.00)."
    )


def describe_agreement(verification: Mapping[str, Any]) -> str:
    """Return in a sentence how well a second run agrees.

    Args:
        verification: content of verification.json.
    """
    return (
        f"A second detector, trained on {verification['second_run_images']} of the images, was compared on "
        f"{verification['images']} images that neither had seen. Its landmarks are predicted from those of "
        f"this run with an error of {verification['forward']:.2f} % of the image's side (guessing: "
        f"{verification['guessing_forward']:.2f} %); the other way round {verification['backward']:.2f} % "
        f"(guessing: {verification['guessing_backward']:.2f} %)."
    )
