"""The command line: parses, calls, prints. Heavy imports wait inside the commands, so `--help` is instant."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.table import Table

from selfmark._version import __version__
from selfmark.cli.console import print_note, print_result, print_table, stderr, stdout
from selfmark.cli.datasets import app as datasets_app
from selfmark.errors import InputError, TrainingError, need, printable

if TYPE_CHECKING:
    from selfmark.detector import Prediction
    from selfmark.tracking.object_refs import Regions

# Where in the images the objects are: the same for all commands that look at images.
Boxes = Annotated[
    Path | None,
    typer.Option(help="Boxes of the objects: COCO .json, .csv, or YOLO .txt files in a folder."),
]
Crop = Annotated[str, typer.Option(help="X,Y,W,H: look at this part of every image only.")]
FindAnimals = Annotated[
    int, typer.Option("--find-animals", help="Of a fixed camera: find and follow so many animals.", min=0)
]

app = typer.Typer(
    help="Discover the landmarks of an object category from unlabeled images.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(datasets_app, name="datasets")


def main() -> None:
    """Run a command; what the user can mend ends in one sentence and exit code 2."""
    # Threads that spin long while they wait make a busy machine several times slower, threads that do not
    # spin at all an idle one; this is between (measured on two cores). Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app()
    except InputError as error:
        _complain(error)
        sys.exit(2)
    except TrainingError as error:
        _complain(error)
        sys.exit(1)


def _complain(error: Exception) -> None:
    print_note(f"selfmark: {printable(str(error))}", style="red")


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _version(shown: bool) -> None:
    if shown:
        print_result(f"selfmark {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _settings(pairs: list[str]) -> dict[str, Any]:
    """`--set name=value` options as a dictionary; values are read as YAML."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, not '{pair}'")
        settings[name] = value
    return settings


def _landmark_count(text: str | None) -> int | Literal["auto"] | None:
    """What `-k` was given."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"-k takes a number of landmarks, at least 1, or 'auto', not '{text}'")
    return int(text)


def _where(boxes: Path | None, crop: str, animals: int) -> Regions:
    from selfmark.tracking.object_refs import Regions, parse_crop

    return Regions(boxes, parse_crop(crop) if crop else None, animals)


@app.command()
def discover(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders, globs, images, text lists, COCO JSON files or videos.", show_default=False
        ),
    ] = None,
    landmarks: Annotated[
        str | None,
        typer.Option("--landmarks", "-k", help="K, how many landmarks to discover: a number, or auto."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder; default runs/NAME.")
    ] = None,
    preset: Annotated[str, typer.Option(help="auto, paper, fast or tiny.")] = "auto",
    detector: Annotated[
        str | None,
        typer.Option(help="First keypoints: selfmark, orb, sift, superpoint, r2d2, alike-t, alike-n, file."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights file of the detector.")] = None,
    points: Annotated[
        Path | None, typer.Option(help="CSV of first keypoints (image,x,y); implies file.")
    ] = None,
    temporal: Annotated[
        bool, typer.Option("--temporal", help="Pair nearby video frames by optical flow.")
    ] = False,
    every: Annotated[int, typer.Option(help="Of videos, take every Nth frame.", min=1)] = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --output.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: NAME=VALUE, e.g. M=50 or flip.test=false.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Discover landmarks in unlabeled images: a trained detector and a report."""
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.discovery import discover as run_discover
    from selfmark.keypoints.weights_cache import license_notice

    settings = _settings(change or [])
    shortcuts = {
        "keypoints.detector": "file" if points is not None else detector,
        "keypoints.weights": None if weights is None else str(weights),
        "keypoints.points_file": None if points is None else str(points),
        "temporal.enabled": True if temporal else None,
        "seed": seed,
    }
    settings |= {name: value for name, value in shortcuts.items() if value is not None}
    notice = license_notice(
        str(settings.get("keypoints.detector", "superpoint" if preset == "paper" else ""))
    )
    if notice:
        print_note(notice)
    with ProgressDisplay(stdout) as display:
        try:
            run_discover(
                inputs or [],
                landmarks=_landmark_count(landmarks),
                output=output,
                preset=preset,
                settings=settings,
                every=every,
                regions=_where(boxes, crop, find_animals),
                resume=resume,
                device=device,
                listener=(seen := _Seen(display)),
            )
        except KeyboardInterrupt:
            where = output or seen.output
            print_note(f"stopped; go on with: selfmark discover -o {where} --resume")
            raise typer.Exit(130) from None
    if seen.output:  # under torchrun, one process speaks
        print_result(f"detector: {seen.output}\nreport:   {seen.output}/report/index.html")


class _Seen:
    """Passes events on and remembers where the run is."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.output = ""

    def __call__(self, event: dict[str, Any]) -> None:
        self.output = event.get("output", self.output)
        self.listener(event)


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="Run folder with a trained detector.")],
    inputs: Annotated[list[str], typer.Argument(help="Images, folders, globs, lists, COCO files or videos.")],
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
    every: Annotated[int, typer.Option(help="Of videos, take every Nth frame.", min=1)] = 1,
    boxes: Boxes = None,
    crop: Crop = "",
    find_animals: FindAnimals = 0,
    draw: Annotated[
        bool, typer.Option("--draw", help="Also a labeled video of each video: VIDEO_landmarks.mp4.")
    ] = False,
    trail: Annotated[
        float, typer.Option(help="Seconds the trails of a labeled video last; 0 for none.", min=0)
    ] = 1.0,
    batch: Annotated[int, typer.Option(help="Images per forward pass.", min=1)] = 64,
    runtime: Annotated[
        str, typer.Option(help="torch; or onnx or onnx-int8, which 'selfmark export' prepares.")
    ] = "torch",
    mapped: Annotated[
        bool, typer.Option("--mapped", help="Your own points, as 'selfmark map' learned them.")
    ] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="How animals are found: e.g. contrast=20.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Landmarks of new images or video, in pixels of those images."""
    from selfmark.cli.progress import CountDisplay, CountedPredictions, describe_lost_images
    from selfmark.config import Config, override
    from selfmark.draw.labeled_video import draw_videos, labeled_video_paths
    from selfmark.export import writer
    from selfmark.export.onnx_detector import load_detector
    from selfmark.mapping.mapped_detector import MappedDetector, load_mapping
    from selfmark.tracking.object_refs import locate_objects

    write = writer(format)
    detector = load_detector(run, runtime, device)
    if mapped:
        detector = MappedDetector(detector, load_mapping(run, detector))
    tracking = override(
        Config(), {f"tracking.{name}": value for name, value in _settings(change or []).items()}
    )
    where, notes = _where(boxes, crop, find_animals), list[str]()
    with CountDisplay(stderr, "finding animals", "frames") as display:
        refs = locate_objects(inputs, every, where, tracking.tracking, display, notes.append)
    films = labeled_video_paths(refs, output) if draw else {}
    with CountDisplay(stderr, "predicting", "images") as display:
        counted = CountedPredictions(detector.predict(refs, batch), len(refs), display)
        first = next(counted, None)  # before anything is written
        if first is None:
            raise InputError(f"none of the {len(refs)} images could be read")
        try:
            output.mkdir(parents=True, exist_ok=True)
            found: Iterator[Prediction] = itertools.chain([first], counted)
            if films:
                found = draw_videos(found, refs, detector.card, output, every, trail)
            path = write(found, detector.card, output)
        except OSError as error:
            raise InputError(f"cannot write to {output}: {error.strerror}") from error
    print_result(f"{counted.images} images, {display.rate:.1f} a second: {path}")
    for film in films.values():
        print_result(f"labeled video: {film}")
    for sentence in (*notes, *describe_lost_images(refs, counted)):
        print_note(sentence)


@app.command("map")
def map_points(
    run: Annotated[Path, typer.Argument(help="Run folder with a trained detector.")],
    labels: Annotated[
        Path, typer.Option(help="Points of 1 to 50 images, of COCO, DeepLabCut (CSV) or Label Studio (JSON).")
    ],
    images: Annotated[
        list[str] | None,
        typer.Argument(help="The annotated images; default: those a COCO file names.", show_default=False),
    ] = None,
    normalizer: Annotated[str, typer.Option(help="Errors are divided by: as in 'selfmark evaluate'.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Learn your own points from a few annotated images; 'predict --mapped' then speaks their names."""
    from selfmark.mapping.learning import learn_map

    learned = learn_map(run, labels, images or [], normalizer, device)
    mapping = learned.mapping
    title = f"{len(mapping.names)} points from {mapping.images} images"
    if mapping.error is not None:
        errors = ("" if error is None else f"{error:.2f}" for error in mapping.errors)
        print_table(("point", "error"), zip(mapping.names, errors, strict=True), title)
        print_result(f"error on images left out: {mapping.error:.2f} % of {mapping.normalizer}")
    else:
        print_result(title)
    for note in learned.notes:
        print_note(f"note: {note}")
    print_result(f"map: {learned.path}")


@app.command()
def name(
    run: Annotated[Path, typer.Argument(help="Run folder with a trained detector.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(help="Images to show, or where the run's images are now.", show_default=False),
    ] = None,
    most: Annotated[int, typer.Option(help="Show at most so many images, evenly spread.", min=1)] = 400,
    port: Annotated[int, typer.Option(help="Port of this machine; 0: any.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Name, color, hide, pair and connect landmarks on a page in your browser."""
    need("fastapi", "'selfmark[web]'")
    need("uvicorn", "'selfmark[web]'")
    from selfmark.naming.server import name_landmarks

    name_landmarks(run, images or [], most, port, browser, device, print_result)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder with a trained detector.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="As an ONNX file.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="With --onnx: also in 8 bits, faster and a little less exact.")
    ] = False,
    fp16: Annotated[
        bool, typer.Option("--fp16", help="With --onnx: also in half precision, half as large.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the model; default that of RUN.")
    ] = None,
) -> None:
    """The trained detector in the format of another runtime."""
    from selfmark.export.onnx_export import Precision, export_onnx

    if not onnx:
        raise InputError("say what to export: --onnx")
    wanted: dict[Precision, bool] = {"float32": True, "float16": fp16, "int8": int8}
    for path in export_onnx(run, [precision for precision, asked in wanted.items() if asked], output):
        print_result(f"exported: {path}")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder with a trained detector.")],
    images: Annotated[list[str], typer.Argument(help="Images, folders, globs, COCO files or videos.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Points of the images, of COCO, DeepLabCut (CSV) or Label Studio (JSON); without them only "
            "label-free checks."
        ),
    ] = None,
    train_labels: Annotated[
        Path | None,
        typer.Option(help="Points the regressors are fitted on; default: a random half of --labels."),
    ] = None,
    train_images: Annotated[
        list[str] | None, typer.Option(help="Images of --train-labels; default: the same as IMAGES.")
    ] = None,
    normalizer: Annotated[
        str,
        typer.Option(
            help="Errors are divided by: box, bbox, inter_ocular, shoulders, torso, side or points:A,B."
        ),
    ] = "",
    by: Annotated[
        list[str] | None, typer.Option(help="Break the errors down by this annotation field; repeatable.")
    ] = None,
    detectors: Annotated[
        str, typer.Option(help="Precision of these keypoint detectors as well, e.g. orb,sift.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for metrics.json and report; default RUN.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of the evaluation, e.g. draws=3.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Measure a run: every metric of the paper with labels, trust in each landmark without."""
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.detector import Detector
    from selfmark.evaluate.evaluation import evaluate_run
    from selfmark.report import metrics_text
    from selfmark.report.run_report import build_report
    from selfmark.run.folder import Run

    with ProgressDisplay(stderr) as display:
        metrics = evaluate_run(
            run,
            images,
            labels,
            train_images,
            train_labels,
            normalizer,
            by or [],
            [name.strip() for name in detectors.split(",") if name.strip()],
            _settings(change or []),
            output,
            device,
            lambda done, of: display(
                {"event": "progress", "stage": "predicting", "round": 0, "done": done, "of": of}
            ),
        )
    for content in (*metrics_text.metric_tables(metrics), metrics_text.trust_table(metrics)):
        print_table(content.header, content.rows, content.title)
    for note in metrics["notes"]:
        print_note(f"note: {note}")
    page = build_report(Run.open(run), Detector.load(run), output)
    folder = output if output is not None else run
    print_result(f"metrics: {folder / 'metrics.json'}\nreport:  {page}")


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for data, run and report.")] = Path(
        "runs/demo"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """The whole pipeline on a built-in generated data set: minutes on two CPU cores."""
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.demo.demo_run import run_demo

    with ProgressDisplay(stdout) as display:
        result = run_demo(output, device, display)
    table = Table(title="selfmark demo: error in % of the object's size")
    for heading in ("", "forward", "backward"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("discovered landmarks", f"{result.forward:.2f}", f"{result.backward:.2f}")
    table.add_row("mean shape", f"{result.mean_shape:.2f}", f"{result.mean_shape_backward:.2f}")
    stdout.print(table)
    print_result(f"report: {result.report}")
    result.require_useful()


@app.command()
def reproduce(
    tables: Annotated[
        list[str],
        typer.Argument(
            help="Tables and figures of the paper; 'all'; or 'list' to see their names.", show_default=False
        ),
    ],
    data: Annotated[
        Path | None, typer.Option(help="Folder with a folder for each data set: celeba, ls3d and so on.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for trainings, measurements and tables.")
    ] = Path("reproduced"),
    preset: Annotated[str, typer.Option(help="paper, fast or tiny.")] = "paper",
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Make what can be made where a data set is missing.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be trained, and what it would cost.")
    ] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, over those of the tables: NAME=VALUE.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """The paper's tables and figures, beside its own numbers; what is there already is not made again."""
    from selfmark.cli.progress import ProgressDisplay
    from selfmark.paper.reproduction import harness

    settings = _settings(change or [])

    if tables == ["list"]:
        for name, place, title in harness.list_experiments():
            print_result(f"{name:<18} {place:<21} {title}")
        return
    if dry_run:
        for line in harness.preview_plan(tables, data, preset, settings, device):
            print_result(line)
        return
    harness.select_experiments(tables)  # a name nobody knows is said first
    if data is None:
        raise InputError("say where the data sets are with --data")
    try:
        paths = harness.reproduce_tables(
            tables,
            data,
            output,
            preset,
            settings,
            device,
            allow_missing,
            print_result,
            watch=lambda: ProgressDisplay(stdout),
        )
    except KeyboardInterrupt:
        print_note("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    for path in paths:
        print_result(f"written: {path}")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Write the run's report anew."""
    from selfmark.detector import Detector
    from selfmark.report.run_report import build_report
    from selfmark.run.folder import Run

    path = build_report(Run.open(run), Detector.load(run))
    print_result(f"report: {path}")


@app.command()
def weights(
    name: Annotated[str, typer.Argument(help="superpoint, r2d2, alike-t or alike-n.")],
    source: Annotated[
        str | None, typer.Option("--from", help="A file you have; default: download from the authors.")
    ] = None,
) -> None:
    """Get the weights of a learned keypoint detector into the cache, checked by checksum."""
    from selfmark.keypoints.weights_cache import install_weights, license_notice

    notice = license_notice(name)
    if notice:
        print_note(notice)
    print_result(f"installed: {install_weights(name, source)}")


@app.command()
def doctor() -> None:
    """What this machine offers: versions, devices, weights in the cache."""
    from selfmark.cli.doctor import collect_findings

    table = Table(show_header=False)
    for name, value in collect_findings():
        table.add_row(name, value)
    stdout.print(table)
