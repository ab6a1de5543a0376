"""Define the command `selfmark reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_note, print_result, stdout
from selfmark.cli.options import Device, parse_settings
from selfmark.errors import InputError
from selfmark.run.output_folder import require_own_output


def reproduce(
    tables: Annotated[
        list[str],
        typer.Argument(
            help="Tables and figures of the paper by name; 'all'; or 'list' to see the names.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None, typer.Option(help="Folder with one folder per data set: celeba, ls3d and so on.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for training runs, measurements and tables.")
    ] = Path("reproduced"),
    preset: Annotated[str, typer.Option(help="paper, fast or tiny.")] = "paper",
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Skip the parts whose data set is missing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be trained and estimate its cost.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change any setting: NAME=VALUE. It overrides the settings of the tables."
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Reproduce tables and figures, with the paper's numbers alongside; finished parts are not repeated."""
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.paper.reproduction import harness

    settings = parse_settings(overrides)
    options = harness.ReproductionOptions(preset, settings, device, allow_missing)
    if tables == ["list"]:
        for name, place, title in harness.list_experiments():
            print_result(f"{name:<18} {place:<21} {title}")
        return
    if dry_run:
        for line in harness.preview_plan(tables, data, options):
            print_result(line)
        return
    harness.select_experiments(tables)  # Report unknown names before missing data.
    if data is None:
        raise InputError("no folder of data sets is given: add --data FOLDER")
    require_own_output(output)
    try:
        paths = harness.reproduce_tables(
            tables, data, output, options, print_result, open_listener=lambda: ProgressDisplay(stdout)
        )
    except KeyboardInterrupt:
        print_note("stopped; run the same command to continue")
        raise typer.Exit(130) from None
    for path in paths:
        print_result(f"written: {path}")
