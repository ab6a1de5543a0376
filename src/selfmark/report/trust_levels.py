"""Describe trust in words, and sort and group landmarks by trust."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray
from selfmark.report.sections import IntArray


@dataclass(frozen=True)
class TrustLevel:
    """The trust of a landmark as the page shows it.

    Attributes:
        level: Class of the style sheet.
        word: Level in words.
        value: Trust as text.
        percent: Length of the bar, 0 to 100.
    """

    level: str
    word: str
    value: str
    percent: int


_LEVELS = (("good", "trustworthy"), ("fair", "use with care"), ("poor", "do not rely on"))
_UNKNOWN = TrustLevel("unknown", "not measured", "", 0)


def describe_trust(trust: float, limits: tuple[float, float]) -> TrustLevel:
    """Return the level that a value of trust belongs to.

    Args:
        trust: Trust from 0 to 1; not finite if it was not measured.
        limits: Lowest trust for "use with care" and for "trustworthy".

    >>> describe_trust(0.8, (0.5, 0.8)).word, describe_trust(0.2, (0.5, 0.8)).word
    ('trustworthy', 'do not rely on')
    """
    if not math.isfinite(trust):
        return _UNKNOWN
    fair, good = limits
    if trust >= good:
        level, word = _LEVELS[0]
    elif trust >= fair:
        level, word = _LEVELS[1]
    else:
        level, word = _LEVELS[2]
    return TrustLevel(level, word, f"{trust:.2f}", round(100 * min(max(trust, 0.0), 1.0)))


def order_by_trust(trust: FloatArray) -> IntArray:
    """Return the landmarks [K] from most to least trusted; landmarks of unknown trust come last."""
    return np.argsort(np.where(np.isfinite(trust), -trust, np.inf), kind="stable")


def group_by_level(levels: dict[int, TrustLevel]) -> list[tuple[TrustLevel, list[int]]]:
    """Group landmarks by level, best level first; landmarks of a group keep their order."""
    words = [*(word for _, word in _LEVELS), _UNKNOWN.word]
    groups = [[index for index, trust in levels.items() if trust.word == word] for word in words]
    return [(levels[group[0]], group) for group in groups if group]
