"""Figures, tables and curves made from metrics.json, for the report and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from selfmark.model.card import GOOD_TRUST
from selfmark.report.sections import ReportCurves, ReportTable
from selfmark.report.verdict_text import describe_agreement, describe_verdict

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
"""The definitions of the inter-ocular distance of 68 facial points, in words."""


def error_unit(metrics: Metrics) -> str:
    """Return the length that errors are percentages of, in words."""
    spec = str(metrics["normaliser"])
    for name, entry in metrics.get("inter_ocular", {}).items():
        if entry["normaliser"] == spec:
            return f"the distance between {EYES[name]}"
    pair = spec.removeprefix("points:").replace(",", " and ")
    return _UNITS.get(spec, f"the distance between {pair}")


def headline_numbers(metrics: Metrics) -> list[tuple[str, str, str]]:
    """Return the headline numbers as (name, value, explanation)."""
    numbers: list[tuple[str, str, str]] = []
    checks = metrics.get("unlabelled") or {}
    if "verdict" in checks:  # metrics of earlier versions lack it
        numbers.append(("Verdict", str(checks["verdict"]), describe_verdict(checks)))
    if metrics.get("verification"):
        second = metrics["verification"]
        value = _percent(second["forward"], 2)
        explanation = f"{_guessing(second['guessing_forward'])} {describe_agreement(second)}"
        numbers.append(("Error against a second run", value, explanation))
    if "headline" in metrics:
        headline, guessing = metrics["headline"], metrics["guessing"]
        numbers += [
            (
                "Forward error",
                _percent(headline["forward"]["error"], 2),
                f"{_guessing(guessing['forward'])} Distance between the annotated points and their "
                f"prediction from the landmarks, in percent of {error_unit(metrics)}. Guessing is predicting "
                f"the mean shape.{_other_eyes(metrics, 'forward')}",
            ),
            (
                "Backward error",
                _percent(headline["backward"]["error"], 2),
                f"{_guessing(guessing['backward'])} Distance between the landmarks and their prediction from "
                "the annotated points. It is small if no landmark moves at random."
                f"{_other_eyes(metrics, 'backward')}",
            ),
            (
                "Points found by Stage 1",
                f"{metrics['stage1']['points_per_image']:.1f}",
                f"Mean number of the {len(metrics['landmarks'])} landmarks that Stage 1 finds in a test "
                "image. The final detector always places all of them.",
            ),
        ]
    if checks:
        trusted = sum(value >= GOOD_TRUST for value in checks["trust"])
        numbers.append(
            (
                "Landmarks to trust",
                f"{trusted} of {len(checks['trust'])}",
                "Landmarks whose error is expected to be at most half of that of guessing. No labels are "
                "needed.",
            )
        )
    return numbers


def _guessing(error: float | None) -> str:
    return f"Guessing: {_percent(error, 2)}."


def _other_eyes(metrics: Metrics, direction: str) -> str:
    """Return a sentence with the error by the other inter-ocular distance, if errors are divided by one."""
    return "".join(
        f" In percent of {error_unit(other)}: {_percent(other['headline'][direction]['error'], 2)} "
        f"(guessing: {_percent(other['guessing'][direction], 2)})."
        for other in _other_definitions(metrics)
    )


def _other_definitions(metrics: Metrics) -> list[Metrics]:
    """Return the metrics by the other inter-ocular distance, if errors are divided by one of the two."""
    entries: Metrics = metrics.get("inter_ocular", {})  # metrics of earlier versions lack it
    specs = [entry["normaliser"] for entry in entries.values()]
    if metrics["normaliser"] not in specs:
        return []
    others = (entry for entry in entries.values() if entry["normaliser"] != metrics["normaliser"])
    return [{**metrics, **entry} for entry in others]


def metric_tables(metrics: Metrics) -> tuple[ReportTable, ...]:
    """Return all results of an evaluation with labels as tables; empty without labels."""
    if "headline" not in metrics:
        return ()
    return (
        _errors(metrics, "forward"),
        _errors(metrics, "backward"),
        *(
            _errors(other, direction, f", % of {error_unit(other)}")
            for other in _other_definitions(metrics)
            for direction in ("forward", "backward")
        ),
        _stages(metrics),
        *_inter_ocular(metrics),
        *(_breakdown(metrics, field) for field in metrics["by"]),
        *_hits(metrics),
        _oks(metrics),
        *_precision(metrics),
    )


def metric_curves(metrics: Metrics) -> tuple[ReportCurves, ...]:
    """Return the cumulative error curves of the paper: the mean error of the n best points, for every n."""
    if "headline" not in metrics:
        return ()
    headline = metrics["headline"]
    by_point = tuple(
        ReportCurves(
            title=f"{name} error, best points first",
            note=f"Mean error of the n best {points}. If the curve stays low and rises only at the end, all "
            "but a few are good.",
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
    within = ReportCurves(
        title="Percentage of points by error",
        note="Percentage of the points in all test images whose error is at most the value on the x axis.",
        x_label=f"error, % of {error_unit(metrics)}",
        y_label="points, %",
        lines=tuple(
            (direction.capitalize(), thresholds, 100 * np.array(headline[direction]["within"], np.float64))
            for direction in ("forward", "backward")
        ),
    )
    return (*by_point, within)


def landmark_facts(metrics: Metrics) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return (name, value) pairs about each landmark."""
    checks = metrics["unlabelled"]
    names = metrics["landmarks"]
    rows = []
    for index in range(len(names)):
        row = [
            ("error under deformation", _percent(checks["deformation"][index], 1)),
            ("follows deformations", _fraction(checks["stable"][index])),
            ("agrees with its mirror partner", _fraction(checks["symmetric"][index])),
            ("cluster separation", _number(checks["separation"][index])),
        ]
        if "purity" in checks:  # metrics of earlier versions lack it
            row += [
                ("looks like itself more than like another landmark", _fraction(checks["purity"][index])),
                ("keeps its place among the others", _fraction(checks["constellation"][index])),
            ]
        if "expected_error" in checks:
            row += [
                ("error expected from its looks, of guessing", _number(checks["appearance_error"][index])),
                ("expected error, of guessing", _number(checks["expected_error"][index])),
            ]
        if "headline" in metrics:
            backward = metrics["headline"]["backward"]
            row.append(("backward error", _percent(backward["by_point"][index], 1)))
            if "guessing_by_point" in backward:
                row.append(("backward error of guessing", _percent(backward["guessing_by_point"][index], 1)))
            matched = [
                point
                for point, landmark in zip(metrics["points"], metrics["matched"], strict=True)
                if landmark == index
            ]
            row.append(("nearest annotated point", matched[0] if matched else "none"))
        rows.append(tuple(row))
    return tuple(rows)


def trust_table(metrics: Metrics) -> ReportTable:
    """Return the landmarks from most to least trusted, by the checks that need no labels."""
    checks = metrics["unlabelled"]
    return ReportTable(
        title="Which landmarks to trust",
        note=f"From {checks['images']:,} images, without labels. Trust is 1 minus the error that is expected "
        "of the landmark, as a fraction of that of guessing.",
        header=(
            "landmark",
            "trust",
            "follows deformations",
            "error expected from its looks",
            "found by Stage 1",
        ),
        rows=tuple(
            (
                f"{index} {metrics['landmarks'][index]}",
                _number(checks["trust"][index]),
                _fraction(checks["stable"][index]),
                _number(checks.get("appearance_error", checks["unexplained"])[index]),
                _fraction(checks["found"][index]),
            )
            for index in checks["order"]
        ),
    )


# --- Tables ---------------------------------------------------------------------------------------------


def _errors(metrics: Metrics, direction: str, unit: str = "") -> ReportTable:
    """Return a table with a row for each number of annotated images and a column for each regressor.

    Args:
        metrics: The metrics.
        direction: `forward` or `backward`.
        unit: Addition to the title, if there is another table with the same errors in another unit.
    """
    cells: dict[int, dict[str, str]] = {}
    for row in metrics["errors"]:
        value = row[direction]
        text = _number(value["mean"]) + (f" ± {_number(value['spread'])}" if value["draws"] > 1 else "")
        cells.setdefault(row["images"], {})[row["regressor"]] = text
    regressors = list(next(iter(cells.values())))
    target = "annotated points" if direction == "forward" else "discovered landmarks"
    draws = max(row[direction]["draws"] for row in metrics["errors"])
    spread = f"; ± is the standard deviation over {draws} random samples of them" if draws > 1 else ""
    guess = _number(metrics["guessing"][direction])
    return ReportTable(
        title=f"{direction.capitalize()} error by number of annotated images{unit}",
        note=f"Error of the {target} in percent of {error_unit(metrics)}, on "
        f"{metrics['test_images_used']:,} test images. The first column is the number of annotated training "
        f"images that the linear rule was fitted on{spread}. "
        "'No bias' is the rule in the paper. The authors' program uses ridge 0.1 on LS3D, and on CelebA "
        f"0.001 forward and 0.1 backward. Guessing the mean gives {guess}.",
        header=("images", *regressors),
        rows=(
            *(
                (f"{images:,}", *(row[regressor] for regressor in regressors))
                for images, row in cells.items()
            ),
            ("guessing", *(guess for _ in regressors)),
        ),
    )


def _stages(metrics: Metrics) -> ReportTable:
    stage2 = {row["regressor"]: row for row in metrics["errors"] if row["all"]}
    stage1, guessing = metrics["stage1"], metrics["stage1"].get("guessing", {})
    has_found = "backward_found" in guessing  # metrics of earlier versions lack it
    found_note = (
        "'Found only' leaves out the landmarks that Stage 1 did not find; each landmark has its own rule, "
        "fitted where it was found. "
        if has_found
        else ""
    )
    rows = [
        (
            row["regressor"],
            _number(row["forward"]),
            _number(stage2[row["regressor"]]["forward"]["mean"]),
            _number(row["backward"]),
            *([_number(row["backward_found"])] if has_found else []),
            _number(stage2[row["regressor"]]["backward"]["mean"]),
        )
        for row in stage1["errors"]
    ]
    rows.append(
        (
            "guessing",
            *(_number(metrics["guessing"]["forward"]) for _ in (1, 2)),
            _number(guessing.get("backward")),
            *([_number(guessing["backward_found"])] if has_found else []),
            _number(metrics["guessing"]["backward"]),
        )
    )
    return ReportTable(
        title="Stage 1 and Stage 2",
        note=f"Stage 1 finds {stage1['points_per_image']:.1f} of the {len(metrics['landmarks'])} landmarks "
        "in a test image. Missing landmarks are filled in by singular value thresholding in training images "
        f"and by their mean in test images, where they are easy to predict. {found_note}Stage 2, the final "
        f"detector, always places all of them. Errors are in percent of {error_unit(metrics)}.",
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


def _inter_ocular(metrics: Metrics) -> Iterable[ReportTable]:
    """Yield the errors of 68 facial points by both definitions of the inter-ocular distance."""
    entries: Metrics = metrics.get("inter_ocular", {})
    if not entries:
        return
    regressor = metrics["headline"]["regressor"]
    rows = []
    for name, entry in entries.items():
        # The regressor of the headline is not measured in Stage 1 if `evaluation.ridges` lacks it.
        stages = [
            ("Stage 1", row, entry["stage1"]["guessing"])
            for row in entry["stage1"]["errors"]
            if row["regressor"] == regressor
        ]
        stage2 = {key: entry["headline"][key]["error"] for key in ("forward", "backward")}
        for stage, errors, guessing in (*stages, ("Stage 2", stage2, entry["guessing"])):
            cells = [_number(table[key]) for key in ("forward", "backward") for table in (errors, guessing)]
            rows.append((f"{EYES[name]}, {stage}", *cells))
    images = next(iter(entries.values()))["test_images_used"]
    yield ReportTable(
        title="Errors by inter-ocular distance",
        note="In percent of the distance between the eyes, by two definitions: between the centers of the "
        "six points of each eye, as elsewhere in selfmark, and between points 41 and 46, counted from 0, as "
        f"in the authors' program. On {images:,} test images, with the regressor '{regressor}', fitted on "
        "all annotated training images. Missing landmarks of Stage 1 are filled in.",
        header=("distance between", "forward", "guessing", "backward", "guessing"),
        rows=tuple(rows),
    )


def _breakdown(metrics: Metrics, field: str) -> ReportTable:
    groups = metrics["by"][field]
    has_guessing = all("guessing_backward" in row for row in groups.values())  # absent in earlier versions
    keys = ["forward", "backward"]
    if has_guessing:
        keys = ["forward", "guessing_forward", "backward", "guessing_backward"]
    return ReportTable(
        title=f"Error by {field}",
        note=f"Errors in percent of {error_unit(metrics)}. The linear rule is "
        f"'{metrics['headline']['regressor']}', fitted on all annotated training images."
        + (" Guessing is predicting the mean shape of the training images." if has_guessing else ""),
        header=(field, "images", *("guessing" if "guessing" in key else key for key in keys)),
        rows=tuple(
            (value, f"{row['images']:,}", *(_number(row[key]) for key in keys))
            for value, row in groups.items()
        ),
    )


def _hits(metrics: Metrics) -> Iterable[ReportTable]:
    for kind, explanation in (
        (
            "raw",
            "Each annotated point is matched to the landmark that is nearest to it in the training images. "
            "Each landmark is used at most once (Hungarian algorithm); a point without a landmark is a miss.",
        ),
        ("regressed", "Points that the linear rule predicts from the landmarks."),
    ):
        measured = metrics[kind]
        parts = next(iter(measured.values()))["by_part"]
        yield ReportTable(
            title=f"Points hit, {kind} landmarks",
            note=f"{explanation} In percent.",
            header=("part", *measured),
            rows=(
                *((part, *(_number(row["by_part"][part], 1) for row in measured.values())) for part in parts),
                ("all points", *(_number(row["average"], 1) for row in measured.values())),
            ),
        )


def _oks(metrics: Metrics) -> ReportTable:
    measured = metrics["oks"]
    return ReportTable(
        title="Average precision and recall over OKS, raw landmarks",
        note="The COCO measure for poses: AP and AR averaged over the OKS thresholds 0.5 to 0.95, and at "
        "single thresholds.",
        header=tuple(measured),
        rows=(tuple(f"{value:.3f}" for value in measured.values()),),
    )


def _precision(metrics: Metrics) -> Iterable[ReportTable]:
    if metrics["precision"]:
        yield ReportTable(
            title="Precision of generic keypoints",
            note="Percentage of the detected keypoints that lie on an annotated point: within a tenth of the "
            "distance between the eyes or, for objects without eyes, of the length that errors are divided "
            "by.",
            header=("detector", "precision, %"),
            rows=tuple((name, _number(value, 1)) for name, value in metrics["precision"].items()),
        )


def _number(value: float | None, digits: int = 2) -> str:
    return "none" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"


def _percent(value: float | None, digits: int = 0) -> str:
    return "none" if value is None or not np.isfinite(value) else f"{value:.{digits}f} %"


def _fraction(value: float | None) -> str:
    return _percent(None if value is None else 100 * value)
