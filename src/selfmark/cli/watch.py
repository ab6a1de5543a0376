"""Define the command `selfmark watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_result
from selfmark.cli.options import Browser, Port
from selfmark.errors import require_package


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder; the run may still be training.")],
    port: Port = 0,
    browser: Browser = True,
) -> None:
    """Watch a run on a page in your browser: stage, time left, losses, and landmarks after each step."""
    require_web_packages()
    from selfmark.watch_page.watch_server import watch_run

    watch_run(run, port, browser, print_result)


def require_web_packages() -> None:
    """Raise if a package that serves pages is not installed."""
    for package in ("fastapi", "uvicorn"):
        require_package(package, "'selfmark[web]'")
