"""The command `selfmark predict`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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
    RunFolder,
    parse_regions,
    parse_settings,
)
from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.detector import Prediction


def predict(
    run: RunFolder,
    inputs: Annotated[
        list[str], typer.Argument(help="Images, folders, glob patterns, lists, COCO files or videos.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.")] = Path(
        "predictions"
    ),
    format: Annotated[
        str,
        typer.Option(
            help="csv, parquet, coco, coco-results, cvat, dlc, dlc-h5, label-studio, lightning-pose, nwb, "
            "sleap, sleap-analysis or ultralytics."
        ),
    ] = "csv",
    every: Every = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    draw: Annotated[
        bool, typer.Option("--draw", help="Also write a labeled copy of each video: VIDEO_landmarks.mp4.")
    ] = False,
    trail: Annotated[
        float, typer.Option(help="Length of the trails in labeled videos, in seconds; 0 for none.", min=0)
    ] = 1.0,
    batch: Annotated[int, typer.Option(help="Images per forward pass.", min=1)] = 64,
    runtime: Annotated[
        str, typer.Option(help="torch, or onnx or onnx-int8 after 'selfmark export'.")
    ] = "torch",
    mapped: Annotated[
        bool, typer.Option("--mapped", help="Output your own points, as learned by 'selfmark map'.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting of --find-animals, e.g. min_contrast=20."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Predict the landmarks of new images or videos, in pixels of those images."""
    from selfmark.cli.progress import CountDisplay, CountedPredictions, describe_unreadable_images
    from selfmark.config import Config, override
    from selfmark.draw.labeled_video import draw_videos, labeled_video_paths
    from selfmark.export import get_writer
    from selfmark.export.onnx_detector import load_detector
    from selfmark.mapping.mapped_detector import MappedDetector, load_mapping
    from selfmark.tracking.regions import locate_objects

    write = get_writer(format)
    detector = load_detector(run, runtime, device)
    if mapped:
        detector = MappedDetector(detector, load_mapping(run, detector))
    changes = {f"tracking.{name}": value for name, value in parse_settings(overrides).items()}
    tracking = override(Config(), changes).tracking
    regions, notes = parse_regions(boxes, crop, find_animals), list[str]()
    with CountDisplay(stderr, "finding animals", "frames") as display:
        refs = locate_objects(inputs, every, regions, tracking, display, notes.append)
    videos = labeled_video_paths(refs, output) if draw else {}
    with CountDisplay(stderr, "predicting", "images") as display:
        counted = CountedPredictions(detector.predict(refs, batch), len(refs), display)
        first = next(counted, None)  # Predict one batch before anything is written.
        if first is None:
            raise InputError(f"none of the images could be read (0 of {len(refs)})")
        try:
            output.mkdir(parents=True, exist_ok=True)
            predictions: Iterator[Prediction] = itertools.chain([first], counted)
            if videos:
                predictions = draw_videos(predictions, refs, detector.card, output, every, trail)
            path = write(predictions, detector.card, output)
        except OSError as error:
            raise InputError(f"cannot write to {output}: {error.strerror}") from error
    print_result(f"{counted.images} images, {display.rate:.1f} per second: {path}")
    for video in videos.values():
        print_result(f"labeled video: {video}")
    for note in (*notes, *describe_unreadable_images(refs, counted)):
        print_note(note)
