"""How far a landmark can be relied on, in words, and in which order landmarks are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray
from selfmark.report.sections import IntArray


@dataclass(frozen=True)
class TrustLevel:
    """What the page says about a landmark's trust; `level` is its place in the style sheet."""

    level: str
    word: str
    value: str
    percent: int


_LEVELS = (("good", "trustworthy"), ("fair", "use with care"), ("poor", "do not rely on"))
_UNKNOWN = TrustLevel("unknown", "not measured", "", 0)


def trust_level(trust: float, limits: tuple[float, float]) -> TrustLevel:
    """The word for a trust of 0 to 1; at a limit the better word holds.

    >>> in_words(0.8, (0.5, 0.8)).word, in_words(0.2, (0.5, 0.8)).word
    ('trustworthy', 'do not rely on')
    """
    if not math.isfinite(trust):
        return _UNKNOWN
    care, good = limits
    level, word = _LEVELS[0 if trust >= good else 1 if trust >= care else 2]
    return TrustLevel(level, word, f"{trust:.2f}", round(100 * min(max(trust, 0.0), 1.0)))


def order_by_trust(trust: FloatArray) -> IntArray:
    """Landmarks from the most to the least trusted [K]; those not measured come last."""
    return np.argsort(np.where(np.isfinite(trust), -trust, np.inf), kind="stable")


def group_by_level(trusts: dict[int, TrustLevel]) -> list[tuple[TrustLevel, list[int]]]:
    """Landmarks (in the order given) under each word that occurs, the best word first."""
    words = [*(word for _, word in _LEVELS), _UNKNOWN.word]
    groups = [[index for index, trust in trusts.items() if trust.word == word] for word in words]
    return [(trusts[group[0]], group) for group in groups if group]
