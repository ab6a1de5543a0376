"""Define the command `selfmark evaluate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfmark.cli.console import print_note, print_result, print_table, stderr
from selfmark.cli.crop_note import note_missing_crop
from selfmark.cli.options import (
    Boxes,
    Crop,
    Device,
    Every,
    FindAnimals,
    RunFolder,
    parse_regions,
    parse_settings,
)
from selfmark.cli.path_checks import check_files, check_inputs, check_output, require_finished_run
from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions


def evaluate(
    run: RunFolder,
    images: Annotated[
        list[str], typer.Argument(help="Images, folders, glob patterns, COCO files or videos.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Annotated points of the images: a COCO, DeepLabCut (CSV) or Label Studio (JSON) file. "
            "Without labels, only the label-free checks run."
        ),
    ] = None,
    train_labels: Annotated[
        Path | None,
        typer.Option(help="Labels to fit the regressors on; default: a random half of --labels."),
    ] = None,
    train_images: Annotated[
        list[str] | None, typer.Option(help="Images of --train-labels; default: the same as IMAGES.")
    ] = None,
    normalizer: Annotated[
        str,
        typer.Option(
            help="Length that errors are divided by: box (around the points), bbox (annotated box), "
            "inter_ocular, shoulders, torso, side (of the crop) or points:A,B; default: depends on the "
            "labels."
        ),
    ] = "",
    by: Annotated[
        list[str] | None, typer.Option(help="Break the errors down by this annotation field; repeatable.")
    ] = None,
    detectors: Annotated[
        str, typer.Option(help="Also measure the precision of these keypoint detectors, e.g. orb,sift.")
    ] = "",
    every: Every = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for metrics.json and the report; default: RUN."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of the evaluation, e.g. draws=3.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Evaluate a run: a trust score per landmark and, if labels are given, all metrics of the paper."""
    require_finished_run(run)
    check_inputs([*images, *(train_images or ())])
    check_files(labels, train_labels)
    check_output(output, run)

    from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions
    from selfmark.multiview.view_boxes import read_views
    from selfmark.tracking.regions import Regions

    regions = parse_regions(boxes, crop, find_animals)
    inputs = EvaluationInputs(images, labels, train_images, train_labels, every, regions)
    options = EvaluationOptions(
        normalizer,
        by or [],
        [name.strip() for name in detectors.split(",") if name.strip()],
        parse_settings(overrides),
    )
    views = read_views(run)
    if output is not None:
        for name in [view.name for view in views] or [""]:
            _require_free_report(output / name, run / name)
    if views and regions != Regions():
        raise InputError(f"{run} has views: leave out --boxes, --crop and --find-animals")
    for view in views:
        print_result(f"view {view.name}:")
        target = None if output is None else output / view.name
        _evaluate(run / view.name, replace(inputs, regions=Regions(crop=view.box)), options, target, device)
    if not views:
        note_missing_crop(run, regions)
        _evaluate(run, inputs, options, output, device)


def _require_free_report(output: Path, run: Path) -> None:
    """Raise if the report would be written through a link, or replace a file that selfmark did not write."""
    from selfmark.run.guarded_files import require_no_links
    from selfmark.run.output_folder import require_written_by_selfmark

    if output.resolve() != run.resolve():  # A run may replace its own report.
        require_no_links(output / "report", below=output)
        advice = "choose another folder with -o, or remove it"
        require_written_by_selfmark([output / "report" / "index.html"], output / "metrics.json", advice)


def _evaluate(
    run: Path, inputs: EvaluationInputs, options: EvaluationOptions, output: Path | None, device: str
) -> None:
    """Evaluate one run and print the result."""
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.evaluation.run_evaluation import evaluate_run
    from selfmark.evaluation.run_models import RunModels
    from selfmark.report import metrics_text
    from selfmark.report.run_report import build_report
    from selfmark.report.verdict_text import describe_verdict
    from selfmark.run.devices import select_device
    from selfmark.run.folder import Run

    with ProgressDisplay(stderr) as display:
        metrics = evaluate_run(
            run,
            inputs,
            options,
            output,
            device,
            lambda done, total: display(
                {"event": "progress", "stage": "predicting", "round": 0, "done": done, "of": total}
            ),
        )
    for table in (*metrics_text.build_metric_tables(metrics), metrics_text.build_trust_table(metrics)):
        print_table(table.header, table.rows, table.title)
    checks = metrics["unlabelled"]
    print_result(f"verdict: {checks['verdict']}. {describe_verdict(checks)}")
    for note in metrics["notes"]:
        print_note(f"note: {note}")
    for sentence in metrics["advice"]:
        print_note(f"advice: {sentence}")
    page = build_report(RunModels.open(Run.open(run), select_device(device)), output)
    folder = output if output is not None else run
    print_result(f"metrics: {folder / 'metrics.json'}")
    print_result(f"report:  {page}")
