"""Define the command `selfmark refine`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfmark.cli.console import print_note, print_result, print_table
from selfmark.cli.options import Device, RunFolder, parse_settings
from selfmark.cli.path_checks import check_files, check_inputs, require_readable_model
from selfmark.errors import InputError
from selfmark.wording import describe_count

if TYPE_CHECKING:
    from selfmark.refinement.refine_run import RefinementResult


def refine(
    run: RunFolder,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="The corrected images; default: the images that a COCO file names.", show_default=False
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Corrected landmarks: COCO, DeepLabCut (CSV) or Label Studio (JSON); default: the "
            "corrections of 'selfmark correct'."
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Keep the refined detector even if it is worse on held-out images."),
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the original detector.")] = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: NAME=VALUE, e.g. refinement.folds=10.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Improve a detector with corrected landmarks; the original detector is kept."""
    require_readable_model(run)
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
    _print_refinement(run, refine_run(run, labels, images or [], device, force, settings, print_note))


def _print_refinement(run: Path, result: RefinementResult) -> None:
    errors = result.errors
    if errors is not None:
        rows = (
            (name, f"{before:.2f}", f"{after:.2f}")
            for name, (before, after) in zip(result.names, errors.landmarks.tolist(), strict=True)
            if not math.isnan(before)  # NaN: the landmark was neither corrected nor confirmed in any image
        )
        title = (
            f"{describe_count(result.points, 'point')} in {describe_count(result.images, 'image')}; "
            "errors in percent of the image side"
        )
        print_table(("landmark", "before", "after"), rows, title)
        print_result(f"error on held-out images: {errors.mean_before:.2f} -> {errors.mean_after:.2f} %")
        print_result(
            f"{describe_count(errors.moved, 'moved point')}: "
            f"{errors.moved_before:.2f} -> {errors.moved_after:.2f} %; "
            f"{describe_count(errors.confirmed, 'confirmed point')}: 0.00 -> {errors.confirmed_after:.2f} %"
        )
    for note in result.notes:
        print_note(f"note: {note}")
    if result.is_saved:
        print_result(f"refined detector: {run}; original: {result.original} (restore it with --undo)")
    else:
        print_result(
            "the detector was not changed, because the corrections do not help on held-out images: correct "
            "more images, or use --force"
        )
