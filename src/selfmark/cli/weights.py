"""Define the command `selfmark weights`."""

from __future__ import annotations

from typing import Annotated

import typer

from selfmark.cli.console import print_note, print_result


def weights(
    name: Annotated[str, typer.Argument(help="superpoint, r2d2, alike-t, alike-n, dinov2-s or dinov2-b.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Local weights file; default: download from the authors.")
    ] = None,
) -> None:
    """Install the weights of a keypoint detector or of features in the cache and verify their checksum."""
    from selfmark.weights_cache import install_weights, pop_license_notice

    notice = pop_license_notice(name)
    if notice:
        print_note(notice)
    print_result(f"installed: {install_weights(name, source)}")
