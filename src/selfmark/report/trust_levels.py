"""Trust in words, and the order in which landmarks are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from selfmark.points import FloatArray
from selfmark.report.sections import IntArray


@dataclass(frozen=True)
class TrustLevel:
    """The trust of a landmark as the page shows it; `level` is a class of the style sheet."""

    level: str
    word: str
    value: str
    percent: int


_LEVELS = (("good", "trustworthy"), ("fair", "use with care"), ("poor", "do not rely on"))
_UNKNOWN = TrustLevel("unknown", "not measured", "", 0)


def trust_level(trust: float, limits: tuple[float, float]) -> TrustLevel:
    """Return the level for a trust from 0 to 1.

    Args:
        trust: Trust; not finite if it was not measured.
        limits: Lowest trust for "use with care" and for "trustworthy".

    >>> trust_level(0.8, (0.5, 0.8)).word, trust_level(0.2, (0.5, 0.8)).word
    ('trustworthy', 'do not rely on')
    """
    if not math.isfinite(trust):
        return _UNKNOWN
    fair, good = limits
    level, word = _LEVELS[0 if trust >= good else 1 if trust >= fair else 2]
    return TrustLevel(level, word, f"{trust:.2f}", round(100 * min(max(trust, 0.0), 1.0)))


def order_by_trust(trust: FloatArray) -> IntArray:
    """Return the landmarks [K] from most to least trusted; those without a measurement come last."""
    return np.argsort(np.where(np.isfinite(trust), -trust, np.inf), kind="stable")


def group_by_level(levels: dict[int, TrustLevel]) -> list[tuple[TrustLevel, list[int]]]:
    """Group landmarks by level, best level first; within a group they keep their order."""
    words = [*(word for _, word in _LEVELS), _UNKNOWN.word]
    groups = [[index for index, trust in levels.items() if trust.word == word] for word in words]
    return [(levels[group[0]], group) for group in groups if group]
