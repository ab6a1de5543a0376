"""Train the head of a finished run again with other `student` settings, and evaluate the detector.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/features/student_variants.py SOURCE \
        --name DATA_SET --out FOLDER [--part validation|test] [--set student.NAME=VALUE ...]

SOURCE is the --out folder of `default_command.py`. The script copies what the run in this folder computed and
decided before it trained the head: the zero-shot landmarks, the landmarks of Stage 1, and the settings that
replaced `auto`. So variants differ only in the training of the head and in what depends on it. The script
prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import provenance
import torch
from default_command import evaluate_parts, select_parts, summarize_errors
from quality_data import DATASETS
from single_run import describe_hardware, write_contact_sheet

import selfmark
from selfmark.cli.options import parse_settings
from selfmark.config import override
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.images.sources import list_images
from selfmark.run.config_file import read_config, write_config

# Files of the rounds that train the head, and the final landmarks (`landmarks.*`). The landmarks of Stage 1
# have other names (`warm-up-landmarks.*` and `keypoint-landmarks.*`) and are kept.
_TRAINED = ("student-*", "keypoints-[0-9]*", "landmarks.*")
# Other files and folders that were computed with the head.
_RESULTS = (
    "model",
    "report",
    "predictions",
    "preview/detector.jpg",
    "metrics.json",
    "verification.json",
)


def main() -> None:
    """Copy the run, train, evaluate and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="--out folder of default_command.py")
    parser.add_argument("--name", choices=sorted(DATASETS), required=True)
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    variant_run = arguments.out / "run"
    copy_without_training(arguments.source / "run", variant_run)
    config = override(read_config(variant_run / "config.yaml"), parse_settings(arguments.settings))
    write_config(config, variant_run / "config.yaml")
    started = time.monotonic()
    detector = selfmark.discover(output=variant_run, resume=True)
    minutes = (time.monotonic() - started) / 60
    dataset = DATASETS[arguments.name]
    folder = arguments.source.parent / "data" / arguments.name
    parts = select_parts(dataset, folder.resolve(), arguments.part)
    metrics = evaluate_parts(variant_run, parts, dataset)
    refs = read_ground_truth(parts.labels, list_images(parts.images)).refs
    write_contact_sheet(detector, refs, detector.card.images, arguments.out / "sheet.jpg")
    row = {
        "data": arguments.name,
        "part": arguments.part,
        "device": describe_hardware(),
        "k": len(detector.card.names),
        "settings": arguments.settings,
        **summarize_errors(metrics),
        "minutes": round(minutes, 2),
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
    }
    print(json.dumps(row))


def copy_without_training(source: Path, target: Path) -> None:
    """Copy a run folder without the trained head and without everything that was computed with it."""
    shutil.copytree(source, target, symlinks=True)
    for name in _RESULTS:
        path = target / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for folder in ("checkpoints", "points", "preview"):
        for pattern in _TRAINED:
            for path in (target / folder).glob(pattern):
                path.unlink()


if __name__ == "__main__":
    main()
