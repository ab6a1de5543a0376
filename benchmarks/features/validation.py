"""Run `selfmark discover` on four fifths of a training set and evaluate it on the remaining fifth.

    PYTHONPATH=src:benchmarks python benchmarks/features/validation.py DATA -k 30 --out RUN [--set NAME=VALUE]

DATA has images/ and train.json. Settings are chosen on these figures; test images are never read. The
held-out fifth is always the same, because it is drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import selfmark
from selfmark.cli.options import parse_settings
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.run.files import write_json

VALIDATION_FRACTION = 0.2
SEED = 7


def main() -> None:
    """Train, evaluate and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-k", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="Folder for the split and the run.")
    parser.add_argument("--features", default=None)
    parser.add_argument("--method", default=None)
    parser.add_argument("--max-images", type=int, default=None)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    split_labels(arguments.data, arguments.out, arguments.max_images)
    images = arguments.data.resolve() / "images"
    listed = {
        part: [str(images / image["file_name"]) for image in read_labels(arguments.out, part)["images"]]
        for part in ("train", "validation")
    }
    started = time.monotonic()
    selfmark.discover(
        listed["train"],
        landmarks=arguments.k,
        output=arguments.out / "run",
        settings=parse_settings(arguments.settings),
        features=arguments.features,
        method=arguments.method,
    )
    minutes = (time.monotonic() - started) / 60
    metrics = evaluate_run(
        arguments.out / "run",
        EvaluationInputs(
            listed["validation"],
            labels=arguments.out / "validation.json",
            train_images=listed["train"],
            train_labels=arguments.out / "train.json",
        ),
        EvaluationOptions(),
    )
    print(json.dumps(summarize(arguments, metrics, minutes)))


def split_labels(data: Path, out: Path, max_images: int | None) -> None:
    """Write train.json and validation.json, two parts of the labels of a training set."""
    content = json.loads((data / "train.json").read_text(encoding="utf-8"))
    images = content["images"][:max_images]
    order = np.random.default_rng(SEED).permutation(len(images))
    held_out = int(VALIDATION_FRACTION * len(images))
    for part, rows in (("validation", order[:held_out]), ("train", order[held_out:])):
        chosen = [images[row] for row in np.sort(rows)]
        ids = {image["id"] for image in chosen}
        labels = [entry for entry in content["annotations"] if entry["image_id"] in ids]
        write_json({**content, "images": chosen, "annotations": labels}, out / f"{part}.json")


def read_labels(out: Path, part: str) -> dict[str, Any]:
    """Read a part written by `split_labels`."""
    content: dict[str, Any] = json.loads((out / f"{part}.json").read_text(encoding="utf-8"))
    return content


def summarize(arguments: argparse.Namespace, metrics: dict[str, Any], minutes: float) -> dict[str, Any]:
    """Return the errors of the detector and of the first landmarks as shares of guessing."""
    guessing, forward = metrics["guessing"]["forward"], metrics["headline"]["forward"]["error"]
    first = next(row for row in metrics["stage1"]["errors"] if row["regressor"] == "ridge 0.01")
    events = [
        json.loads(line)
        for line in (arguments.out / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return {
        "data": arguments.data.name,
        "k": arguments.k,
        "settings": arguments.settings,
        "forward": round(forward, 3),
        "guessing_forward": round(guessing, 3),
        "share_of_guessing": round(forward / guessing, 4),
        "first_landmarks_share": round(first["forward"] / guessing, 4),
        "agreement": [event for event in events if event["event"] in ("agreement", "orientation")],
        "minutes": round(minutes, 2),
    }


if __name__ == "__main__":
    main()
