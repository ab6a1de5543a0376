"""Define the command `selfmark report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_result
from selfmark.cli.path_checks import require_finished_run


def report(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Rebuild the report of a finished run, or of each of its views."""
    require_finished_run(run)

    from selfmark.evaluation.run_models import RunModels
    from selfmark.report.run_report import build_report
    from selfmark.run.files import view_folders
    from selfmark.run.folder import Run

    for part in view_folders(run) or [run]:
        print_result(f"report: {build_report(RunModels.open(Run.open(part), 'cpu'))}")
