"""The command `selfmark watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_result
from selfmark.errors import require_package


def watch(
    run: Annotated[Path, typer.Argument(help="Run folder; the run may still be training.")],
    port: Annotated[int, typer.Option(help="Local port; 0: any free port.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Watch a run on a page in your browser: stage, time left, losses, and landmarks after each step."""
    require_web_packages()
    from selfmark.watch_page.watch_server import watch_run

    watch_run(run, port, browser, print_result)


def require_web_packages() -> None:
    """Raise unless the packages that serve pages are installed."""
    for package in ("fastapi", "uvicorn"):
        require_package(package, "'selfmark[web]'")
