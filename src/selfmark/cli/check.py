"""Define the command `selfmark check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfmark.cli.console import print_note, print_result, stderr
from selfmark.cli.options import (
    Boxes,
    Crop,
    Device,
    Every,
    FindAnimals,
    Recipe,
    Views,
    parse_landmark_count,
    parse_regions,
    parse_settings,
)
from selfmark.cli.path_checks import check_inputs
from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.inspection.image_check import ImageCheck
    from selfmark.run_plan import RunInputs, RunOptions


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
    recipe: Recipe = "auto",
    every: Every = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    views: Views = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Any setting: NAME=VALUE.")] = None,
    device: Device = "auto",
) -> None:
    """Look at images before training: what the network will see, how long training will take, and advice."""
    check_inputs(inputs)

    from selfmark.images.sources import list_images
    from selfmark.inspection.image_check import require_free_output
    from selfmark.inspection.run_estimate import describe_duration
    from selfmark.multiview.view_boxes import parse_views, require_views_inside_all
    from selfmark.multiview.view_runs import plan_view
    from selfmark.run.guarded_files import require_no_links
    from selfmark.run_plan import RunInputs, RunOptions
    from selfmark.tracking.regions import Regions

    request = RunInputs(inputs, every, parse_regions(boxes, crop, find_animals))
    options = RunOptions(
        landmarks=parse_landmark_count(landmarks),
        preset=preset,
        settings=parse_settings(overrides),
        device=device,
        features=features,
        recipe=recipe,
    )
    if not views:
        _print(_check(request, options, output))
        return
    if request.regions != Regions():
        raise InputError("--views cannot be combined with --boxes, --crop or --find-animals")
    parsed = parse_views(views)
    require_views_inside_all(parsed, list_images(inputs, every))
    for view in parsed:
        require_no_links(output / view.name, below=output)
        require_free_output(output / view.name)
    seconds = 0.0
    for view in parsed:
        regions, settings = plan_view(view, options.settings)
        result = _check(
            request._replace(regions=regions), replace(options, settings=settings), output / view.name
        )
        print_result(f"view {view.name}:")
        _print(result)
        seconds += result.estimate.seconds
    print_result(f"all views together: about {describe_duration(seconds)}")


def _check(request: RunInputs, options: RunOptions, output: Path) -> ImageCheck:
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.inspection.image_check import check_images

    with ProgressDisplay(stderr) as display:
        return check_images(
            request,
            options,
            output,
            lambda step, done, total: display(
                {"event": "progress", "stage": step, "round": 0, "done": done, "of": total}
            ),
        )


def _print(result: ImageCheck) -> None:
    for sentence in result.summary:
        print_result(sentence)
    for sentence in result.warnings:
        print_note(f"warning: {sentence}", style="yellow")
    for sentence in result.advice:
        print_result(f"advice: {sentence}")
    for picture in result.pictures:
        print_result(f"picture: {picture}")
