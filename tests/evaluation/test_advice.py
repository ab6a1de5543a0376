"""Advice in words."""

from __future__ import annotations

import pytest

from selfmark.config import Evaluation
from selfmark.evaluation.advice import advise

SETTINGS = Evaluation(min_images=30)


@pytest.mark.parametrize(
    ("duplicates", "images", "expected"),
    [
        ([], 30, []),
        ([[1, 2]], 30, ["landmarks 1 and 2 mark the same place: lower -k to about 15"]),
        (
            [[0, 3, 4], [7, 9]],
            500,
            [
                "landmarks 0, 3 and 4 mark the same place; landmarks 7 and 9 mark the same place: "
                "lower -k to about 13"
            ],
        ),
        ([], 9, ["landmarks found in only 9 images are uncertain: give 30 or more"]),
    ],
)
def test_each_sentence_has_its_reason(duplicates: list[list[int]], images: int, expected: list[str]) -> None:
    assert advise(duplicates, 16, images, SETTINGS) == expected
