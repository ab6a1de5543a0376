"""Build the table and the chart of the rounds of Stage 1, from the events of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from selfmark.report.sections import ReportCurves, ReportTable

_FIELDS = ("found_per_image", "kept_per_image", "labelled_share")


def build_rounds_section(
    history: Iterable[dict[str, Any]],
) -> tuple[tuple[ReportTable, ...], tuple[ReportCurves, ...]]:
    """Return a table and a chart of the `recovery` events; both are empty if there are none.

    If a round was repeated after an interruption, only the last attempt counts.
    """
    rounds = {
        int(event["round"]): tuple(_to_number(event.get(field)) for field in _FIELDS)
        for event in history
        if event.get("event") == "recovery" and isinstance(event.get("round"), int)
    }
    if not rounds:
        return (), ()
    order = sorted(rounds)
    found, kept, labeled = np.array([rounds[number] for number in order]).T  # in the order of _FIELDS
    table = ReportTable(
        title="Round by round",
        note="Before each round, the program finds points in every image, and groups points of all images "
        "that look alike. Stage 2 learns from the groups of the last row.",
        header=("round", "points found per image", "points kept per image", "kept points with a label"),
        rows=tuple(
            (str(number), _format(num_found, 1), _format(num_kept, 1), _format(100 * fraction, 0, "%"))
            for number, num_found, num_kept, fraction in zip(
                order, found.tolist(), kept.tolist(), labeled.tolist(), strict=True
            )
        ),
    )
    curves = ReportCurves(
        title="Points per image",
        note="Both curves should level off after a few rounds.",
        x_label="round",
        y_label="points per image",
        lines=(("found", np.array(order, float), found), ("kept", np.array(order, float), kept)),
    )
    return (table,), (curves,)


def _to_number(value: Any) -> float:
    """Return a field of an event as a number; NaN if it is missing or not a number."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def _format(value: float, digits: int, unit: str = "") -> str:
    return f"{value:.{digits}f}{unit}" if math.isfinite(value) else "none"
