"""The command `selfmark predict`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
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
    RunFolder,
    parse_regions,
    parse_settings,
)
from selfmark.cli.path_checks import check_inputs, check_model
from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.detector import Prediction
    from selfmark.model.card import ModelCard


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
    min_trust: Annotated[
        float | None,
        typer.Option(help="Leave out landmarks with a lower trust than this, 0 to 1.", min=0, max=1),
    ] = None,
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
    check_model(run)
    check_inputs(inputs)

    from selfmark.cli.progress import CountDisplay, CountedPredictions, describe_unreadable_images
    from selfmark.config import Config, override
    from selfmark.draw.labeled_video import draw_videos, labeled_video_paths
    from selfmark.export import get_writer
    from selfmark.export.onnx_detector import load_detector
    from selfmark.mapping.mapped_detector import MappedDetector, load_mapping
    from selfmark.tracking.regions import locate_objects

    write = get_writer(format)
    if mapped and min_trust is not None:
        raise InputError("--min-trust cannot be used with --mapped, because mapped points have no trust")
    detector = load_detector(run, runtime, device)
    notes = list[str]()
    if min_trust is not None:
        detector.card = _hide_untrusted(detector.card, min_trust, run, notes.append)
    if mapped:
        detector = MappedDetector(detector, load_mapping(run, detector))
    changes = {f"tracking.{name}": value for name, value in parse_settings(overrides).items()}
    tracking = override(Config(), changes).tracking
    regions = parse_regions(boxes, crop, find_animals)
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


def _hide_untrusted(
    card: ModelCard, min_trust: float, run: Path, print_line: Callable[[str], None]
) -> ModelCard:
    """Return the card with all landmarks hidden whose trust is below `min_trust`.

    Args:
        card: The detector's card.
        min_trust: Lowest trust of the landmarks to keep.
        run: Run folder, for messages.
        print_line: Receives a sentence that says which landmarks were hidden.

    Raises:
        InputError: Trust was not measured, or no visible landmark has this trust.
    """
    from selfmark.model.card import untrusted_landmarks, visible_landmarks

    if not card.trust:
        raise InputError(
            f"{run} has no trust, because an earlier version of selfmark made it: leave out --min-trust, "
            "or make a new run with 'selfmark discover', which measures it"
        )
    visible, untrusted = visible_landmarks(card), untrusted_landmarks(card, min_trust)
    left_out = [index for index in visible if index in untrusted]
    if len(left_out) == len(visible):
        highest = max(card.trust[index] for index in visible)
        raise InputError(
            f"no landmark of {run} has a trust of at least {min_trust:g}; the highest is {highest:.4g}"
        )
    listed = ", ".join(f"{card.names[index]} ({card.trust[index]:.2f})" for index in left_out)
    print_line(
        f"left out {len(left_out)} of {len(visible)} landmarks with a trust below {min_trust:g}: {listed}"
        if left_out
        else f"all landmarks have a trust of at least {min_trust:g}; none was left out"
    )
    return replace(card, hidden=tuple(sorted({*card.hidden, *left_out})))
