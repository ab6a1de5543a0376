"""Define the command `selfmark compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_note, print_result, print_table
from selfmark.cli.options import Device, parse_settings
from selfmark.cli.path_checks import check_files, check_inputs
from selfmark.errors import TrainingError


def compare(
    images: Annotated[
        list[str], typer.Argument(help="Images, folders, glob patterns, COCO files or videos.")
    ],
    labels: Annotated[
        Path,
        typer.Option(help="Annotated points, to measure errors: a COCO, DeepLabCut or Label Studio file."),
    ],
    landmarks: Annotated[int, typer.Option("--landmarks", "-k", help="Number of landmarks.", min=1)] = 10,
    methods: Annotated[str, typer.Option(help="Methods to compare, separated by commas; default: all.")] = "",
    budget: Annotated[
        str,
        typer.Option(help="Training time of each method: 90s, 4min, 1h; auto: 30s on a CPU, 4min on a GPU."),
    ] = "auto",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the comparison; it can be resumed.")
    ] = Path("runs/compare"),
    label_images: Annotated[
        list[str] | None, typer.Option(help="Images of the labels; default: the same as IMAGES.")
    ] = None,
    train_labels: Annotated[
        Path | None,
        typer.Option(help="Labels to fit the regressors on; default: a random half of --labels."),
    ] = None,
    normalizer: Annotated[
        str,
        typer.Option(
            help="Name of the length that errors are divided by, such as bbox; 'selfmark evaluate --help' "
            "lists the names; default: depends on the labels."
        ),
    ] = "",
    preset: Annotated[str, typer.Option(help="Size of the network: auto, paper, fast or tiny.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of all methods.", min=0)] = 0,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, for all methods, e.g. images.size=128.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Compare discovery methods on the same images, with the same number of landmarks and training time."""
    check_inputs([*images, *(label_images or ())])
    check_files(labels, train_labels)

    from selfmark.comparison.comparison_page import TERMINAL_COLUMNS, table_cells
    from selfmark.comparison.comparison_plan import Comparison, parse_budget, parse_methods
    from selfmark.comparison.runner import find_devices, run_comparison
    from selfmark.run.devices import select_device

    comparison = Comparison(
        images=tuple(images),
        labels=labels,
        landmarks=landmarks,
        budget=parse_budget(budget, select_device(device).type),
        methods=parse_methods(methods),
        label_images=tuple(label_images or ()),
        train_labels=train_labels,
        normalizer=normalizer,
        preset=preset,
        seed=seed,
        settings=parse_settings(overrides),
    )

    def on_done(row: dict[str, object]) -> None:
        if row["failure"]:
            print_note(f"{row['method']} failed: {row['failure']}")
        else:
            print_note(f"{row['method']}: forward error {row['forward']:.2f} after {row['minutes']} minutes")

    try:
        rows = run_comparison(
            comparison,
            output,
            find_devices(device),
            lambda method, used_device: print_note(f"{method}: running on {used_device}"),
            on_done,
        )
    except KeyboardInterrupt:
        print_note("stopped; run the same command to continue")
        raise typer.Exit(130) from None
    print_table(
        TERMINAL_COLUMNS.values(),
        [table_cells(row, TERMINAL_COLUMNS) for row in rows],
        "Errors in percent; the page has more columns",
    )
    print_result(f"results: {output / 'compare.json'}")
    print_result(f"page:    {output / 'index.html'}")
    if all(row["failure"] for row in rows if row["method"] != "untrained"):
        raise TrainingError("all methods failed; the page says why")
