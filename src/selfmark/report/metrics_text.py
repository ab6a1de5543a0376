"""metrics.json in words, tables and curves: what the page and the terminal both show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from selfmark.report.sections import ReportCurves, ReportTable

Metrics = Mapping[str, Any]

_WORDS_FOR = {
    "box": "the size of the box around an object's annotated points",
    "bbox": "the size of an object's annotated box",
    "inter_ocular": "the distance between the eyes",
    "shoulders": "the distance between the shoulders",
    "torso": "the length of the torso",
    "side": "the side of the image",
}


def error_unit(metrics: Metrics) -> str:
    """What errors are percentages of, in words."""
    spec = str(metrics["normaliser"])
    pair = spec.removeprefix("points:").replace(",", " and ")
    return _WORDS_FOR.get(spec, f"the distance between {pair}")


def headline_figures(metrics: Metrics) -> list[tuple[str, str, str]]:
    """Headline figures as (name, value, explanation)."""
    shown: list[tuple[str, str, str]] = []
    if "headline" in metrics:
        headline, guessing = metrics["headline"], metrics["guessing"]
        shown += [
            (
                "Forward error",
                f"{headline['forward']['error']:.2f} %",
                "How far a linear map from the discovered landmarks lands from the annotated points, in "
                f"percent of {error_unit(metrics)}; guessing the mean shape gives {guessing['forward']:.2f} %.",
            ),
            (
                "Backward error",
                f"{headline['backward']['error']:.2f} %",
                "The same from the annotated points to the discovered landmarks: low if no landmark wanders; "
                f"guessing their mean gives {guessing['backward']:.2f} %.",
            ),
            (
                "Points found by Stage 1",
                f"{metrics['stage1']['points_per_image']:.1f}",
                f"Landmarks per test image before the final detector, of {len(metrics['landmarks'])}.",
            ),
        ]
    if "unlabelled" in metrics:
        checks = metrics["unlabelled"]
        trusted = sum(value >= 0.5 for value in checks["trust"])
        shown.append(
            (
                "Landmarks to trust",
                f"{trusted} of {len(checks['trust'])}",
                "Those that stay on their spot in deformed and mirrored images and that Stage 1 keeps "
                "finding; no labels were needed to tell.",
            )
        )
    return shown


def metric_tables(metrics: Metrics) -> tuple[ReportTable, ...]:
    """Every figure of an evaluation with labels, as tables of text; empty without one."""
    if "headline" not in metrics:
        return ()
    return (
        _errors(metrics, "forward"),
        _errors(metrics, "backward"),
        _stages(metrics),
        *(_breakdown(metrics, field) for field in metrics["by"]),
        *_hits(metrics),
        _oks(metrics),
        *_precision(metrics),
    )


def metric_curves(metrics: Metrics) -> tuple[ReportCurves, ...]:
    """The paper's cumulative error curves: the mean error of the n best points, for every n."""
    if "headline" not in metrics:
        return ()
    headline = metrics["headline"]
    by_point = tuple(
        ReportCurves(
            title=f"{words} error, best points first",
            note=f"The mean error of the n best {what}. A curve that stays low and turns up only at its end "
            "means that all but a few are good.",
            x_label=f"{what} counted",
            y_label="mean error, %",
            lines=((words, np.arange(1, len(line) + 1, dtype=np.float64), np.array(line, np.float64)),),
        )
        for words, what, line in (
            ("Forward", "annotated points", headline["forward"]["cumulative"]),
            ("Backward", "discovered landmarks", headline["backward"]["cumulative"]),
        )
    )
    thresholds = np.array(headline["thresholds"], np.float64)
    within = ReportCurves(
        title="Share of points within an error",
        note="Of all points in all test images, how many are at least as good as the error along the axis.",
        x_label=f"error, % of {error_unit(metrics)}",
        y_label="share of points, %",
        lines=tuple(
            (direction.capitalize(), thresholds, 100 * np.array(headline[direction]["within"], np.float64))
            for direction in ("forward", "backward")
        ),
    )
    return (*by_point, within)


def landmark_facts(metrics: Metrics) -> tuple[tuple[tuple[str, str], ...], ...]:
    """What is known of each landmark, as (name, value) pairs; one tuple per landmark."""
    checks = metrics["unlabelled"]
    names = metrics["landmarks"]
    rows = []
    for index in range(len(names)):
        row = [
            ("moves under deformation", _percent(checks["deformation"][index], 1)),
            ("stays within reach", _share(checks["stable"][index])),
            ("agrees with its mirror partner", _share(checks["symmetric"][index])),
            ("separation of its cluster", _number(checks["separation"][index])),
        ]
        if "headline" in metrics:
            row.append(("backward error", _percent(metrics["headline"]["backward"]["by_point"][index], 1)))
            stands_for = [
                point
                for point, landmark in zip(metrics["points"], metrics["matched"], strict=True)
                if landmark == index
            ]
            row.append(("nearest annotated point", stands_for[0] if stands_for else "none"))
        rows.append(tuple(row))
    return tuple(rows)


def trust_table(metrics: Metrics) -> ReportTable:
    """Landmarks from the most to the least trusted, by the checks that need no labels."""
    checks = metrics["unlabelled"]
    return ReportTable(
        title="Which landmarks to trust",
        note=f"From {checks['images']:,} images, without labels. Trust is the share of deformations "
        "followed, times the share of images where left and right agree, times how often Stage 1 found the "
        "landmark compared with the one it found most often.",
        header=("landmark", "trust", "stays within reach", "left and right agree", "found by Stage 1"),
        rows=tuple(
            (
                f"{index} {metrics['landmarks'][index]}",
                _number(checks["trust"][index]),
                _share(checks["stable"][index]),
                _share(checks["symmetric"][index]),
                _share(checks["found"][index]),
            )
            for index in checks["order"]
        ),
    )


# --- one function a table -------------------------------------------------------------------------------


def _errors(metrics: Metrics, direction: str) -> ReportTable:
    """Rows: how many annotated images the regressor saw. Columns: regressors."""
    measured: dict[int, dict[str, str]] = {}
    for row in metrics["errors"]:
        value = row[direction]
        text = f"{value['mean']:.2f}" + (f" ± {value['spread']:.2f}" if value["draws"] > 1 else "")
        measured.setdefault(row["images"], {})[row["regressor"]] = text
    regressors = list(next(iter(measured.values())))
    target = "annotated points" if direction == "forward" else "discovered landmarks"
    return ReportTable(
        title=f"{direction.capitalize()} error by number of annotated images",
        note=f"Of the {target}, in percent of {error_unit(metrics)}, on {metrics['test_images_used']:,} test "
        "images. The regressor is fitted on so many annotated training images; ± is the spread over random "
        "draws of them. 'No bias' is the paper's regressor; its authors' program has ridge 0.1 on "
        "LS3D, 0.001 forward and 0.1 backward on CelebA. Guessing the mean gives "
        f"{metrics['guessing'][direction]:.2f}.",
        header=("images", *regressors),
        rows=tuple(
            (f"{images:,}", *(row[regressor] for regressor in regressors)) for images, row in measured.items()
        ),
    )


def _stages(metrics: Metrics) -> ReportTable:
    second = {row["regressor"]: row for row in metrics["errors"] if row["all"]}
    points = metrics["stage1"]["points_per_image"]
    return ReportTable(
        title="Stage 1 and Stage 2",
        note=f"Stage 1 finds {points:.1f} of the {len(metrics['landmarks'])} landmarks in a test image; gaps "
        "are completed by singular value thresholding in training images and by the mean in test images. "
        "Stage 2 always answers with all of them.",
        header=("regressor", "Stage 1 forward", "Stage 2 forward", "Stage 1 backward", "Stage 2 backward"),
        rows=tuple(
            (
                row["regressor"],
                f"{row['forward']:.2f}",
                f"{second[row['regressor']]['forward']['mean']:.2f}",
                f"{row['backward']:.2f}",
                f"{second[row['regressor']]['backward']['mean']:.2f}",
            )
            for row in metrics["stage1"]["errors"]
        ),
    )


def _breakdown(metrics: Metrics, field: str) -> ReportTable:
    return ReportTable(
        title=f"Error by {field}",
        note=f"With {metrics['headline']['regressor']}, fitted on all training images.",
        header=(field, "images", "forward", "backward"),
        rows=tuple(
            (value, f"{row['images']:,}", _number(row["forward"]), _number(row["backward"]))
            for value, row in metrics["by"][field].items()
        ),
    )


def _hits(metrics: Metrics) -> Iterable[ReportTable]:
    for kind, words in (
        (
            "raw",
            "Each annotated point is given the discovered landmark nearest to it on the training images, no "
            "landmark twice (Hungarian algorithm); a point left without one counts as missed.",
        ),
        ("regressed", "The points a linear map predicts from the discovered landmarks."),
    ):
        measured = metrics[kind]
        parts = next(iter(measured.values()))["by_part"]
        yield ReportTable(
            title=f"Share of points hit, {kind} landmarks",
            note=f"{words} In percent.",
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
        note="COCO's measure of pose estimation, thresholds 0.5 to 0.95, and at single ones.",
        header=tuple(measured),
        rows=(tuple(f"{value:.3f}" for value in measured.values()),),
    )


def _precision(metrics: Metrics) -> Iterable[ReportTable]:
    if metrics["precision"]:
        yield ReportTable(
            title="Precision of generic keypoints",
            note="Share of the keypoints a detector finds that lie on an annotated point, within a tenth of "
            "the distance between the eyes; for objects without eyes, of what errors are divided by.",
            header=("detector", "precision, %"),
            rows=tuple((name, f"{value:.1f}") for name, value in metrics["precision"].items()),
        )


def _number(value: float | None, digits: int = 2) -> str:
    return "none" if value is None or not np.isfinite(value) else f"{value:.{digits}f}"


def _percent(value: float | None, digits: int = 0) -> str:
    return "none" if value is None or not np.isfinite(value) else f"{value:.{digits}f} %"


def _share(value: float | None) -> str:
    return _percent(None if value is None else 100 * value)
