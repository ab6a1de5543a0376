"""Define the command `selfmark predict`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from selfmark.cli.console import print_note, print_result, stderr
from selfmark.cli.crop_note import note_missing_crop
from selfmark.cli.options import (
    Boxes,
    Crop,
    Device,
    Every,
    FindAnimals,
    RunFolder,
    Views,
    parse_regions,
    parse_settings,
)
from selfmark.cli.path_checks import check_inputs, check_models
from selfmark.errors import InputError, report_write_errors, suggest
from selfmark.run.output_folder import (
    output_folder,
    require_own_output,
    require_run_files_kept,
    require_same_model,
    require_written_by_selfmark,
)
from selfmark.wording import describe_count

if TYPE_CHECKING:
    from selfmark.config import Smoothing
    from selfmark.detector import Detector, Prediction
    from selfmark.draw.layout import Layout
    from selfmark.image_ref import ImageRef
    from selfmark.model.card import ModelCard

_DEFAULT_TRAIL = 1.0  # seconds


def predict(
    run: RunFolder,
    inputs: Annotated[
        list[str], typer.Argument(help="Images, folders, glob patterns, lists, COCO files or videos.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the result.")] = Path(
        "predictions"
    ),
    output_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="csv, parquet, coco, coco-results, cvat, dlc, dlc-h5, label-studio, lightning-pose, nwb, "
            "sleap, sleap-analysis or ultralytics.",
        ),
    ] = "csv",
    every: Every = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    views: Views = None,
    draw: Annotated[
        bool,
        typer.Option(
            "--draw",
            help="Also write labeled copies: of each video, as VIDEO_landmarks.mp4; of photos, in drawn/.",
        ),
    ] = False,
    trail: Annotated[
        float | None,
        typer.Option(
            help="Length of the trails in labeled videos, in seconds; 0 for none. Default: 1.",
            min=0,
            max=3600,
        ),
    ] = None,
    draw_text: Annotated[
        str, typer.Option(help="Text beside each drawn landmark: none, numbers or names.")
    ] = "none",
    legend: Annotated[
        bool, typer.Option("--legend", help="Draw a list of the landmarks with their scores.")
    ] = False,
    side_by_side: Annotated[
        bool,
        typer.Option(
            "--side-by-side",
            help="Put the original picture on the left of the labeled one. With --smooth, it shows the "
            "landmarks before smoothing.",
        ),
    ] = False,
    smooth: Annotated[
        str,
        typer.Option(
            help="Smooth the landmarks of videos over time: auto, kalman, median, savgol or none. Tables "
            "then also have speed and distance."
        ),
    ] = "none",
    min_trust: Annotated[
        float | None,
        typer.Option(help="Leave out landmarks with a lower trust than this, 0 to 1.", min=0, max=1),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images read and predicted at a time.", min=1)] = 64,
    runtime: Annotated[
        str, typer.Option(help="torch, or onnx or onnx-int8 after 'selfmark export'.")
    ] = "torch",
    mapped: Annotated[
        bool, typer.Option("--mapped", help="Output your own points, as learned by 'selfmark map'.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace results of another model, and files of other programs, in the output folder.",
        ),
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any setting of --find-animals, e.g. min_contrast=20, or of --smooth, e.g. "
            "smoothing.max_gap=1.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Predict the landmarks of new images or videos, in pixels of those images."""
    check_models(run)
    check_inputs(inputs)
    require_own_output(output, run)

    from selfmark.cli.progress import CountDisplay, CountedPredictions, describe_unreadable_images
    from selfmark.config import Config, override
    from selfmark.detector import detector_fingerprint
    from selfmark.draw.labeled_photos import FOLDER, draw_photos
    from selfmark.draw.labeled_video import draw_videos, list_labeled_video_paths
    from selfmark.evaluation.familiarity import warn_of_unfamiliar_images
    from selfmark.export import get_writer
    from selfmark.export.onnx_detector import load_detector
    from selfmark.export.result_record import RECORD, write_record
    from selfmark.images.input_files import require_inputs_kept
    from selfmark.mapping.mapped_detector import MappedDetector, load_mapping
    from selfmark.model.card import visible_landmarks
    from selfmark.multiview.view_boxes import parse_views
    from selfmark.multiview.view_detector import load_view_detector
    from selfmark.tracking.regions import Regions, locate_objects
    from selfmark.trajectories.smoothed_predictions import (
        check_smoothable,
        record_smoothing,
        smooth_predictions,
    )

    write = get_writer(output_format)
    if mapped and min_trust is not None:
        raise InputError("--min-trust cannot be used with --mapped, because mapped points have no trust")
    layout = _parse_layout(draw, draw_text, legend, side_by_side, trail)
    regions = parse_regions(boxes, crop, find_animals)
    given_views = parse_views(views) if views else ()
    view_detector = load_view_detector(run, given_views, lambda path: load_detector(path, runtime, device))
    if view_detector is not None and (mapped or regions != Regions()):
        raise InputError(f"{run} has views: leave out --mapped, --boxes, --crop and --find-animals")
    detector: Detector = view_detector or load_detector(run, runtime, device)
    note_missing_crop(run, regions)
    notes = list[str]()
    if min_trust is not None:
        detector.card = _hide_untrusted(detector.card, min_trust, run, notes.append)
    if mapped:
        detector = MappedDetector(detector, load_mapping(run, detector))
    model = detector_fingerprint(detector)
    used = {"guards": True, "tracking": find_animals > 0, "smoothing": smooth != "none"}
    config = override(Config(), _qualify_settings(overrides, used))
    smoothing = _parse_smoothing(smooth, config.smoothing)

    def check_outputs(images: Sequence[ImageRef]) -> None:
        output_files = _list_outputs(output, output_format, draw, images)
        require_inputs_kept(
            output_files, (*dict.fromkeys(ref.path for ref in images), *inputs, regions.boxes)
        )
        require_run_files_kept(output_files)
        if not overwrite:
            advice = "choose another folder with -o, or add --overwrite"
            require_same_model(output / RECORD, model, run, advice)
            require_written_by_selfmark(output_files, output / RECORD, advice)

    with CountDisplay(stderr, "finding animals", "frames") as display:
        refs = locate_objects(inputs, every, regions, config.tracking, display, notes.append, check_outputs)
    if smoothing is not None:
        check_smoothable(refs)
    parts = [(run, detector, refs)] if view_detector is None else view_detector.parts(run, refs)
    for part in parts:
        warning = warn_of_unfamiliar_images(*part, config.guards)
        if warning is not None:
            notes.append(warning)
    videos = list_labeled_video_paths(refs, output) if draw else {}
    photos = {ref.path for ref in refs if ref.frame is None} if draw else set()
    predicted = set[Path]()  # images and videos with at least one object in the results
    with CountDisplay(stderr, "predicting", "images") as display:
        counted = CountedPredictions(detector.predict(refs, batch), len(refs), display)
        first = next(counted, None)  # Predict one batch before anything is written.
        if first is None:
            raise InputError(f"none of the images could be read (0 of {len(refs)})")
        with report_write_errors(f"to {output}"), output_folder(output):
            check_outputs(refs)  # Another process may have written results in the meantime.
            predictions: Iterator[Prediction] = itertools.chain([first], counted)
            card = detector.card
            if smoothing is not None:
                shown = visible_landmarks(card)
                predictions = smooth_predictions(predictions, smoothing, shown, notes.append)
                card = record_smoothing(card, smoothing)
            predictions = _collect_paths(predictions, predicted)
            with ExitStack() as drawings:  # If writing fails, closing `drawn` removes the unfinished videos.
                if videos:
                    drawn = draw_videos(
                        predictions,
                        refs,
                        card,
                        output,
                        every,
                        _DEFAULT_TRAIL if trail is None else trail,
                        layout,
                    )
                    predictions = drawings.enter_context(closing(drawn))
                if photos:
                    predictions = draw_photos(predictions, refs, card, output, layout)
                path = write(predictions, card, output)
            write_record(output, model, run, output_format, card)
    print_result(f"{describe_count(counted.images, 'image')}, {display.rate:.1f} per second: {path}")
    for video, labeled_video in videos.items():
        if video in predicted:
            print_result(f"labeled video: {labeled_video}")
    if photos & predicted:
        print_result(f"labeled photos: {output / FOLDER}")
    for note in (*notes, *describe_unreadable_images(refs, counted, view_detector is not None)):
        print_note(note)


def _collect_paths(predictions: Iterable[Prediction], paths: set[Path]) -> Iterator[Prediction]:
    """Yield predictions unchanged, and add the paths of their images and videos to `paths`."""
    for prediction in predictions:
        paths.update(ref.path for ref in prediction.refs)
        yield prediction


def _list_outputs(output: Path, output_format: str, draw: bool, images: Sequence[ImageRef]) -> list[Path]:
    """Return the existing result files that may be replaced, and all labeled pictures that may be written.

    Args:
        output: Output folder.
        output_format: Format of the results.
        draw: Whether images and videos are also drawn.
        images: Images and frames of the inputs.
    """
    from selfmark.draw.labeled_photos import list_labeled_photo_paths
    from selfmark.draw.labeled_video import list_labeled_video_paths
    from selfmark.export import list_replaced_files

    output_files = list_replaced_files(output_format, output)
    if draw:
        output_files += list_labeled_photo_paths(images, output).values()
        output_files += list_labeled_video_paths(images, output).values()
    return output_files


def _qualify_settings(overrides: list[str] | None, used: Mapping[str, bool]) -> dict[str, Any]:
    """Return the settings of `--set` by dotted name; a name without a section belongs to `tracking`.

    Args:
        overrides: Settings as given by the user.
        used: Sections that predictions can use, and whether the other options make use of them.

    Raises:
        InputError: A setting has no effect on predictions.
    """
    settings = {
        name if "." in name else f"tracking.{name}": value
        for name, value in parse_settings(overrides).items()
    }
    for name in settings:
        section = name.partition(".")[0]
        if section not in used:
            raise InputError(
                f"--set {name} has no effect on predictions: give settings of tracking, smoothing or guards"
            )
        if not used[section]:
            option = {"tracking": "--find-animals", "smoothing": "--smooth"}[section]
            raise InputError(f"--set {name} belongs to {option}, which is missing: add it, or leave it out")
    return settings


def _parse_smoothing(method: str, settings: Smoothing) -> Smoothing | None:
    """Return the smoothing settings for a value of `--smooth`; None for no smoothing."""
    from selfmark.config import SmoothingMethod

    if method == "none":
        return None
    if method == "auto":
        return settings
    method_by_name: dict[str, SmoothingMethod] = {name: name for name in get_args(SmoothingMethod)}
    if method not in method_by_name:
        hint = suggest(method, method_by_name)
        raise InputError(f"--smooth must be auto, {', '.join(method_by_name)} or none, not '{method}'.{hint}")
    return replace(settings, method=method_by_name[method])


def _parse_layout(draw: bool, text: str, legend: bool, side_by_side: bool, trail: float | None) -> Layout:
    """Return the layout of labeled pictures: what they show besides the landmarks and their trails."""
    from selfmark.draw.layout import LabelText, Layout

    text_by_name: dict[str, LabelText] = {name: name for name in get_args(LabelText)}
    if text not in text_by_name:
        raise InputError(
            f"--draw-text must be {', '.join(text_by_name)}, not '{text}'.{suggest(text, text_by_name)}"
        )
    layout = Layout(text_by_name[text], legend, side_by_side)
    if (layout != Layout() or trail is not None) and not draw:
        raise InputError("--trail, --draw-text, --legend and --side-by-side have no effect without --draw")
    return layout


def _hide_untrusted(
    card: ModelCard, min_trust: float, run: Path, add_note: Callable[[str], None]
) -> ModelCard:
    """Return a card that also hides all landmarks with a trust below `min_trust`.

    Args:
        card: The detector's card.
        min_trust: Lowest trust of the landmarks to keep.
        run: Run folder, for messages.
        add_note: Called with a sentence that lists the newly hidden landmarks, or says that there are none.

    Raises:
        InputError: The card has no trust, or the trust of all visible landmarks is below `min_trust`.
    """
    from selfmark.model.card import untrusted_landmarks, visible_landmarks

    if not card.trust:
        raise InputError(
            f"{run} has no trust, because an earlier version of selfmark made it: leave out --min-trust, "
            "or make a new run with 'selfmark discover', which measures trust"
        )
    visible, untrusted = visible_landmarks(card), untrusted_landmarks(card, min_trust)
    left_out = [index for index in visible if index in untrusted]
    if len(left_out) == len(visible):
        highest = max(card.trust[index] for index in visible)
        raise InputError(
            f"no landmark of {run} has a trust of at least {min_trust:g}; the highest is {highest:.4g}"
        )
    listed = ", ".join(f"{card.names[index]} ({card.trust[index]:.2f})" for index in left_out)
    add_note(
        f"left out {len(left_out)} of {len(visible)} landmarks with a trust below {min_trust:g}: {listed}"
        if left_out
        else f"all landmarks have a trust of at least {min_trust:g}; none was left out"
    )
    return replace(card, hidden=tuple(sorted({*card.hidden, *left_out})))
