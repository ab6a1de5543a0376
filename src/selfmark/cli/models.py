"""Define the commands `selfmark models`, `selfmark models add` and `selfmark models save`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_result
from selfmark.cli.options import RunFolder

app = typer.Typer(help="Detectors to start from with 'selfmark discover --start-from'.")


@app.callback(invoke_without_command=True)
def list_detectors(context: typer.Context) -> None:
    """List the detectors that 'selfmark discover --start-from' finds by name."""
    if context.invoked_subcommand is not None:
        return
    from selfmark.model_library import describe_model, library_folder, list_models

    for model in list_models():
        print_result(f"{model.name:<16}{describe_model(model.card)}")
        print_result(f"{'':<16}{model.folder}")
    print_result(f"add others with 'selfmark models add FILE'; they are stored in {library_folder()}")


@app.command()
def add(
    origin: Annotated[
        str, typer.Argument(help="File that 'selfmark models save' wrote, or its https address.")
    ],
    sha256: Annotated[str, typer.Option(help="Checksum of the file; required for an address.")] = "",
    name: Annotated[str, typer.Option(help="Name of the detector; default: the name of the file.")] = "",
) -> None:
    """Install a detector from a file or an address and verify its checksum."""
    from selfmark.model_library import install_model

    folder = install_model(origin, name, sha256)
    print_result(f"installed: {folder}")
    print_result(f"use it with: selfmark discover IMAGES --start-from {folder.name}")


@app.command()
def save(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(help="File to write, NAME.safetensors.")],
) -> None:
    """Write a detector as one file that others can add, and print its checksum."""
    from selfmark.model_library import pack_model

    checksum = pack_model(run, file)
    print_result(f"detector: {file}")
    print_result(f"sha256:   {checksum}")
