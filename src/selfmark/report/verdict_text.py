"""Describe the verdict on a run in words, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfmark.model.card import GOOD_TRUST
from selfmark.wording import describe_count

VERDICTS = {
    "good": "The landmarks mark the same parts on different individuals.",
    "usable": "Some landmarks probably mark different parts on different individuals: check each landmark "
    "before you rely on it.",
    "failed": "The landmarks do not mark the same parts on different individuals: do not rely on them.",
}
"""The possible verdicts, each as a sentence."""


_NO_TRUSTED_LANDMARK = (
    "The landmarks follow the object roughly when taken together, but do not rely on any single one."
)
"""Sentence for the verdict "usable" if no landmark is trustworthy."""


def describe_verdict(checks: Mapping[str, Any]) -> str:
    """Describe the verdict, the number of trustworthy landmarks, and the expected error of the run.

    The limits of verdict and trust differ. By default, a run is at least "usable" if its expected error is
    less than 0.75 times the error of guessing. A landmark is trustworthy only if its own expected error is at
    most 0.5 times that error. So a usable run may have no trustworthy landmark.

    Args:
        checks: results of the label-free checks, as in metrics.json.
    """
    total = len(checks["trust"])
    num_trusted = sum(value >= GOOD_TRUST for value in checks["trust"])
    is_rough = checks["verdict"] == "usable" and num_trusted == 0
    sentence = _NO_TRUSTED_LANDMARK if is_rough else VERDICTS[checks["verdict"]]
    return (
        f"{sentence} {_count_trusted(num_trusted, total)} The error of predicting annotated points from the "
        f"landmarks is expected to be {checks['expected_forward']:.2f} times the error of guessing."
    )


def _count_trusted(num_trusted: int, total: int) -> str:
    """Say how many landmarks are trustworthy.

    >>> _count_trusted(1, 8)
    '1 of 8 landmarks is trustworthy (trust of at least 0.5).'
    """
    count, verb = str(num_trusted) if num_trusted else "None", "is" if num_trusted < 2 else "are"
    return f"{count} of {total} landmarks {verb} trustworthy (trust of at least {GOOD_TRUST:g})."


def describe_agreement(verification: Mapping[str, Any]) -> str:
    """Describe how well a second run agrees with this run.

    Args:
        verification: content of verification.json.
    """
    return (
        f"A second detector was trained on {verification['second_run_images']} of the images. Both detectors "
        f"were compared on {describe_count(verification['images'], 'image')} that neither had seen. "
        "Predicting the landmarks of the second detector from those of this run has an error of "
        f"{verification['forward']:.2f} % of the image's side (guessing: "
        f"{verification['guessing_forward']:.2f} %). Predicting the landmarks of this run from those of the "
        f"second detector has an error of {verification['backward']:.2f} % (guessing: "
        f"{verification['guessing_backward']:.2f} %)."
    )
