"""Define the command `selfmark demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_result, print_table, stdout
from selfmark.cli.options import Device


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for data, run and report.")] = Path(
        "runs/demo"
    ),
    device: Device = "auto",
) -> None:
    """Run the whole pipeline on generated images; this takes a few minutes on two CPU cores."""
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.demo.demo_run import run_demo

    with ProgressDisplay(stdout) as display:
        result = run_demo(output, device, display)
    rows = (
        ("discovered landmarks", f"{result.forward:.2f}", f"{result.backward:.2f}"),
        ("mean shape", f"{result.mean_shape:.2f}", f"{result.mean_shape_backward:.2f}"),
    )
    print_table(("", "forward", "backward"), rows, "selfmark demo: error in % of the object's size")
    print_result(f"report: {result.report}")
    result.require_useful()
