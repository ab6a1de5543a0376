"""Define the command `selfmark map`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_note, print_result, print_table
from selfmark.cli.options import Device, RunFolder
from selfmark.cli.path_checks import check_files, check_inputs, require_readable_model
from selfmark.wording import describe_count


def map_points(
    run: RunFolder,
    labels: Annotated[
        Path,
        typer.Option(help="Points of 1 to 50 images: COCO, DeepLabCut (CSV) or Label Studio (JSON)."),
    ],
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="The annotated images; default: the images that a COCO file names.", show_default=False
        ),
    ] = None,
    normalizer: Annotated[
        str,
        typer.Option(
            help="Name of the length that errors are divided by, such as bbox; 'selfmark evaluate --help' "
            "lists the names; default: depends on the labels."
        ),
    ] = "",
    device: Device = "auto",
) -> None:
    """Learn your own points from a few annotated images; 'predict --mapped' then outputs them."""
    require_readable_model(run)
    check_inputs(images)
    check_files(labels)

    from selfmark.mapping.learning import learn_map

    learned = learn_map(run, labels, images or [], normalizer, device)
    mapping = learned.mapping
    title = f"{describe_count(len(mapping.names), 'point')} from {describe_count(mapping.images, 'image')}"
    if mapping.error is not None:
        errors = ("" if error is None else f"{error:.2f}" for error in mapping.errors)
        print_table(("point", "error (%)"), zip(mapping.names, errors, strict=True), title)
        print_result(f"error on held-out images: {mapping.error:.2f} % of {mapping.normalizer}")
    else:
        print_result(title)
    for note in learned.notes:
        print_note(f"note: {note}")
    print_result(f"map: {learned.path}")
