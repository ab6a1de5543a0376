"""Test the table and chart of the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from selfmark.report.rounds_section import build_rounds_section


def _make_recovery_event(number: int, found: float, kept: float, fraction: Any) -> dict[str, Any]:
    return {
        "event": "recovery",
        "round": number,
        "found_per_image": found,
        "kept_per_image": kept,
        "labelled_share": fraction,
    }


def test_rounds_become_a_table_and_a_chart() -> None:
    history = [
        {"event": "images", "used": 3},
        _make_recovery_event(1, 30.04, 12.0, 0.5),
        _make_recovery_event(2, 28, 11, 0.6),
        _make_recovery_event(2, 25.0, 13.5, 0.912),  # This round was repeated after an interruption.
        _make_recovery_event(3, 20.0, 14.0, None),
    ]
    (table,), (curves,) = build_rounds_section(history)
    assert table.rows == (
        ("1", "30.0", "12.0", "50%"),
        ("2", "25.0", "13.5", "91%"),
        ("3", "20.0", "14.0", "none"),
    )
    (found, x, y), (kept, _, z) = curves.lines
    assert (found, kept) == ("found", "kept")
    assert np.array_equal(x, [1, 2, 3])
    assert np.array_equal(y, [30.04, 25.0, 20.0])
    assert np.array_equal(z, [12.0, 13.5, 14.0])


def test_a_history_without_rounds_gives_an_empty_section() -> None:
    assert build_rounds_section([{"event": "images"}, {"event": "recovery"}]) == ((), ())
