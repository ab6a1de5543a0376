"""How correspondence recovery went from round to round, read from the events of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from selfmark.report.sections import ReportCurves, ReportTable

_FIELDS = ("found_per_image", "kept_per_image", "labelled_share")


def rounds_history(
    history: Iterable[dict[str, Any]],
) -> tuple[tuple[ReportTable, ...], tuple[ReportCurves, ...]]:
    """The `recovery` events as a table and a chart; neither where there are none.

    A round that was run again after an interruption counts as in the last attempt.
    """
    rounds = {
        int(event["round"]): tuple(_number(event.get(field)) for field in _FIELDS)
        for event in history
        if event.get("event") == "recovery" and isinstance(event.get("round"), int)
    }
    if not rounds:
        return (), ()
    order = sorted(rounds)
    found, kept, labeled = np.array([rounds[number] for number in order]).T
    table = ReportTable(
        title="Round by round",
        note="Before each round every image is searched for points, and the points of all images are sorted "
        "into groups that look alike. The last row is the grouping that Stage 2 learns from.",
        header=("round", "points found per image", "points kept per image", "of these with a label"),
        rows=tuple(
            (str(number), _text(a, 1), _text(b, 1), _text(100 * c, 0, "%"))
            for number, a, b, c in zip(order, found.tolist(), kept.tolist(), labeled.tolist(), strict=True)
        ),
    )
    curves = ReportCurves(
        title="Points per image",
        note="Both should settle after a few rounds.",
        x_label="round",
        y_label="points per image",
        lines=(("found", np.array(order, float), found), ("kept", np.array(order, float), kept)),
    )
    return (table,), (curves,)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _text(value: float, digits: int, unit: str = "") -> str:
    return f"{value:.{digits}f}{unit}" if math.isfinite(value) else "none"
