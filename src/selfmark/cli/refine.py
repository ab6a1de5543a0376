"""The command `selfmark refine`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfmark.cli.console import print_note, print_result, print_table
from selfmark.cli.options import Device, RunFolder, parse_settings
from selfmark.cli.path_checks import check_files, check_inputs, check_model
from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.refinement.refine_run import RefinementResult


def refine(
    run: RunFolder,
    images: Annotated[
        list[str] | None,
        typer.Argument(help="The corrected images; default: those named in a COCO file.", show_default=False),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Corrected landmarks: COCO, DeepLabCut (CSV) or Label Studio (JSON); default: those of "
            "'selfmark correct'."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Keep the result even if it is worse on images left out.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Put the original detector back.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: NAME=VALUE, e.g. refinement.folds=10.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Improve a detector with corrected landmarks; the original detector is kept."""
    check_model(run)
    if undo:
        from selfmark.refinement.refine_run import restore_original

        print_result(f"the original detector is back in {restore_original(run)}")
        return
    if labels is None:
        labels = run / "corrections" / "labels.json"
        if not labels.exists():
            raise InputError(f"nothing was corrected yet: correct some images with 'selfmark correct {run}'")
    check_inputs(images)
    check_files(labels)

    from selfmark.refinement.refine_run import refine_run

    settings = parse_settings(overrides)
    _print(run, refine_run(run, labels, images or [], device, force, settings, print_note))


def _print(run: Path, result: RefinementResult) -> None:
    errors = result.errors
    if errors is not None:
        rows = (
            (name, f"{before:.2f}", f"{after:.2f}")
            for name, (before, after) in zip(result.names, errors.landmarks.tolist(), strict=True)
            if before == before  # not NaN: the landmark was corrected or confirmed somewhere
        )
        title = f"{result.points} points in {result.images} images; errors in percent of the image side"
        print_table(("landmark", "before", "after"), rows, title)
        print_result(f"error on images left out: {errors.mean_before:.2f} -> {errors.mean_after:.2f} %")
        print_result(
            f"{errors.moved} moved points: {errors.moved_before:.2f} -> {errors.moved_after:.2f} %; "
            f"{errors.confirmed} confirmed points: 0.00 -> {errors.confirmed_after:.2f} %"
        )
    for note in result.notes:
        print_note(f"note: {note}")
    if result.is_saved:
        print_result(f"refined detector: {run}; original: {result.original} (back with --undo)")
    else:
        print_result(
            "the detector stays as it was, because the corrections do not help on images left out: correct "
            "more images, or use --force"
        )
