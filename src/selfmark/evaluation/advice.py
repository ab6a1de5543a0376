"""Advice in words, each sentence backed by a check that needs no labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selfmark.config import Config


def advise(checks: Mapping[str, Any], num_images: int, config: Config) -> list[str]:
    """Return sentences that say what a user should know about a run, or should change.

    Args:
        checks: results of the label-free checks, as in metrics.json.
        num_images: number of training images.
        config: settings of the run, with the limits of the checks.

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
        needed = len(checks["trust"]) - sum(len(group) - 1 for group in checks["duplicates"])
        sentences.append(f"{groups}: lower -k to about {needed}")
    rates = enumerate(checks.get("background", ()))
    background = [index for index, rate in rates if rate is not None and rate > settings.max_background_rate]
    if background:
        sentences.append(
            f"{_landmarks(background)} of {len(checks['trust'])} {_verb(background, 'mark')} places that "
            "look the same in nearly all frames, probably background: give --boxes, --crop or --find-animals"
        )
    fixed = _fixed_landmarks(checks.get("spread", ()), settings.fixed_spread, settings.moving_spread)
    if fixed and not background:
        sentences.append(
            f"{_landmarks(fixed)} hardly {_verb(fixed, 'move')} although others do: if the pictures show "
            "background there, give --boxes or --crop"
        )
    rates = enumerate(checks.get("found", ()))
    if rare := [index for index, rate in rates if rate is not None and rate < settings.full_found_rate]:
        sentences.append(
            f"Stage 1 found {_landmarks(rare)} in fewer than {settings.full_found_rate:.0%} of the images: "
            "lower -k, or give images that show the whole object"
        )
    if num_images < settings.min_images:
        sentences.append(
            f"landmarks discovered from only {num_images} images are uncertain: "
            f"use {settings.min_images} or more"
        )
    return sentences


def _fixed_landmarks(spread: Sequence[float], max_spread: float, min_median: float) -> list[int]:
    """Return the landmarks that stay where they are in all images, if most others move."""
    if not len(spread) or np.median(spread) < min_median:
        return []
    return [index for index, value in enumerate(spread) if value < max_spread]


def _landmarks(numbers: list[int]) -> str:
    return f"landmark{'s' if len(numbers) > 1 else ''} {_join(numbers)}"


def _verb(numbers: list[int], verb: str) -> str:
    return verb if len(numbers) > 1 else f"{verb}s"


def _join(numbers: list[int]) -> str:
    """Join numbers as in a sentence: "0, 3 and 4"."""
    *first, last = (str(number) for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
