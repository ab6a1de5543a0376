"""Turn the results of the label-free checks into advice for the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selfmark.config import Config
from selfmark.wording import choose_form, describe_count


def advise(checks: Mapping[str, Any], num_images: int, config: Config) -> list[str]:
    """Return one sentence for each problem of a run, with what the user can do about it.

    Args:
        checks: results of the label-free checks, as in metrics.json.
        num_images: number of training images.
        config: settings of the run, including the limits of the checks.

    >>> checks = {"duplicates": [[0, 3, 4]], "trust": [0.9] * 14}
    >>> advise(checks, 500, Config())
    ['landmarks 0, 3 and 4 mark the same place: lower -k to about 12']
    """
    settings = config.evaluation
    sentences = []
    upright = checks.get("upright_accuracy")
    if upright is not None and upright < config.features.min_upright_accuracy:
        sentences.append("the objects face all directions: use --recipe any-orientation")
    if (checks.get("kind_separation") or 0.0) > settings.max_kind_separation:
        sentences.append("two kinds of objects seem mixed: discover the landmarks of each kind separately")
    if checks["duplicates"]:
        groups = "; ".join(f"landmarks {_join(group)} mark the same place" for group in checks["duplicates"])
        num_distinct = len(checks["trust"]) - sum(len(group) - 1 for group in checks["duplicates"])
        sentences.append(f"{groups}: lower -k to about {num_distinct}")
    background = [
        landmark
        for landmark, rate in enumerate(checks.get("background", ()))
        if rate is not None and rate > settings.max_background_rate
    ]
    if background:
        sentences.append(
            f"{_name_landmarks(background)} of {len(checks['trust'])} {_conjugate('mark', background)} "
            "places that look the same in nearly all frames, probably background: give --boxes, --crop or "
            "--find-animals"
        )
    fixed_landmarks = _find_fixed_landmarks(
        checks.get("spread", ()), settings.fixed_spread, settings.moving_spread
    )
    if fixed_landmarks and not background:
        sentences.append(
            f"{_name_landmarks(fixed_landmarks)} hardly {_conjugate('move', fixed_landmarks)} although "
            "others do: if the pictures show background there, give --boxes or --crop"
        )
    rare = [
        landmark
        for landmark, rate in enumerate(checks.get("found", ()))
        if rate is not None and rate < settings.full_found_rate  # a lower rate also lowers trust
    ]
    if rare:
        sentences.append(
            f"Stage 1 found {_name_landmarks(rare)} in fewer than {settings.full_found_rate:.0%} of the "
            "images: lower -k, or give images that show the whole object"
        )
    if num_images < settings.min_images:
        sentences.append(
            f"landmarks discovered from only {describe_count(num_images, 'image')} are uncertain: "
            f"use {settings.min_images} or more"
        )
    return sentences


def _find_fixed_landmarks(spread: Sequence[float], max_spread: float, min_median: float) -> list[int]:
    """Return the landmarks that hardly move between images, or none if most landmarks hardly move.

    Args:
        spread: [K] mean distance of each landmark from its mean position, as a fraction of the image side.
        max_spread: a landmark with a smaller spread counts as fixed.
        min_median: if the median spread is smaller, most landmarks hardly move.
    """
    if not len(spread) or np.median(spread) < min_median:
        return []
    return [landmark for landmark, value in enumerate(spread) if value < max_spread]


def _name_landmarks(numbers: list[int]) -> str:
    """Return "landmark 3" or "landmarks 0, 3 and 4"."""
    return f"{choose_form(len(numbers), 'landmark', 'landmarks')} {_join(numbers)}"


def _conjugate(verb: str, subjects: list[int]) -> str:
    """Return the verb in the singular for one subject, in the plural for several."""
    return verb if len(subjects) > 1 else f"{verb}s"


def _join(numbers: list[int]) -> str:
    """Join numbers as in the sentence part "0, 3 and 4"."""
    *first, last = (str(number) for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
