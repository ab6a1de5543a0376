"""Provide data for the tests of the report page: a small run without and with an evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from selfmark.report import ReportCurves, ReportData, ReportTable

K, E, S = 4, 5, 64  # K landmarks, E example images of S x S pixels
ATTACK = '<script>alert("x")</script>.png'


def make_example_data(**changes: Any) -> ReportData:
    """Return the data of a run without an evaluation."""
    rng = np.random.default_rng(0)
    history: list[dict[str, Any]] = [{"event": "start"}, {"event": "images", "used": 5}]
    history += [
        {"stage": "warm-up", "round": 0, "iteration": i, "loss": {"total": 1 / i, "detector": 0.1}}
        for i in range(10, 60, 10)
    ]
    history += [
        {"stage": "round", "round": 1, "start": 50, "iteration": i, "loss": {"total": 0.5}} for i in (60, 70)
    ]
    history += [{"stage": "stage 2", "iteration": i, "loss": 0.01 * i} for i in (10, 20)]
    xy = rng.uniform(5, 58, (E, K, 2))
    xy[0] = [
        [16, 20],
        [48, 20],
        [16, 52],
        [48, 52],
    ]  # These landmarks are so far apart that no disc hides another.
    data = ReportData(
        title="cats & dogs",
        names=("nose", "left <b>eye</b>", "right eye", "tail"),
        examples=rng.integers(0, 255, (E, S, S, 3), dtype=np.uint8),
        example_xy=xy,
        example_score=rng.uniform(0, 1, (E, K)),
        example_names=("a.png", ATTACK, "b.png", 'quote".png', "bad\udcff.png"),
        mirror=(0, 2, 1, 3),
        without_partner=(3,),
        detection=np.array([0.914, 0.5, 0.25, 0.0]),
        history=tuple(history),
        headline_numbers=(("Forward error", "4.83%", "In percent of the object's size."),),
        settings={"K": 4, "images": {"size": 64, "deeply": {"nested": [1, 2]}}},
    )
    return replace(data, **changes)


def make_evaluated_data(**changes: Any) -> ReportData:
    """Return the data of a run with everything that an evaluation adds."""
    rng = np.random.default_rng(1)
    recovery = [
        {"event": "recovery", "round": r, "found_per_image": 9 - r, "kept_per_image": 3 + 0.1 * r}
        | {"labelled_share": 0.9}
        for r in (1, 2, 3)
    ]
    label = rng.integers(-1, K, 200)
    steps = np.arange(1.0, 21.0)
    parts = tuple(f"quite a long body part {index}" for index in range(16))
    evaluated = make_example_data(
        history=(*make_example_data().history, *recovery),
        notes=("2 of 7 images were left out.", f"No label for {ATTACK}."),
        tables=(
            ReportTable(
                "Forward error",
                "In percent.",
                ("images", "ridge 0.1"),
                (("5", "6.10 ± 0.2"), ("all", "4.83")),
            ),
            ReportTable("Points hit", "In percent.", ("a hit", *parts), (("PCK", *("50.0" for _ in parts)),)),
        ),
        curves=(
            ReportCurves(
                "Forward error, best first",
                "Low is good.",
                "points counted",
                "error, %",
                tuple((f"line {i}", steps, steps * (i + 1)) for i in range(3)),
            ),
        ),
        cluster_xy=rng.normal(size=(200, 2)) + 5.0 * label[:, None],
        cluster_label=label,
        trust=np.array([0.3, 0.9, 0.1, np.nan]),
        facts=tuple((("deformation error", f"{index}.5 %"), ("mark", "<b>")) for index in range(K)),
    )
    return replace(evaluated, **changes)
