"""The command `selfmark check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_note, print_result, stderr
from selfmark.cli.options import (
    Boxes,
    Crop,
    Device,
    Every,
    FindAnimals,
    parse_landmark_count,
    parse_regions,
    parse_settings,
)
from selfmark.cli.path_checks import check_inputs


def check(
    inputs: Annotated[
        list[str],
        typer.Argument(help="Folders, glob patterns, images, text lists, COCO JSON files or videos."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the contact sheets and check.json.")
    ] = Path("check"),
    landmarks: Annotated[
        str | None,
        typer.Option("--landmarks", "-k", help="Number of landmarks to discover (K), or auto."),
    ] = None,
    preset: Annotated[str, typer.Option(help="auto, paper, fast or tiny.")] = "auto",
    features: Annotated[str | None, typer.Option(help="Pretrained features, as for 'discover'.")] = None,
    every: Every = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Any setting: NAME=VALUE.")] = None,
    device: Device = "auto",
) -> None:
    """Look at images before training: what the network will see, how long it will take, and advice."""
    check_inputs(inputs)

    from selfmark.cli.progress import ProgressDisplay
    from selfmark.inspection.image_check import check_images
    from selfmark.run_plan import RunInputs, RunOptions

    request = RunInputs(inputs, every, parse_regions(boxes, crop, find_animals))
    options = RunOptions(
        landmarks=parse_landmark_count(landmarks),
        preset=preset,
        settings=parse_settings(overrides),
        device=device,
        features=features,
    )
    with ProgressDisplay(stderr) as display:
        result = check_images(
            request,
            options,
            output,
            lambda step, done, total: display(
                {"event": "progress", "stage": step, "round": 0, "done": done, "of": total}
            ),
        )
    for sentence in result.summary:
        print_result(sentence)
    for sentence in result.warnings:
        print_note(f"warning: {sentence}", style="yellow")
    for sentence in result.advice:
        print_result(f"advice: {sentence}")
    for picture in result.pictures:
        print_result(f"picture: {picture}")
