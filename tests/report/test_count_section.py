"""Test the section on how the number of landmarks was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from selfmark.report.count_section import build_count_section
from selfmark.report.report_page import write_report
from tests.report.example import make_example_data


def _make_choice_event(K: int) -> dict[str, Any]:
    trials = [
        {"K": k, "detection": 0.9, "separation": 0.8, "agreement": 0.7, "score": score, "error": 0.02}
        for k, score in ((4, 0.3), (8, 0.61), (12, 0.5))
    ]
    return {"event": "landmark_count", "K": K, "why": f"{K} landmarks: because.", "trials": trials}


def test_the_last_choice_becomes_text_a_table_and_charts() -> None:
    text, (table,), (score, parts) = build_count_section(
        [_make_choice_event(4), {"event": "images"}, _make_choice_event(8)]
    )
    assert text == "8 landmarks: because."
    assert table.rows[1] == ("8 (chosen)", "0.61", "0.02", "0.90", "0.80", "0.70")
    (_, x, y), (name, at, height) = score.lines
    assert np.array_equal(x, [4, 8, 12])
    assert np.array_equal(y, [0.3, 0.61, 0.5])
    assert (name, at.tolist(), height.tolist()) == ("chosen: 8", [8.0], [0.61])
    assert [line[0] for line in parts.lines] == ["detection", "separation", "agreement"]


def test_a_number_found_by_merging_clusters_becomes_text_and_a_table() -> None:
    merges = [{"event": "merge", "iteration": 50, "before": 30, "after": 24}]
    found = {"event": "landmark_count", "K": 10, "why": "30 clusters were merged."}
    text, (table,), curves = build_count_section([*merges, found])
    assert (text, curves) == ("30 clusters were merged.", ())
    assert table.rows == (("50", "30", "24"),)


def test_there_is_no_section_if_the_user_set_the_number() -> None:
    assert build_count_section([{"event": "images"}]) == ("", (), ())


def test_the_page_shows_the_section_only_after_a_choice(tmp_path: Path) -> None:
    data = make_example_data()
    assert "How many landmarks" not in write_report(data, tmp_path / "given").read_text()
    chosen = make_example_data(history=(*data.history, _make_choice_event(8)))
    page = write_report(chosen, tmp_path / "chosen").read_text()
    assert page.count("How many landmarks") == 2  # One is the heading, the other is in the table of contents.
    assert "8 landmarks: because." in page
    assert "chosen: 8" in page
