"""Define the command `selfmark correct`."""

from __future__ import annotations

from typing import Annotated

import typer

from selfmark.cli.console import print_result
from selfmark.cli.options import Browser, Device, Port, RunFolder
from selfmark.cli.path_checks import check_inputs, require_readable_model
from selfmark.cli.watch import require_web_packages


def correct(
    run: RunFolder,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Images to choose from, or the new location of the run's images.", show_default=False
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", help="Number of images to correct.", min=1)] = 20,
    max_images: Annotated[int, typer.Option(help="Maximum number of images to choose from.", min=1)] = 400,
    port: Port = 0,
    browser: Browser = True,
    device: Device = "auto",
) -> None:
    """Correct landmarks by dragging them on a page in your browser; 'refine' learns from the corrections."""
    require_web_packages()
    require_readable_model(run)
    check_inputs(images)

    from selfmark.naming.server import PageOptions, correct_landmarks

    options = PageOptions(port, browser, device, print_result)
    correct_landmarks(run, images or [], count, max_images, options)
