"""Test the levels of trust, their names and their order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfmark.report.trust_levels import describe_trust, group_by_level, order_by_trust


@pytest.mark.parametrize(
    ("trust", "word", "percent"),
    [
        (1.0, "trustworthy", 100),
        (0.6, "trustworthy", 60),
        (0.599, "use with care", 60),
        (0.3, "use with care", 30),
        (0.0, "do not rely on", 0),
        (-0.1, "do not rely on", 0),
        (1.2, "trustworthy", 100),
        (math.nan, "not measured", 0),
    ],
)
def test_trust_is_described_in_words(trust: float, word: str, percent: int) -> None:
    level = describe_trust(trust, (0.3, 0.6))
    assert (level.word, level.percent) == (word, percent)


def test_landmarks_are_ordered_and_grouped() -> None:
    trust = np.array([0.2, math.nan, 0.9, 0.5, 0.9])
    order = order_by_trust(trust).tolist()
    assert order == [2, 4, 3, 0, 1]
    groups = group_by_level({index: describe_trust(float(trust[index]), (0.3, 0.6)) for index in order})
    assert [(level.word, members) for level, members in groups] == [
        ("trustworthy", [2, 4]),
        ("use with care", [3]),
        ("do not rely on", [0]),
        ("not measured", [1]),
    ]
