"""The command `selfmark evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_note, print_result, print_table, stderr
from selfmark.cli.options import Device, RunFolder, parse_settings
from selfmark.cli.path_checks import check_files, check_inputs, check_run


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
        typer.Option(help="Points the regressors are fitted on; default: a random half of --labels."),
    ] = None,
    train_images: Annotated[
        list[str] | None, typer.Option(help="Images of --train-labels; default: the same as IMAGES.")
    ] = None,
    normalizer: Annotated[
        str,
        typer.Option(
            help="Length that errors are divided by: box, bbox, inter_ocular, shoulders, torso, side or "
            "points:A,B."
        ),
    ] = "",
    by: Annotated[
        list[str] | None, typer.Option(help="Break the errors down by this annotation field; repeatable.")
    ] = None,
    detectors: Annotated[
        str, typer.Option(help="Also measure the precision of these keypoint detectors, e.g. orb,sift.")
    ] = "",
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
    check_run(run)
    check_inputs([*images, *(train_images or ())])
    check_files(labels, train_labels)

    from selfmark.cli.progress import ProgressDisplay
    from selfmark.detector import Detector
    from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
    from selfmark.report import metrics_text
    from selfmark.report.run_report import build_report
    from selfmark.report.verdict_text import describe_verdict
    from selfmark.run.folder import Run

    with ProgressDisplay(stderr) as display:
        metrics = evaluate_run(
            run,
            EvaluationInputs(images, labels, train_images, train_labels),
            EvaluationOptions(
                normalizer,
                by or [],
                [name.strip() for name in detectors.split(",") if name.strip()],
                parse_settings(overrides),
            ),
            output,
            device,
            lambda done, of: display(
                {"event": "progress", "stage": "predicting", "round": 0, "done": done, "of": of}
            ),
        )
    for table in (*metrics_text.metric_tables(metrics), metrics_text.trust_table(metrics)):
        print_table(table.header, table.rows, table.title)
    checks = metrics["unlabelled"]
    print_result(f"verdict: {checks['verdict']}. {describe_verdict(checks)}")
    for note in metrics["notes"]:
        print_note(f"note: {note}")
    for sentence in metrics["advice"]:
        print_note(f"advice: {sentence}")
    page = build_report(Run.open(run), Detector.load(run), output)
    folder = output if output is not None else run
    print_result(f"metrics: {folder / 'metrics.json'}")
    print_result(f"report:  {page}")
