"""Define the commands `selfmark datasets list`, `check` and `write`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfmark.cli.console import print_note, print_result, print_table, stderr
from selfmark.run.output_folder import require_own_output
from selfmark.wording import describe_count

app = typer.Typer(help="The paper's data sets, read from their official files.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the data set; see 'selfmark datasets list'.")]
Root = Annotated[Path, typer.Argument(help="Folder with the official files.")]


@app.command("list")
def list_datasets() -> None:
    """List the data sets that can be read and where to get them."""
    from selfmark.paper.datasets.dataset_registry import DATASETS

    for name, data in DATASETS.items():
        print_result(f"{name:<11}{data.title}")
        print_result(f"{'':<11}{data.source}")


@app.command()
def check(name: Name, root: Root) -> None:
    """Check which files of a data set are present and which are missing."""
    from selfmark.paper.datasets import layout_check as checks
    from selfmark.paper.datasets.dataset_registry import get_dataset_info, read_dataset

    rows = ((entry.expected, ", ".join(entry.existing) or "-") for entry in checks.check_layout(name, root))
    print_table(("file or folder", "found"), rows, get_dataset_info(name).title)
    print_result(f"source: {get_dataset_info(name).source}")
    dataset = read_dataset(name, root)
    counts = (
        (split, str(present), "-" if expected is None else str(expected))
        for split, present, expected in checks.count_images(dataset)
    )
    print_table(("split", "images", "expected"), counts)
    for note in (*dataset.notes, *checks.check_sample(dataset)):
        print_note(f"note: {note}")


@app.command()
def write(
    name: Name,
    root: Root,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for one file per split: train.json, test.json, ...")
    ],
    points: Annotated[
        Path | None,
        typer.Option(
            help="Use the points of a detector instead of the annotated ones: COCO .json, .csv, .npz or .npy."
        ),
    ] = None,
    boxes: Annotated[
        Path | None,
        typer.Option(help="Use the boxes of a detector: COCO .json, .csv, or a folder of YOLO .txt files."),
    ] = None,
    find_faces: Annotated[
        bool,
        typer.Option(
            "--find-faces", help="Find boxes with OpenCV's face detector, which is not very accurate."
        ),
    ] = False,
) -> None:
    """Write a data set as COCO files for 'discover' and 'evaluate'; images stay in place."""
    from selfmark.cli.progress import CountDisplay
    from selfmark.errors import InputError
    from selfmark.paper.datasets.dataset import require_replaceable, write_coco_dataset
    from selfmark.paper.datasets.dataset_registry import read_dataset
    from selfmark.paper.datasets.detections import replace_boxes, replace_points
    from selfmark.paper.datasets.face_finder import use_found_faces

    if boxes is not None and find_faces:
        raise InputError("--boxes and --find-faces cannot be combined: give one of them")
    require_own_output(output)
    require_replaceable(output, root, (points, boxes))
    dataset = read_dataset(name, root)
    # Replace boxes before points: the annotated points show which of several boxes belongs to an object.
    if boxes is not None:
        dataset = replace_boxes(dataset, boxes)
    if find_faces:
        with CountDisplay(stderr, "finding faces", "images") as display:
            dataset = use_found_faces(dataset, display)
    if points is not None:
        dataset = replace_points(dataset, points)
    write_coco_dataset(dataset, output)
    for split, objects in dataset.splits.items():
        print_result(
            f"{output / split}.json: {describe_count(len(objects), 'object')}, {len(dataset.names)} points"
        )
    settings = [f"--set {key}={value}" for key, value in dataset.settings.items()]
    if settings:
        print_result(f"the paper's settings for this data set: {' '.join(settings)}")
    for note in dataset.notes:
        print_note(f"note: {note}")
