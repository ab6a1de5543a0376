"""Train one variant of the method and measure it for several ways of reading its heatmaps.

    export PYTHONPATH=src:benchmarks:benchmarks/quality:benchmarks/features
    python benchmarks/quality/variant_run.py DATA -k 30 --name NAME --data-folder FOLDER --work WORK \
        --out OUT [--preset paper] [--fraction 0.2] [--part validation|test] [--seed 0] \
        [--features NAME] [--set SETTING=VALUE] [--unpaired masked|itself] [--keep-model]

`--fraction` shortens the schedule: it multiplies the iterations of the warm-up and of Stage 2, and the number
of rounds. `--unpaired itself` makes landmarks without a mirror partner their own partners. `--part` is
explained in `benchmarks/features/default_command.py`. An interrupted run is resumed. OUT/NAME.json has one
row per way of reading heatmaps, and OUT/NAME.jpg is a contact sheet.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import provenance
import torch
from default_command import select_parts
from detector_errors import measure_readout_errors
from mirror_variants import override_unpaired_treatment
from quality_data import DATASETS, prepare_working_copy
from single_run import describe_hardware, write_contact_sheet

import selfmark
from selfmark.cli.options import parse_settings
from selfmark.config import Config, preset
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.images.sources import list_images
from selfmark.run.files import write_json
from selfmark.run.folder import Run


def main() -> None:
    """Train, measure, and write the result rows and a contact sheet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=sorted(DATASETS))
    parser.add_argument("-k", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="Folder for data and runs.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--features", default=None)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--unpaired", choices=("masked", "itself"), default="masked")
    parser.add_argument("--keep-model", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = shorten(preset("fast" if arguments.preset == "auto" else arguments.preset), arguments.fraction)
    settings |= parse_settings(arguments.settings) | {"seed": arguments.seed}
    dataset = DATASETS[arguments.data]
    folder = prepare_working_copy(arguments.data, arguments.data_folder, arguments.work / arguments.name)
    parts = select_parts(dataset, folder.resolve(), arguments.part)
    path = arguments.work / arguments.name / "run"
    resume = (path / "run.json").exists()
    started = time.monotonic()
    with override_unpaired_treatment(arguments.unpaired):
        detector = selfmark.discover(
            () if resume else parts.inputs,
            landmarks=None if resume else arguments.k,
            output=path,
            preset="auto" if resume else arguments.preset,
            settings={} if resume else settings,
            features=None if resume else arguments.features,
            resume=resume,
        )
    minutes = (time.monotonic() - started) / 60
    train_part = (parts.train_images, parts.train_labels)
    evaluated_part = (parts.images, parts.labels)
    events = Run.open(path).events()
    record = {
        "name": arguments.name,
        "data": arguments.data,
        "part": arguments.part,
        "k": arguments.k,
        "preset": arguments.preset,
        "features": Run.open(path).config.features.name,
        "fraction": arguments.fraction,
        "seed": arguments.seed,
        "settings": settings,
        "unpaired_are": arguments.unpaired,
        "minutes": round(minutes, 2),
        "refine": detector.card.refine,
        "unpaired": detector.card.unpaired,
        "mirror": detector.card.mirror,
        "rounds": [event for event in events if event["event"] in ("keypoints", "recovery", "agreement")],
        "rows": measure_readout_errors(detector, train_part, evaluated_part, dataset.normalizer),
        "script": "benchmarks/quality/variant_run.py",
        "hardware": describe_hardware(),
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
    }
    write_json(record, arguments.out / f"{arguments.name}.json")
    refs = read_ground_truth(parts.labels, list_images(parts.images)).refs
    write_contact_sheet(detector, refs, detector.card.images, arguments.out / f"{arguments.name}.jpg")
    if arguments.keep_model:
        shutil.copytree(path / "model", arguments.out / f"{arguments.name}-model", dirs_exist_ok=True)


def shorten(config: Config, fraction: float) -> dict[str, Any]:
    """Return the settings of a shorter schedule: fewer rounds of about the same length.

    >>> shorten(Config(), 0.2)["rounds.count"], shorten(Config(), 0.2)["rounds.iterations"]
    (7, 4857)
    """
    if fraction == 1:
        return {}
    total = round(config.rounds.count * config.rounds.iterations * fraction)
    count = max(1, round(config.rounds.count * fraction))
    return {
        "warmup.iterations": round(config.warmup.iterations * fraction),
        "rounds.count": count,
        "rounds.iterations": total // count,
        "stage2.iterations": round(config.stage2.iterations * fraction),
    }


if __name__ == "__main__":
    main()
