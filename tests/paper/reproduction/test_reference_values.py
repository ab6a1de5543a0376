"""Test rows and columns for guessing and for the authors' inter-ocular distance."""

from __future__ import annotations

from typing import Any

import pytest

from selfmark.paper.reproduction.experiment import Column, Experiment, Row, parse_experiment
from selfmark.paper.reproduction.reference_values import View, add_references, with_authors_eyes
from selfmark.paper.reproduction.table_metrics import Value, parse_metric
from selfmark.paper.reproduction.table_writers import TableOrigin, to_markdown

STAGE1 = {"errors": [{"regressor": "ridge 0.01", "forward": 5.0, "backward": 6.0, "backward_found": 7.0}]}


def _make_results(normalizer: str) -> dict[str, Any]:
    """Return results in percent of a normalizer; the authors' inter-ocular distance is twice as long."""

    def scale_errors(scale: float) -> dict[str, Any]:
        directions = {
            name: {"error": scale * error, "cumulative": [scale], "guessing_cumulative": [scale * 3]}
            for name, error in (("forward", 2.0), ("backward", 4.0))
        }
        row = {key: value * scale for key, value in STAGE1["errors"][0].items() if key != "regressor"}
        return {
            "headline": {"regressor": "ridge 0.01", **directions},
            "guessing": {"forward": 10 * scale, "backward": 12 * scale},
            "stage1": {
                "points_per_image": 25.0,
                "errors": [{"regressor": "ridge 0.01", **row}],
                "guessing": {"backward": 13 * scale, "backward_found": 14 * scale},
            },
        }

    both = {
        "eye_centers": scale_errors(1.0),
        "points_41_46": {"normaliser": "points:a,b", **scale_errors(0.5)},
    }
    return {"normaliser": normalizer, "inter_ocular": both, **scale_errors(1.0)}


RESULTS = {"faces": _make_results("inter_ocular"), "heads": _make_results("box")}


def _make_experiment(kind: str, columns: list[dict[str, str]]) -> Experiment:
    rows: list[dict[str, Any]] = [
        {"name": "Zhang", "quoted": True, "paper": [1.0] * len(columns)},
        {"name": "Ours", "train": "faces", "paper": [2.5] * len(columns)},
        {"name": "Heads", "train": "heads"},
    ]
    content = {"title": "Trial", "kind": kind, "digits": 1, "columns": columns, "rows": rows}
    return parse_experiment("trial", content)


def _read(row: Row, column: Column, metric: str, view: View) -> Value:
    results = view(RESULTS[row.spec.train or ""])
    parsed, argument = parse_metric(metric)
    return None if results is None else parsed.read(results, argument)


def test_backward_errors_get_a_guessing_column_and_faces_get_a_row_with_the_authors_eye_distance() -> None:
    columns = [
        {"name": "Fwd", "metric": "forward"},
        {"name": "Bwd", "metric": "backward"},
        {"name": "Bwd 1", "metric": "stage1_backward"},
        {"name": "points", "metric": "stage1_points"},
    ]
    shown, values = add_references(_make_experiment("table", columns), _read)
    page = to_markdown(shown, values, TableOrigin("fast", 0, {}, "9.9", "CPU"))
    stage1 = "Bwd 1 | Bwd 1, guessing | Bwd 1, found only | Bwd 1, found only, guessing"
    assert page.splitlines()[-6:] == [
        f"|  | Fwd | Bwd | Bwd, guessing | {stage1} | points |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| Zhang | (1.0) | (1.0) | - | (1.0) | - | - | - | (1.0) |",
        "| Ours | 2.0 (2.5, -0.5) | 4.0 (2.5, +1.5) | 12.0 | 6.0 (2.5, +3.5) | 13.0 | 7.0 | 14.0 "
        "| 25.0 (2.5, +22.5) |",
        # The number of points is not repeated in this row, because it does not depend on the distance.
        "| Ours, by points 41 and 46 | 1.0 (2.5, -1.5) | 2.0 (2.5, -0.5) | 6.0 | 3.0 (2.5, +0.5) | 6.5 | 3.5 "
        "| 7.0 | (2.5) |",
        "| Heads | 2.0 | 4.0 | 12.0 | 6.0 | 13.0 | 7.0 | 14.0 | 25.0 |",
    ]


def test_figures_have_lines_for_guessing() -> None:
    columns = [{"name": "backward", "metric": "backward_curve"}]
    shown, values = add_references(_make_experiment("curves", columns), _read)
    assert [row.name for row in shown.own_rows] == [
        "Ours",
        "Ours, guessing",
        "Ours, by points 41 and 46",
        "Ours, by points 41 and 46, guessing",
        "Heads",
        "Heads, guessing",
    ]
    assert [values[row.name, "backward"] for row in shown.own_rows] == [
        [1.0],
        [3.0],
        [0.5],
        [1.5],
        [1.0],
        [3.0],
    ]


def test_results_by_round_are_converted_in_every_round() -> None:
    rounds = {"rounds": [RESULTS["faces"], RESULTS["faces"]]}
    converted = with_authors_eyes(rounds)
    assert converted is not None
    assert parse_metric("forward_by_round")[0].read(converted, "") == pytest.approx([2.5, 2.5])
    assert with_authors_eyes({"rounds": [RESULTS["faces"], RESULTS["heads"]]}) is None
    # Results for 5 points and results of earlier versions have no errors by the authors' distance.
    assert with_authors_eyes({"normaliser": "inter_ocular"}) is None
