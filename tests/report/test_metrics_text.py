"""Test the tables, curves and facts made from metrics.json."""

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


def _read_cells(table: ReportTable) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


def _find_table(metrics: dict[str, Any], title: str) -> ReportTable:
    (table,) = [table for table in metrics_text.build_metric_tables(metrics) if title in table.title]
    return table


def test_errors_are_tabulated_by_number_of_images_and_regressor(
    metrics: dict[str, Any],
) -> None:
    for direction in ("forward", "backward"):
        table = _find_table(metrics, f"{direction.capitalize()} error by number")
        cells = _read_cells(table)
        assert list(cells) == ["3", "12", "guessing"]
        assert set(cells["guessing"]) == {f"{metrics['guessing'][direction]:.2f}"}
        assert "over 2 random samples" in table.note
        for row in metrics["errors"]:
            cell_text = cells[str(row["images"])][table.header[1:].index(row["regressor"])]
            assert cell_text.startswith(f"{row[direction]['mean']:.2f}")
            assert ("±" in cell_text) == (row[direction]["draws"] > 1)
        assert f"{metrics['guessing'][direction]:.2f}" in table.note


def test_stages_groups_hits_and_precision_are_tables(metrics: dict[str, Any]) -> None:
    stages = _read_cells(_find_table(metrics, "Stage 1 and Stage 2"))
    for row in metrics["stage1"]["errors"]:
        assert stages[row["regressor"]][0] == f"{row['forward']:.2f}"
        assert stages[row["regressor"]][2:4] == (f"{row['backward']:.2f}", f"{row['backward_found']:.2f}")
    stage1, stage2 = metrics["stage1"]["guessing"], metrics["guessing"]
    # Guessing has the same forward error in both stages.
    expected = (stage2["forward"], stage2["forward"])
    expected += (stage1["backward"], stage1["backward_found"], stage2["backward"])
    assert stages["guessing"] == tuple(f"{value:.2f}" for value in expected)
    poses = _read_cells(_find_table(metrics, "Error by pose"))
    assert set(poses) == {"left", "right"}
    for name, row in metrics["by"]["pose"].items():
        errors = ("forward", "guessing_forward", "backward", "guessing_backward")
        assert poses[name][1:] == tuple(f"{row[key]:.2f}" for key in errors)
    assert sum(int(row[0]) for row in poses.values()) == metrics["test_images_used"]
    for kind in ("raw", "regressed"):
        hits = _read_cells(_find_table(metrics, f"hit, {kind}"))
        assert hits["all points"] == tuple(f"{row['average']:.1f}" for row in metrics[kind].values())
        assert set(hits) - {"all points"} == set(next(iter(metrics[kind].values()))["by_part"])
    assert _find_table(metrics, "OKS").rows[0] == tuple(f"{value:.3f}" for value in metrics["oks"].values())
    assert _read_cells(_find_table(metrics, "Precision"))["orb"] == (f"{metrics['precision']['orb']:.1f}",)


def test_curves_rise_and_end_at_the_mean(metrics: dict[str, Any]) -> None:
    forward, backward, within = metrics_text.build_metric_curves(metrics)
    for curve, direction in ((forward, "forward"), (backward, "backward")):
        assert [name for name, _, _ in curve.lines] == [direction.capitalize(), "Guessing"]
        for (_, x, y), key in zip(curve.lines, ("by_point", "guessing_by_point"), strict=True):
            by_point = np.array(metrics["headline"][direction][key], float)
            assert y[-1] == pytest.approx(np.nanmean(by_point))
            assert (np.diff(y) >= -1e-9).all()
            assert x.tolist() == list(range(1, len(x) + 1))
    for _, x, y in within.lines:
        assert x[0] == 0
        assert (np.diff(y) >= 0).all()
        assert y[-1] <= 100


def test_landmarks_are_ranked_and_described(metrics: dict[str, Any]) -> None:
    table = metrics_text.build_trust_table(metrics)
    trusts = [float(row[1]) for row in table.rows]
    assert trusts == sorted(trusts, reverse=True)
    facts = metrics_text.list_landmark_facts(metrics)
    assert len(facts) == 4
    assert dict(facts[2])["backward error"] == f"{metrics['headline']['backward']['by_point'][2]:.1f} %"
    guessing_error = metrics["headline"]["backward"]["guessing_by_point"][2]
    assert dict(facts[2])["backward error of guessing"] == f"{guessing_error:.1f} %"
    matched_points = [dict(row)["matched annotated point"] for row in facts]
    assert matched_points == [metrics["points"][metrics["matched"].index(index)] for index in range(4)]


def test_only_trust_is_shown_without_labels(metrics: dict[str, Any]) -> None:
    bare_metrics = {name: metrics[name] for name in ("landmarks", "unlabelled", "notes")}
    assert metrics_text.build_metric_tables(bare_metrics) == ()
    assert metrics_text.build_metric_curves(bare_metrics) == ()
    assert [name for name, _, _ in metrics_text.list_headline_numbers(bare_metrics)] == [
        "Verdict",
        "Landmarks to trust",
    ]
    assert "backward error" not in dict(metrics_text.list_landmark_facts(bare_metrics)[0])


@pytest.mark.parametrize(
    ("spec", "words"), [("inter_ocular", "between the eyes"), ("points:a,b", "between a and b")]
)
def test_normalizers_are_described_in_words(spec: str, words: str) -> None:
    assert words in metrics_text.describe_error_unit({"normaliser": spec})


def _add_inter_ocular_errors(metrics: dict[str, Any], normalizer: str) -> dict[str, Any]:
    """Return the metrics as if the points were 68 facial points.

    The authors' inter-ocular distance is half as long as the usual one, so errors are twice as large.
    """

    def scale_floats(value: Any, scale: float) -> Any:
        if isinstance(value, dict):
            return {key: scale_floats(entry, scale) for key, entry in value.items()}
        if isinstance(value, list):
            return [scale_floats(entry, scale) for entry in value]
        return value * scale if isinstance(value, float) else value

    keys = ("errors", "guessing", "headline", "stage1")
    eyes = {
        name: {
            "normaliser": spec,
            "test_images_used": 7,
            **scale_floats({key: metrics[key] for key in keys}, scale),
        }
        for name, spec, scale in (
            ("eye_centers", "inter_ocular", 1.0),
            ("points_41_46", "points:right_eye_5,left_eye_4", 2.0),
        )
    }
    return metrics | {"normaliser": normalizer, "inter_ocular": eyes}


def test_both_inter_ocular_distances_are_named(metrics: dict[str, Any]) -> None:
    faces = _add_inter_ocular_errors(metrics, "inter_ocular")
    headline, guessing = metrics["headline"], metrics["guessing"]
    table = _find_table(faces, "Errors by inter-ocular distance")
    assert table.header == ("distance between", "forward", "guessing", "backward", "guessing")
    cells = _read_cells(table)
    for stage2, scale in (
        ("the centers of the eyes, Stage 2", 1),
        ("points 41 and 46 (the authors' program), Stage 2", 2),
    ):
        numbers = (headline["forward"]["error"], guessing["forward"])
        numbers += (headline["backward"]["error"], guessing["backward"])
        assert cells[stage2] == tuple(f"{scale * number:.2f}" for number in numbers)
    stage1 = next(row for row in metrics["stage1"]["errors"] if row["regressor"] == headline["regressor"])
    assert cells["points 41 and 46 (the authors' program), Stage 1"][2:] == (
        f"{2 * stage1['backward']:.2f}",
        f"{2 * metrics['stage1']['guessing']['backward']:.2f}",
    )
    # The table by number of images and the headline numbers also have errors by both distances.
    other_table = _find_table(
        faces, "Forward error by number of annotated images, % of the distance between points 41"
    )
    assert set(_read_cells(other_table)["guessing"]) == {f"{2 * guessing['forward']:.2f}"}
    explanations = {name: text for name, _, text in metrics_text.list_headline_numbers(faces)}
    numbers_by_points = (
        f"{2 * headline['backward']['error']:.2f} % (guessing: {2 * guessing['backward']:.2f} %)"
    )
    assert numbers_by_points in explanations["Backward error"]


def test_inter_ocular_errors_are_listed_beside_those_of_the_box(metrics: dict[str, Any]) -> None:
    faces = _add_inter_ocular_errors(metrics, "box")
    assert len(_find_table(faces, "Errors by inter-ocular distance").rows) == 4
    titles = [table.title for table in metrics_text.build_metric_tables(faces)]
    assert titles.count("Forward error by number of annotated images") == 1
    assert "points 41" not in " ".join(text for _, _, text in metrics_text.list_headline_numbers(faces))
    assert metrics["inter_ocular"] == {}  # The points of this run are not 68 facial points.
    assert not any("inter-ocular" in table.title for table in metrics_text.build_metric_tables(metrics))


def test_metrics_of_earlier_versions_are_shown_without_the_values_they_lack(metrics: dict[str, Any]) -> None:
    old_metrics = json.loads(json.dumps(metrics))
    del old_metrics["inter_ocular"], old_metrics["curves"], old_metrics["stage1"]["guessing"]
    for row in old_metrics["stage1"]["errors"]:
        del row["backward_found"]
    for direction in ("forward", "backward"):
        for key in ("guessing", "guessing_by_point", "guessing_cumulative"):
            del old_metrics["headline"][direction][key]
    for row in old_metrics["by"]["pose"].values():
        del row["guessing_forward"], row["guessing_backward"]
    assert "Stage 1 backward, found only" not in _find_table(old_metrics, "Stage 1 and Stage 2").header
    assert _read_cells(_find_table(old_metrics, "Stage 1 and Stage 2"))["guessing"][2] == "none"
    assert _find_table(old_metrics, "Error by pose").header == ("pose", "images", "forward", "backward")
    assert [len(curve.lines) for curve in metrics_text.build_metric_curves(old_metrics)] == [1, 1, 2]
    assert "backward error of guessing" not in dict(metrics_text.list_landmark_facts(old_metrics)[0])
