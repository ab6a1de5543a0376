"""Turn metrics.json into numbers, tables and curves for the report and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from selfmark.model.card import GOOD_TRUST
from selfmark.report.sections import ReportCurves, ReportTable
from selfmark.report.verdict_text import describe_agreement, describe_verdict
from selfmark.wording import describe_count

Metrics = Mapping[str, Any]

_UNITS = {
    "box": "the size of the box around an object's annotated points",
    "bbox": "the size of an object's annotated box",
    "inter_ocular": "the distance between the eyes",
    "shoulders": "the distance between the shoulders",
    "torso": "the length of the torso",
    "side": "the side of the image",
}


EYES = {
    "eye_centers": "the centers of the eyes",
    "points_41_46": "points 41 and 46 (the authors' program)",
}
"""Places between which the inter-ocular distance of 68 facial points is measured, for its two definitions."""


def describe_error_unit(metrics: Metrics) -> str:
    """Describe the length that errors are divided by."""
    spec = str(metrics["normaliser"])
    for name, entry in metrics.get("inter_ocular", {}).items():
        if entry["normaliser"] == spec:
            return f"the distance between {EYES[name]}"
    pair = spec.removeprefix("points:").replace(",", " and ")
    return _UNITS.get(spec, f"the distance between {pair}")


def list_headline_numbers(metrics: Metrics) -> list[tuple[str, str, str]]:
    """Return the most important results as (name, value, explanation)."""
    numbers: list[tuple[str, str, str]] = []
    checks = metrics.get("unlabelled") or {}
    if "verdict" in checks:  # files of earlier versions have no verdict
        numbers.append(("Verdict", str(checks["verdict"]), describe_verdict(checks)))
    if metrics.get("verification"):
        second = metrics["verification"]
        value = _format_percent(second["forward"], 2)
        explanation = f"{_describe_guessing(second['guessing_forward'])} {describe_agreement(second)}"
        numbers.append(("Error against a second run", value, explanation))
    if "headline" in metrics:
        headline, guessing = metrics["headline"], metrics["guessing"]
        numbers += [
            (
                "Forward error",
                _format_percent(headline["forward"]["error"], 2),
                f"{_describe_guessing(guessing['forward'])} Distance between the annotated points and their "
                f"prediction from the landmarks, in percent of {describe_error_unit(metrics)}. Guessing "
                f"predicts the mean shape.{_describe_other_definition(metrics, 'forward')}",
            ),
            (
                "Backward error",
                _format_percent(headline["backward"]["error"], 2),
                f"{_describe_guessing(guessing['backward'])} Distance between the landmarks and their "
                "prediction from the annotated points. It is small if no landmark moves at random."
                f"{_describe_other_definition(metrics, 'backward')}",
            ),
            (
                "Points found by Stage 1",
                f"{metrics['stage1']['points_per_image']:.1f}",
                f"Mean number of landmarks that Stage 1 finds in a test image, of "
                f"{len(metrics['landmarks'])}. The final detector always places all of them.",
            ),
        ]
    if checks:
        num_trusted = sum(value >= GOOD_TRUST for value in checks["trust"])
        numbers.append(
            (
                "Landmarks to trust",
                f"{num_trusted} of {len(checks['trust'])}",
                f"Landmarks with a trust of at least {GOOD_TRUST:g}. Their expected error is at most half "
                "the error of guessing. Trust is computed without labels.",
            )
        )
    return numbers


def _describe_guessing(error: float | None) -> str:
    """Describe the error of guessing."""
    return f"Guessing: {_format_percent(error, 2)}."


def _describe_other_definition(metrics: Metrics, direction: str) -> str:
    """Describe the errors with the other definition of the inter-ocular distance; empty if there is none."""
    sentences = []
    for other in _list_other_definitions(metrics):
        error = _format_percent(other["headline"][direction]["error"], 2)
        guessing = _format_percent(other["guessing"][direction], 2)
        sentences.append(f" In percent of {describe_error_unit(other)}: {error} (guessing: {guessing}).")
    return "".join(sentences)


def _list_other_definitions(metrics: Metrics) -> list[Metrics]:
    """Return the metrics with the other definition of the inter-ocular distance.

    The result is empty if the normalizer is not an inter-ocular distance of 68 facial points.
    """
    entries: Metrics = metrics.get("inter_ocular", {})  # files of earlier versions have no such entries
    specs = [entry["normaliser"] for entry in entries.values()]
    if metrics["normaliser"] not in specs:
        return []
    other_entries = (entry for entry in entries.values() if entry["normaliser"] != metrics["normaliser"])
    return [{**metrics, **entry} for entry in other_entries]


def build_metric_tables(metrics: Metrics) -> tuple[ReportTable, ...]:
    """Return the results of an evaluation with labels as tables; empty if there were no labels."""
    if "headline" not in metrics:
        return ()
    return (
        _build_error_table(metrics, "forward"),
        _build_error_table(metrics, "backward"),
        *(
            _build_error_table(other, direction, f", % of {describe_error_unit(other)}")
            for other in _list_other_definitions(metrics)
            for direction in ("forward", "backward")
        ),
        _build_stage_table(metrics),
        *_build_inter_ocular_table(metrics),
        *(_build_group_table(metrics, field) for field in metrics["by"]),
        *_build_hit_tables(metrics),
        _build_oks_table(metrics),
        *_build_precision_table(metrics),
    )


def build_metric_curves(metrics: Metrics) -> tuple[ReportCurves, ...]:
    """Return the mean error of the best n points, and the percentage of points up to each error, as curves.

    The result is empty if there were no labels.
    """
    if "headline" not in metrics:
        return ()
    headline = metrics["headline"]
    by_point = tuple(
        ReportCurves(
            title=f"{name} error, best points first",
            note=f"Mean error of the best n {points}. If the curve stays low and rises only at the end, only "
            "a few points are bad.",
            x_label=f"number of {points}",
            y_label="mean error, %",
            lines=tuple(
                (label, np.arange(1, len(line) + 1, dtype=np.float64), np.array(line, np.float64))
                for label, line in (
                    (name, headline[name.lower()]["cumulative"]),
                    ("Guessing", headline[name.lower()].get("guessing_cumulative", ())),
                )
                if line
            ),
        )
        for name, points in (("Forward", "annotated points"), ("Backward", "discovered landmarks"))
    )
    thresholds = np.array(headline["thresholds"], np.float64)
    within_curves = ReportCurves(
        title="Percentage of points by error",
        note="Percentage of the points in all test images whose error is at most the value on the x axis.",
        x_label=f"error, % of {describe_error_unit(metrics)}",
        y_label="points, %",
        lines=tuple(
            (direction.capitalize(), thresholds, 100 * np.array(headline[direction]["within"], np.float64))
            for direction in ("forward", "backward")
        ),
    )
    return (*by_point, within_curves)


def list_landmark_facts(metrics: Metrics) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return (name, value) pairs about each landmark."""
    checks = metrics["unlabelled"]
    names = metrics["landmarks"]
    rows = []
    for index in range(len(names)):
        row = [
            ("error under deformation", _format_percent(checks["deformation"][index], 1)),
            ("follows deformations", _format_fraction(checks["stable"][index])),
            ("agrees with its mirror partner", _format_fraction(checks["symmetric"][index])),
            ("cluster separation", _format_number(checks["separation"][index])),
        ]
        if "purity" in checks:  # files of earlier versions lack this check
            row += [
                (
                    "looks more like itself than like another landmark",
                    _format_fraction(checks["purity"][index]),
                ),
                (
                    "keeps its place among the other landmarks",
                    _format_fraction(checks["constellation"][index]),
                ),
            ]
        if "expected_error" in checks:
            row += [
                (
                    "error if found by appearance (guessing: 1)",
                    _format_number(checks["appearance_error"][index]),
                ),
                ("expected error (guessing: 1)", _format_number(checks["expected_error"][index])),
            ]
        if "headline" in metrics:
            backward = metrics["headline"]["backward"]
            row.append(("backward error", _format_percent(backward["by_point"][index], 1)))
            if "guessing_by_point" in backward:
                row.append(
                    ("backward error of guessing", _format_percent(backward["guessing_by_point"][index], 1))
                )
            matched = [
                point
                for point, landmark in zip(metrics["points"], metrics["matched"], strict=True)
                if landmark == index
            ]
            row.append(("matched annotated point", matched[0] if matched else "none"))
        rows.append(tuple(row))
    return tuple(rows)


def build_trust_table(metrics: Metrics) -> ReportTable:
    """Return a table of the landmarks and their label-free checks, from most to least trusted."""
    checks = metrics["unlabelled"]
    return ReportTable(
        title="Which landmarks to trust",
        note=f"From {describe_count(checks['images'], 'image')}, without labels. Errors are fractions of the "
        "error of guessing. Trust is 1 minus the expected error of the landmark, and less if Stage 1 found "
        "it in few images.",
        header=(
            "landmark",
            "trust",
            "follows deformations",
            "error if found by appearance",
            "found by Stage 1",
        ),
        rows=tuple(
            (
                f"{index} {metrics['landmarks'][index]}",
                _format_number(checks["trust"][index]),
                _format_fraction(checks["stable"][index]),
                _format_number(checks.get("appearance_error", checks["unexplained"])[index]),
                _format_fraction(checks["found"][index]),
            )
            for index in checks["order"]
        ),
    )


# --- Tables ---------------------------------------------------------------------------------------------


def _build_error_table(metrics: Metrics, direction: str, unit: str = "") -> ReportTable:
    """Return a table with a row for each number of annotated images and a column for each regressor.

    Args:
        metrics: The metrics.
        direction: `forward` or `backward`.
        unit: Addition to the title, if another table shows the same errors in another unit.
    """
    cells: dict[int, dict[str, str]] = {}
    for row in metrics["errors"]:
        value = row[direction]
        text = _format_number(value["mean"])
        if value["draws"] > 1:
            text += f" ± {_format_number(value['spread'])}"
        cells.setdefault(row["images"], {})[row["regressor"]] = text
    regressors = list(next(iter(cells.values())))
    target = "annotated points" if direction == "forward" else "discovered landmarks"
    draws = max(row[direction]["draws"] for row in metrics["errors"])
    spread = (
        f"; ± is the standard deviation over {draws} random samples of training images" if draws > 1 else ""
    )
    guess = _format_number(metrics["guessing"][direction])
    return ReportTable(
        title=f"{direction.capitalize()} error by number of annotated images{unit}",
        note=f"Error of the {target} in percent of {describe_error_unit(metrics)}, on "
        f"{metrics['test_images_used']:,} test images. The first column is the number of annotated training "
        f"images that the linear rule was fitted on{spread}. "
        "'No bias' is the rule of the paper. The authors' program uses ridge 0.1 on LS3D. On CelebA, it uses "
        f"ridge 0.001 forward and 0.1 backward. Guessing the mean gives {guess}.",
        header=("images", *regressors),
        rows=(
            *(
                (f"{images:,}", *(row[regressor] for regressor in regressors))
                for images, row in cells.items()
            ),
            ("guessing", *(guess for _ in regressors)),
        ),
    )


def _build_stage_table(metrics: Metrics) -> ReportTable:
    """Return a table that compares the errors of both stages, with a row for each regressor."""
    stage2 = {row["regressor"]: row for row in metrics["errors"] if row["all"]}
    stage1, guessing = metrics["stage1"], metrics["stage1"].get("guessing", {})
    has_found = "backward_found" in guessing  # files of earlier versions lack this error
    found_note = (
        "'Found only' leaves out the landmarks that Stage 1 did not find. The rule for each landmark is then "
        "fitted on the images in which the landmark was found. "
        if has_found
        else ""
    )
    rows = [
        (
            row["regressor"],
            _format_number(row["forward"]),
            _format_number(stage2[row["regressor"]]["forward"]["mean"]),
            _format_number(row["backward"]),
            *([_format_number(row["backward_found"])] if has_found else []),
            _format_number(stage2[row["regressor"]]["backward"]["mean"]),
        )
        for row in stage1["errors"]
    ]
    # The annotated points are the same for both stages, and so is the forward error of guessing.
    rows.append(
        (
            "guessing",
            *(_format_number(metrics["guessing"]["forward"]) for _ in (1, 2)),
            _format_number(guessing.get("backward")),
            *([_format_number(guessing["backward_found"])] if has_found else []),
            _format_number(metrics["guessing"]["backward"]),
        )
    )
    return ReportTable(
        title="Stage 1 and Stage 2",
        note=f"Stage 1 finds {stage1['points_per_image']:.1f} of the {len(metrics['landmarks'])} landmarks "
        "in a test image. Missing landmarks are filled in by singular value thresholding in training images, "
        "and by their mean in test images. Landmarks at their mean are easy to predict. "
        f"{found_note}Stage 2, the final detector, always places all landmarks. Errors are in percent of "
        f"{describe_error_unit(metrics)}.",
        header=(
            "regressor",
            "Stage 1 forward",
            "Stage 2 forward",
            "Stage 1 backward",
            *(["Stage 1 backward, found only"] if has_found else []),
            "Stage 2 backward",
        ),
        rows=tuple(rows),
    )


def _build_inter_ocular_table(metrics: Metrics) -> Iterable[ReportTable]:
    """Yield a table of the errors with both definitions of the inter-ocular distance of 68 facial points."""
    entries: Metrics = metrics.get("inter_ocular", {})
    if not entries:
        return
    regressor = metrics["headline"]["regressor"]
    rows = []
    for name, entry in entries.items():
        # Stage 1 is measured with this regressor only if `evaluation.ridges` contains its penalty.
        stages = [
            ("Stage 1", row, entry["stage1"]["guessing"])
            for row in entry["stage1"]["errors"]
            if row["regressor"] == regressor
        ]
        stage2 = {key: entry["headline"][key]["error"] for key in ("forward", "backward")}
        for stage, errors, guessing in (*stages, ("Stage 2", stage2, entry["guessing"])):
            cells = [
                _format_number(table[key]) for key in ("forward", "backward") for table in (errors, guessing)
            ]
            rows.append((f"{EYES[name]}, {stage}", *cells))
    images = next(iter(entries.values()))["test_images_used"]
    yield ReportTable(
        title="Errors by inter-ocular distance",
        note="Errors in percent of the distance between the eyes. It has two definitions: between the "
        "centers of the six points of each eye, as elsewhere in selfmark, and between points 41 and 46, "
        f"counted from 0, as in the authors' program. Measured on {images:,} test images with the regressor "
        f"'{regressor}', fitted on all annotated training images. Missing landmarks of Stage 1 are filled "
        "in.",
        header=("distance between", "forward", "guessing", "backward", "guessing"),
        rows=tuple(rows),
    )


def _build_group_table(metrics: Metrics, field: str) -> ReportTable:
    """Return a table of the errors for each value of a field."""
    groups = metrics["by"][field]
    # Files of earlier versions lack the errors of guessing.
    has_guessing = all("guessing_backward" in row for row in groups.values())
    keys = ["forward", "backward"]
    if has_guessing:
        keys = ["forward", "guessing_forward", "backward", "guessing_backward"]
    return ReportTable(
        title=f"Error by {field}",
        note=f"Errors in percent of {describe_error_unit(metrics)}. The linear rule is "
        f"'{metrics['headline']['regressor']}', fitted on all annotated training images."
        + (" Guessing is predicting the mean shape of the training images." if has_guessing else ""),
        header=(field, "images", *("guessing" if "guessing" in key else key for key in keys)),
        rows=tuple(
            (value, f"{row['images']:,}", *(_format_number(row[key]) for key in keys))
            for value, row in groups.items()
        ),
    )


def _build_hit_tables(metrics: Metrics) -> Iterable[ReportTable]:
    for kind, explanation in (
        (
            "raw",
            "Each annotated point is matched to the landmark that is nearest to it in the training images. "
            "Each landmark is used at most once (Hungarian algorithm). A point without a landmark is a miss.",
        ),
        ("regressed", "The linear rule predicts the annotated points from the landmarks."),
    ):
        measured = metrics[kind]
        parts = next(iter(measured.values()))["by_part"]
        yield ReportTable(
            title=f"Points hit, {kind} landmarks",
            note=f"{explanation} The table shows the percentage of hits.",
            header=("part", *measured),
            rows=(
                *(
                    (part, *(_format_number(row["by_part"][part], 1) for row in measured.values()))
                    for part in parts
                ),
                ("all points", *(_format_number(row["average"], 1) for row in measured.values())),
            ),
        )


def _build_oks_table(metrics: Metrics) -> ReportTable:
    measured = metrics["oks"]
    return ReportTable(
        title="Average precision and recall over OKS, raw landmarks",
        note="The measure of COCO for poses. AP and AR are means over OKS thresholds; AP 0.5 is AP at the "
        "threshold 0.5.",
        header=tuple(measured),
        rows=(tuple(f"{value:.3f}" for value in measured.values()),),
    )


def _build_precision_table(metrics: Metrics) -> Iterable[ReportTable]:
    if metrics["precision"]:
        yield ReportTable(
            title="Precision of generic keypoints",
            note="Percentage of the detected keypoints that are near an annotated point. Near means within a "
            "tenth of the distance between the eyes. If this distance is not known for all objects, it means "
            "within a tenth of the length that errors are divided by.",
            header=("detector", "precision, %"),
            rows=tuple((name, _format_number(value, 1)) for name, value in metrics["precision"].items()),
        )


def _format_number(value: float | None, digits: int = 2) -> str:
    return "none" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"


def _format_percent(value: float | None, digits: int = 0) -> str:
    return "none" if value is None or not np.isfinite(value) else f"{value:.{digits}f} %"


def _format_fraction(value: float | None) -> str:
    return _format_percent(None if value is None else 100 * value)
