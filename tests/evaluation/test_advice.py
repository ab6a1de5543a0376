"""Test the advice that follows from the label-free checks."""

from __future__ import annotations

from typing import Any

import pytest

from selfmark.config import Config
from selfmark.evaluation.advice import advise

CHECKS: dict[str, Any] = {
    "duplicates": [],
    "trust": [0.9] * 16,
    "found": [1.0] * 16,
    "spread": [0.1] * 16,
    "kind_separation": 0.1,
    "upright_accuracy": 0.95,
}


@pytest.mark.parametrize(
    ("changes", "num_images", "expected"),
    [
        ({}, 30, []),
        ({"duplicates": [[1, 2]]}, 30, ["landmarks 1 and 2 mark the same place: lower -k to about 15"]),
        (
            {"duplicates": [[0, 3, 4], [7, 9]]},
            500,
            [
                "landmarks 0, 3 and 4 mark the same place; landmarks 7 and 9 mark the same place: "
                "lower -k to about 13"
            ],
        ),
        ({}, 9, ["landmarks discovered from only 9 images are uncertain: use 30 or more"]),
        (
            {"upright_accuracy": 0.55},
            500,
            ["the objects face all directions: use --recipe any-orientation"],
        ),
        (
            {"kind_separation": 0.4},
            500,
            ["two kinds of objects seem mixed: discover the landmarks of each kind separately"],
        ),
        (
            {"spread": [0.002, 0.1, 0.001] + [0.1] * 13},
            500,
            [
                "landmarks 0 and 2 hardly move although others do: if the pictures show background there, "
                "give --boxes or --crop"
            ],
        ),
        ({"spread": [0.002] * 16}, 500, []),
        (
            {"background": [0.95, 0.3] * 2 + [0.1] * 12, "spread": [0.002] * 4 + [0.1] * 12},
            500,
            [
                "landmarks 0 and 2 of 16 mark places that look the same in nearly all frames, probably "
                "background: give --boxes, --crop or --find-animals"
            ],
        ),
        (
            {"found": [1.0, 0.39] + [1.0] * 14},
            500,
            [
                "Stage 1 found landmark 1 in fewer than 50% of the images: lower -k, or give images that "
                "show the whole object"
            ],
        ),
        ({"upright_accuracy": None, "kind_separation": None, "found": [None] * 16}, 500, []),
    ],
)
def test_each_problem_gives_its_advice(changes: dict[str, Any], num_images: int, expected: list[str]) -> None:
    assert advise(CHECKS | changes, num_images, Config()) == expected
