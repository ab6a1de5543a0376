"""Run the default command on a data set and evaluate it: the figures of discovery with features.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/features/default_command.py NAME -k 30 \
        --data-folder DATA --out RUN [--part validation|test] [--seed 0] [--preset tiny] [--set NAME=VALUE]

`--part validation`, the default, trains on four fifths of the training images and evaluates on the other
fifth, which is always the same: settings are chosen on these figures, and test images are never read.
`--part test` trains on all training images and evaluates on the test images. Of videos, the last
fifth is held out, because neighboring frames are almost the same.

`--preset tiny` uses the settings of a machine without a GPU on any machine.

DATA contains NAME.zip or NAME/. The script prints one line of JSON and writes a contact sheet, RUN/sheet.jpg.
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
from quality_data import DATASETS, Dataset, working_copy
from single_run import hardware, write_contact_sheet
from validation_split import split_labels

import selfmark
from selfmark.cli.options import parse_settings
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.images.sources import list_images
from selfmark.run.files import read_json

_DECISIONS = ("agreement", "orientation", "places", "note")  # events of the log that are part of the result


class Parts(NamedTuple):
    """What a detector is trained and evaluated on.

    inputs:       images, or COCO files with boxes, that landmarks are discovered in
    train_images: images with the labels that regressors are fitted on
    train_labels: these labels
    images:       images that errors are measured on
    labels:       their labels
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
    parser.add_argument("--out", type=Path, required=True, help="Folder for the labels and the run.")
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default="auto")
    parser.add_argument("--features", default=None)
    parser.add_argument("--method", default=None)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    dataset = DATASETS[arguments.name]
    folder = working_copy(arguments.name, arguments.data_folder, arguments.out.parent)
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
    metrics = evaluate_run(
        arguments.out / "run",
        EvaluationInputs(
            parts.images,
            labels=parts.labels,
            train_images=parts.train_images,
            train_labels=parts.train_labels,
        ),
        EvaluationOptions(dataset.normalizer),
    )
    refs = read_ground_truth(parts.labels, list_images(parts.images)).refs
    write_contact_sheet(detector, refs, detector.card.images, arguments.out / "sheet.jpg")
    print(json.dumps(summarize(arguments, metrics, minutes)))


def select_parts(dataset: Dataset, folder: Path, part: str) -> Parts:
    """Return the inputs and labels; those of the validation part are written to the working copy."""
    files = {"train": folder / dataset.train_labels, "held-out": folder / dataset.labels}
    unlabeled = [str(folder / file) for file in dataset.inputs if file.startswith("frames-video")]
    if part == "validation":
        files = split_labels(files["train"], is_video=bool(dataset.video))
    images = {name: _images_of(path, folder, has_boxes=bool(dataset.video)) for name, path in files.items()}
    return Parts(
        unlabeled + images["train"], images["train"], files["train"], images["held-out"], files["held-out"]
    )


def _images_of(labels: Path, folder: Path, has_boxes: bool) -> list[str]:
    """Return the label file itself if it tells where the animals are, otherwise its images."""
    if has_boxes:
        return [str(labels)]
    return [str(folder / "images" / image["file_name"]) for image in read_json(labels)["images"]]


def summarize(arguments: argparse.Namespace, metrics: dict[str, Any], minutes: float) -> dict[str, Any]:
    """Return the errors of the detector and of the first landmarks as shares of guessing."""
    guessing, forward = metrics["guessing"]["forward"], metrics["headline"]["forward"]["error"]
    first = next(row for row in metrics["stage1"]["errors"] if row["regressor"] == "ridge 0.01")
    log = (arguments.out / "run" / "log.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in log.splitlines()]
    return {
        "data": arguments.name,
        "part": arguments.part,
        "device": hardware(),
        "k": arguments.k,
        "seed": arguments.seed,
        "features": next((event["name"] for event in events if event["event"] == "features"), "none"),
        "forward": round(forward, 3),
        "guessing_forward": round(guessing, 3),
        "share_of_guessing": round(forward / guessing, 4),
        "first_landmarks_share": round(first["forward"] / guessing, 4),
        "backward": round(metrics["headline"]["backward"]["error"], 3),
        "guessing_backward": round(metrics["guessing"]["backward"], 3),
        "hits": round(next(iter(metrics["raw"].values()))["average"], 2),
        "minutes": round(minutes, 2),
        "command": describe_command(arguments),
        "agreement": [event for event in events if event["event"] in _DECISIONS],
        "torch": torch.__version__,
        "commit": provenance.commit(),
    }


def describe_command(arguments: argparse.Namespace) -> str:
    """Return the command that the run corresponds to."""
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
