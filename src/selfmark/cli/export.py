"""Define the command `selfmark export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfmark.cli.console import print_result
from selfmark.cli.options import RunFolder
from selfmark.cli.path_checks import check_models, check_output
from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.export.onnx_export import Precision


def export(
    run: RunFolder,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX file.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="With --onnx: also write an 8-bit model, faster but less accurate.")
    ] = False,
    fp16: Annotated[
        bool, typer.Option("--fp16", help="With --onnx: also write a half-precision model of half the size.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the model; default: the model folder of RUN."),
    ] = None,
) -> None:
    """Export the trained detector, or that of each view, to the format of another runtime."""
    if not onnx:
        raise InputError("no format chosen: add --onnx")
    check_models(run)
    check_output(output, run)

    from selfmark.export.onnx_export import export_onnx
    from selfmark.run.files import view_folders

    requested: dict[Precision, bool] = {"float32": True, "float16": fp16, "int8": int8}
    precisions = [precision for precision, wanted in requested.items() if wanted]
    views = view_folders(run)
    for part in views or [run]:
        target = output / part.name if views and output is not None else output
        for path in export_onnx(part, precisions, target):
            print_result(f"exported: {path}")
