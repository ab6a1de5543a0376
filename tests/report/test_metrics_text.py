"""Tables, curves and facts made from metrics.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.report import metrics_text
from selfmark.report.sections import ReportTable


@pytest.fixture(scope="module")
def metrics(quick_run: Path, labeled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Evaluate a run and return the metrics read back from metrics.json."""
    output = tmp_path_factory.mktemp("metrics")
    evaluate_run(
        quick_run,
        EvaluationInputs(labeled / "images", labeled / "labels.json"),
        EvaluationOptions(by=["pose"], detectors=["orb"], settings={"fit_images": [3], "draws": 2}),
        output=output,
        device="cpu",
    )
    loaded: dict[str, Any] = json.loads(
        (output / "metrics.json").read_text(), parse_constant=_reject_constant
    )
    return loaded


def _reject_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


def _cells(table: ReportTable) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


def _table(metrics: dict[str, Any], title: str) -> ReportTable:
    (table,) = [table for table in metrics_text.metric_tables(metrics) if title in table.title]
    return table


def test_errors_are_in_the_cell_of_their_regressor_and_number_of_images(metrics: dict[str, Any]) -> None:
    for direction in ("forward", "backward"):
        table = _table(metrics, f"{direction.capitalize()} error by number")
        cells = _cells(table)
        assert list(cells) == ["3", "12"]
        for row in metrics["errors"]:
            cell = cells[str(row["images"])][table.header[1:].index(row["regressor"])]
            assert cell.startswith(f"{row[direction]['mean']:.2f}")
            assert ("±" in cell) == (row[direction]["draws"] > 1)
        assert f"{metrics['guessing'][direction]:.2f}" in table.note


def test_stages_groups_hits_and_precision_are_tables(metrics: dict[str, Any]) -> None:
    stages = _cells(_table(metrics, "Stage 1 and Stage 2"))
    for row in metrics["stage1"]["errors"]:
        assert stages[row["regressor"]][0] == f"{row['forward']:.2f}"
        assert stages[row["regressor"]][2] == f"{row['backward']:.2f}"
    poses = _cells(_table(metrics, "Error by pose"))
    assert set(poses) == {"left", "right"}
    assert sum(int(row[0]) for row in poses.values()) == metrics["test_images_used"]
    for kind in ("raw", "regressed"):
        hits = _cells(_table(metrics, f"hit, {kind}"))
        assert hits["all points"] == tuple(f"{row['average']:.1f}" for row in metrics[kind].values())
        assert set(hits) - {"all points"} == set(next(iter(metrics[kind].values()))["by_part"])
    assert _table(metrics, "OKS").rows[0] == tuple(f"{value:.3f}" for value in metrics["oks"].values())
    assert _cells(_table(metrics, "Precision"))["orb"] == (f"{metrics['precision']['orb']:.1f}",)


def test_curves_rise_and_end_at_the_mean(metrics: dict[str, Any]) -> None:
    forward, backward, within = metrics_text.metric_curves(metrics)
    for curve, direction in ((forward, "forward"), (backward, "backward")):
        ((_, x, y),) = curve.lines
        by_point = np.array(metrics["headline"][direction]["by_point"], float)
        assert y[-1] == pytest.approx(np.nanmean(by_point))
        assert (np.diff(y) >= -1e-9).all()
        assert x.tolist() == list(range(1, len(x) + 1))
    for _, x, y in within.lines:
        assert x[0] == 0
        assert (np.diff(y) >= 0).all()
        assert y[-1] <= 100


def test_landmarks_are_ranked_and_described(metrics: dict[str, Any]) -> None:
    table = metrics_text.trust_table(metrics)
    trusts = [float(row[1]) for row in table.rows]
    assert trusts == sorted(trusts, reverse=True)
    facts = metrics_text.landmark_facts(metrics)
    assert len(facts) == 4
    assert dict(facts[2])["backward error"] == f"{metrics['headline']['backward']['by_point'][2]:.1f} %"
    nearest = [dict(row)["nearest annotated point"] for row in facts]
    assert nearest == [metrics["points"][metrics["matched"].index(index)] for index in range(4)]


def test_only_trust_is_shown_without_labels(metrics: dict[str, Any]) -> None:
    bare = {name: metrics[name] for name in ("landmarks", "unlabelled", "notes")}
    assert metrics_text.metric_tables(bare) == ()
    assert metrics_text.metric_curves(bare) == ()
    assert [name for name, _, _ in metrics_text.headline_numbers(bare)] == ["Verdict", "Landmarks to trust"]
    assert "backward error" not in dict(metrics_text.landmark_facts(bare)[0])


@pytest.mark.parametrize(
    ("spec", "words"), [("inter_ocular", "between the eyes"), ("points:a,b", "between a and b")]
)
def test_units_are_described(spec: str, words: str) -> None:
    assert words in metrics_text.error_unit({"normaliser": spec})
