"""Define the command `selfmark name`."""

from __future__ import annotations

from typing import Annotated

import typer

from selfmark.cli.console import print_result
from selfmark.cli.options import Browser, Device, Port, RunFolder
from selfmark.cli.watch import require_web_packages


def name(
    run: RunFolder,
    images: Annotated[
        list[str] | None,
        typer.Argument(help="Images to show, or the new location of the run's images.", show_default=False),
    ] = None,
    max_images: Annotated[int, typer.Option(help="Maximum number of images to show.", min=1)] = 400,
    port: Port = 0,
    browser: Browser = True,
    device: Device = "auto",
) -> None:
    """Name, color, hide, pair and connect landmarks on a page in your browser."""
    require_web_packages()
    from selfmark.naming.server import PageOptions, name_landmarks

    name_landmarks(run, images or [], max_images, PageOptions(port, browser, device, print_result))
