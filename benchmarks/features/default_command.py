"""Run `selfmark discover` with its default features on a data set and evaluate the detector.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/features/default_command.py NAME -k 30 \
        --data-folder DATA --out RUN [--part validation|test] [--seed 0] [--preset tiny] [--features F] \
        [--set NAME=VALUE]

`--part validation` is the default. It trains on four fifths of the training images and evaluates on the other
fifth, which is the same in every run. It never reads test images, so settings may be chosen by its figures.
The validation part of a video is its last fifth, because neighboring frames are almost the same.
`--part test` trains on all training images and evaluates on the test images.

`--preset tiny --features efficientnet-lite0` uses the settings for machines without a GPU, even if there is
one. A preset other than `auto` has no features unless `--features` names them.

DATA contains NAME.zip or NAME/. The script prints one line of JSON and writes a contact sheet, RUN/sheet.jpg.
The run folder is RUN/run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import provenance
import torch
from quality_data import DATASETS, Dataset, prepare_working_copy
from single_run import describe_hardware, write_contact_sheet
from validation_split import split_labels

import selfmark
from selfmark.cli.options import parse_settings
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.images.sources import list_images
from selfmark.run.files import read_json

_DECISIONS = ("agreement", "orientation", "places", "note")  # log events that are copied into the result


class Parts(NamedTuple):
    """Images and labels that a detector is trained and evaluated on.

    Image lists contain image files, or COCO files whose boxes show where the objects are.

    Attributes:
        inputs: images in which landmarks are discovered.
        train_images: labeled images that regressors are fitted on.
        train_labels: labels of `train_images`.
        images: images that errors are measured on.
        labels: labels of `images`.
    """

    inputs: list[str]
    train_images: list[str]
    train_labels: Path
    images: list[str]
    labels: Path


def main() -> None:
    """Train, evaluate and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(DATASETS))
    parser.add_argument("-k", type=int, required=True)
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="Folder for the run. Data are unpacked beside it."
    )
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--features", default=None)
    parser.add_argument("--method", default=None)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    dataset = DATASETS[arguments.name]
    folder = prepare_working_copy(arguments.name, arguments.data_folder, arguments.out.parent)
    parts = select_parts(dataset, folder.resolve(), arguments.part)
    started = time.monotonic()
    detector = selfmark.discover(
        parts.inputs,
        landmarks=arguments.k,
        output=arguments.out / "run",
        preset=arguments.preset,
        settings=parse_settings(arguments.settings) | {"seed": arguments.seed},
        features=arguments.features,
        method=arguments.method,
    )
    minutes = (time.monotonic() - started) / 60
    metrics = evaluate_parts(arguments.out / "run", parts, dataset)
    refs = read_ground_truth(parts.labels, list_images(parts.images)).refs
    write_contact_sheet(detector, refs, detector.card.images, arguments.out / "sheet.jpg")
    print(json.dumps(summarize(arguments, metrics, minutes)))


def select_parts(dataset: Dataset, folder: Path, part: str) -> Parts:
    """Return the images and labels of a part: "validation" or "test".

    The validation part needs new label files, which are written next to the training labels.
    """
    files = {"train": folder / dataset.train_labels, "held-out": folder / dataset.labels}
    unlabeled = [str(folder / file) for file in dataset.inputs if file.startswith("frames-video")]
    if part == "validation":
        files = split_labels(files["train"], is_video=bool(dataset.video))
    images = {name: _images_of(path, folder, has_boxes=bool(dataset.video)) for name, path in files.items()}
    return Parts(
        unlabeled + images["train"], images["train"], files["train"], images["held-out"], files["held-out"]
    )


def evaluate_parts(run: Path, parts: Parts, dataset: Dataset) -> dict[str, Any]:
    """Evaluate the detector of a run on the held-out images of a data set."""
    inputs = EvaluationInputs(
        parts.images,
        labels=parts.labels,
        train_images=parts.train_images,
        train_labels=parts.train_labels,
    )
    return evaluate_run(run, inputs, EvaluationOptions(dataset.normalizer))


def _images_of(labels: Path, folder: Path, has_boxes: bool) -> list[str]:
    """Return the label file itself if its boxes show where the animals are, otherwise its images."""
    if has_boxes:
        return [str(labels)]
    return [str(folder / "images" / image["file_name"]) for image in read_json(labels)["images"]]


def summarize(arguments: argparse.Namespace, metrics: dict[str, Any], minutes: float) -> dict[str, Any]:
    """Return a row: errors of the detector and of the landmarks that it was first trained on.

    Errors are in percent, or divided by the error of guessing.
    """
    first = next(row for row in metrics["stage1"]["errors"] if row["regressor"] == "ridge 0.01")
    log = (arguments.out / "run" / "log.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in log.splitlines()]
    return {
        "data": arguments.name,
        "part": arguments.part,
        "device": describe_hardware(),
        "k": arguments.k,
        "seed": arguments.seed,
        "features": next((event["name"] for event in events if event["event"] == "features"), "none"),
        **summarize_errors(metrics),
        "first_landmarks_share": round(first["forward"] / metrics["guessing"]["forward"], 4),
        "minutes": round(minutes, 2),
        "command": describe_command(arguments),
        "agreement": [event for event in events if event["event"] in _DECISIONS],
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
    }


def summarize_errors(metrics: dict[str, Any]) -> dict[str, float]:
    """Return errors of a detector and of guessing, and how often landmarks hit their points, in percent."""
    headline, guessing = metrics["headline"], metrics["guessing"]
    return {
        **compare_with_guessing(headline["forward"]["error"], guessing["forward"]),
        "backward": round(headline["backward"]["error"], 3),
        "guessing_backward": round(guessing["backward"], 3),
        "hits": round(next(iter(metrics["raw"].values()))["average"], 2),
    }


def compare_with_guessing(forward: float, guessing_error: float) -> dict[str, float]:
    """Return the forward error, the error of guessing, and the first divided by the second."""
    return {
        "forward": round(forward, 3),
        "guessing_forward": round(guessing_error, 3),
        "share_of_guessing": round(forward / guessing_error, 4),
    }


def describe_command(arguments: argparse.Namespace) -> str:
    """Return the `selfmark discover` command that makes the same run."""
    words: Sequence[str] = ["selfmark", "discover", "IMAGES", "-k", str(arguments.k)]
    if arguments.seed:
        words = [*words, "--seed", str(arguments.seed)]
    if arguments.preset != "auto":
        words = [*words, "--preset", arguments.preset]
    for option in ("features", "method"):
        if getattr(arguments, option):
            words = [*words, f"--{option}", getattr(arguments, option)]
    return " ".join([*words, *(f"--set {setting}" for setting in arguments.settings)])


if __name__ == "__main__":
    main()
