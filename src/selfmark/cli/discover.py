"""Define the command `selfmark discover`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selfmark.cli.console import print_note, print_result, stdout
from selfmark.cli.observers import Observers, parse_observers
from selfmark.cli.options import (
    Boxes,
    Crop,
    Device,
    Every,
    FindAnimals,
    Recipe,
    Views,
    parse_landmark_count,
    parse_method,
    parse_regions,
    parse_settings,
)
from selfmark.cli.path_checks import check_inputs
from selfmark.errors import InputError

if TYPE_CHECKING:
    from selfmark.run.event_log import Event
    from selfmark.run.folder import Listener


def discover(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders, glob patterns, images, text lists, COCO JSON files or videos.", show_default=False
        ),
    ] = None,
    landmarks: Annotated[
        str | None,
        typer.Option("--landmarks", "-k", help="Number of landmarks to discover (K), or auto."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Run folder; default: runs/NAME, named after the first input."),
    ] = None,
    preset: Annotated[str, typer.Option(help="auto, paper, fast or tiny.")] = "auto",
    features: Annotated[
        str | None,
        typer.Option(
            help="Pretrained features: efficientnet-lite0 (default of auto), -lite1 or -lite2, dinov2-s, "
            "dinov2-b, onnx:FILE, or none."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="self-training, zero-shot for a result without training, or the method of another paper: "
            "mallis2020, equivariance, dve, zhang2018, jakab2018, lorenz2019 or autolink."
        ),
    ] = None,
    recipe: Recipe = "auto",
    start_from: Annotated[
        str,
        typer.Option(
            help="Start from the weights of a detector: a run folder, or a name of 'selfmark models'."
        ),
    ] = "",
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Train a second, shorter detector and report how far the two agree; default: on a GPU, if "
            "the preset is auto and there are enough images.",
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(
            help="Detector of the first keypoints: selfmark, orb, sift, superpoint, r2d2, alike-t, alike-n "
            "or file."
        ),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights file of --detector.")] = None,
    points: Annotated[
        Path | None,
        typer.Option(help="CSV file with the first keypoints (image,x,y); implies --detector file."),
    ] = None,
    temporal: Annotated[
        bool, typer.Option("--temporal", help="Pair nearby video frames by optical flow.")
    ] = False,
    every: Every = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    views: Views = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --output.")] = False,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: NAME=VALUE, e.g. M=50 or flip.test=false.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the training on a page in your browser.")
    ] = False,
    logger: Annotated[str | None, typer.Option(help="Also log to: tensorboard.")] = None,
    device: Device = "auto",
) -> None:
    """Discover landmarks in unlabeled images: train a detector and write a report."""
    check_inputs(inputs)

    from selfmark.cli.progress import ProgressDisplay
    from selfmark.discovery import discover as discover_landmarks
    from selfmark.multiview.view_boxes import parse_views, read_views
    from selfmark.multiview.view_runs import discover_views
    from selfmark.run.guarded_files import VIEWS_FILE
    from selfmark.run_plan import require_no_contradiction
    from selfmark.tracking.regions import Regions
    from selfmark.weights_cache import pop_license_notice

    observers = parse_observers(watch, logger)
    settings, count = parse_settings(overrides), parse_landmark_count(landmarks)
    if points is not None and detector not in (None, "file"):
        raise InputError(f"--detector {detector} has no effect with --points: leave out one of them")
    shortcuts: dict[str, Any] = {
        "keypoints.detector": "file" if points is not None else detector,
        "keypoints.weights": None if weights is None else str(weights),
        "keypoints.points_file": None if points is None else str(points),
        "temporal.enabled": True if temporal else None,
        "seed": seed,
    }
    arguments = {"K": landmarks, "method": method, "features.name": features, "verification.enabled": verify}
    require_no_contradiction(settings, shortcuts | arguments)  # before folders of views are created
    settings |= {name: value for name, value in shortcuts.items() if value is not None}
    default_detector = "superpoint" if preset == "paper" else ""
    notice = pop_license_notice(str(settings.get("keypoints.detector", default_detector)))
    if notice:
        print_note(notice)
    regions = parse_regions(boxes, crop, find_animals)
    parsed_views = parse_views(views) if views else ()
    has_views = bool(parsed_views) or (output is not None and resume and bool(read_views(output)))
    if has_views and regions != Regions():
        raise InputError("--views cannot be combined with --boxes, --crop or --find-animals")
    if has_views and output is None:
        raise InputError("--views needs --output, the folder for the runs of all views")
    recorder = _OutputRecorder()
    discover_run = partial(
        discover_landmarks,
        landmarks=count,
        preset=preset,
        device=device,
        features=features,
        method=parse_method(method),
        verify=verify,
        recipe=recipe,
        start_from=start_from,
    )

    def run(observers: Observers, output: Path | None, resume: bool, **options: Any) -> None:
        with ExitStack() as stack:
            notify_observers = observers.attach(stack, output if resume else None)
            display = stack.enter_context(ProgressDisplay(stdout))
            listener = _Listeners([display, recorder, notify_observers])
            discover_run(output=output, resume=resume, listener=listener, **options)

    try:
        if has_views:
            assert output is not None
            with ExitStack() as stack:
                # One watch page shows all views. The first event opens it.
                open_page = Observers(watch, None).attach(stack, output)

                def run_view(output: Path, **options: Any) -> None:
                    print_result(f"view {output.name}:")
                    open_page({"event": "view"})
                    run(parse_observers(False, logger), output, **options)

                shared_options = {
                    "images": [str(path) for path in inputs or []],
                    "--every": every,
                    "--set": {name: str(value) for name, value in sorted(settings.items())},
                    **{_OPTION_NAMES[name]: str(discover_run.keywords[name]) for name in _OPTION_NAMES},
                }
                folders = discover_views(
                    inputs or [], parsed_views, output, every, resume, settings, shared_options, run_view
                )
            for folder in folders:
                print_result(f"view {folder.name}: detector {folder}, report {folder}/report/index.html")
            return
        options = {"inputs": inputs or [], "every": every, "regions": regions, "settings": settings}
        run(observers, output, resume, **options)
    except KeyboardInterrupt:
        run_folder = output or recorder.output
        if has_views and output is not None and (output / VIEWS_FILE).exists():
            # Views that were not started yet need the images and options of the whole command.
            print_note("stopped; continue with the same command and --resume")
        elif not has_views and run_folder and (Path(run_folder) / "run.json").exists():
            print_note(f"stopped; continue with: selfmark discover -o {run_folder} --resume")
        else:
            print_note("stopped before the run was created; run the same command again")
        raise typer.Exit(130) from None
    if recorder.output:  # Under torchrun, only the leading process receives events that name the folder.
        print_result(f"detector: {recorder.output}")
        print_result(f"report:   {recorder.output}/report/index.html")


# Mapping from arguments of `discover` to options of this command. Every view gets the same values of these.
_OPTION_NAMES = {
    "landmarks": "-k",
    "preset": "--preset",
    "features": "--features",
    "method": "--method",
    "verify": "--verify",
    "recipe": "--recipe",
    "start_from": "--start-from",
}


class _OutputRecorder:
    """Listener that remembers the run folder from the events."""

    def __init__(self) -> None:
        self.output = ""

    def __call__(self, event: Event) -> None:
        self.output = event.get("output", self.output)


class _Listeners:
    """Listener that forwards events to other listeners."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
