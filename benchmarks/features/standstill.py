"""Measure on a CPU whether ending rounds when landmarks stand still saves time without loss of quality.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/features/standstill.py NAME -k 16 \
        --data-folder DATA --out RUN --rows rows.jsonl [--seed 0] [--features none] [--set NAME=VALUE]

One call trains on four fifths of the training images and evaluates on the other fifth (`default_command.py
--part validation`), and adds a line to `rows.jsonl`. `--stage1-of RUN` copies everything before Stage 2 from
a finished run without features. `--collect SCHEDULE.json` trains nothing: it writes the lines of `rows.jsonl`
to that results file. Times are CPU seconds on one thread, because other programs may share the machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import provenance
import torch
from default_command import evaluate_parts, select_parts, summarize_errors
from quality_data import DATASETS, prepare_working_copy

import selfmark
from selfmark.cli.options import parse_settings
from selfmark.config import override
from selfmark.run.config_file import read_config, write_config
from selfmark.run.event_log import Event
from selfmark.run.files import read_json, write_json
from selfmark.run.folder import Run

_KEY = "standstill"  # entry of the results file
_COMMON_SETTINGS = {"verification.enabled": False}


def main() -> None:
    """Train, evaluate and add a row, or collect the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(DATASETS), nargs="?")
    parser.add_argument("-k", type=int)
    parser.add_argument("--data-folder", type=Path)
    parser.add_argument("--out", type=Path, help="Folder for the run; data sets are unpacked beside it.")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--features", default="efficientnet-lite0")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--stage1-of", type=Path, help="--out folder of an earlier call")
    parser.add_argument("--collect", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.collect:
        collect(arguments.rows, arguments.collect)
        return
    row = measure(arguments)
    print(json.dumps(row))
    with open(arguments.rows, "a", encoding="utf-8") as handle:
        handle.write(json.dumps(row) + "\n")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Discover landmarks in a data set, evaluate them on its validation part, and return a row."""
    dataset = DATASETS[arguments.name]
    arguments.out.mkdir(parents=True, exist_ok=True)
    folder = prepare_working_copy(arguments.name, arguments.data_folder, arguments.out.parent)
    parts = select_parts(dataset, folder.resolve(), "validation")
    settings = parse_settings(arguments.settings)
    if arguments.stage1_of:
        copy_without_stage2(arguments.stage1_of / "run", arguments.out / "run", settings)
    started = time.process_time()
    if arguments.stage1_of:
        selfmark.discover(output=arguments.out / "run", resume=True)
    else:
        selfmark.discover(
            parts.inputs,
            landmarks=arguments.k,
            output=arguments.out / "run",
            preset="tiny",
            settings=_COMMON_SETTINGS | settings | {"seed": arguments.seed},
            features=arguments.features,
        )
    seconds = time.process_time() - started
    errors = summarize_errors(evaluate_parts(arguments.out / "run", parts, dataset))
    run = Run.open(arguments.out / "run")
    return {
        "data": arguments.name,
        "k": arguments.k,
        "seed": arguments.seed,
        "features": arguments.features,
        "settings": arguments.settings,
        "stage1_of_other_run": arguments.stage1_of is not None,
        **count_iterations(run.events()),
        "cpu_seconds": round(seconds),
        "share_of_guessing": errors["share_of_guessing"],
        "hits": errors["hits"],
        "commit": provenance.read_commit(),
    }


def copy_without_stage2(source: Path, target: Path, settings: dict[str, Any]) -> None:
    """Copy a run except for its Stage 2 and what was computed with it. Change settings of the copy."""
    shutil.copytree(source, target, symlinks=True)
    for name in ("model", "report", "predictions"):
        shutil.rmtree(target / name, ignore_errors=True)
    for path in [target / "metrics.json", target / "log.jsonl", *target.glob("checkpoints/stage2*")]:
        path.unlink(missing_ok=True)
    write_config(override(read_config(target / "config.yaml"), settings), target / "config.yaml")


def count_iterations(events: list[Event]) -> dict[str, list[int]]:
    """Return the planned and the used iterations of each phase that may end early, in order."""
    planned: dict[tuple[str, int], int] = {}
    skipped: dict[tuple[str, int], int] = {}
    for event in events:
        if event["event"] == "train" and event["stage"] in ("student", "stage 2"):
            planned[event["stage"], event["round"]] = event["stop"] - event["start"]
        elif event["event"] == "movement":
            phase = event["stage"], event["round"]
            skipped[phase] = skipped.get(phase, 0) + event["skipped"]
    used = [count - skipped.get(phase, 0) for phase, count in planned.items()]
    return {"planned": list(planned.values()), "used": used}


def collect(rows: Path, results: Path) -> None:
    """Write the rows to the results file, and keep its other entries."""
    lines = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    entry = {
        "script": "benchmarks/features/standstill.py",
        "what": "forward error on the validation part over that of the mean shape, with and without "
        "schedule.stop_when_still; planned and used iterations of each round, or of Stage 2",
        "command": "selfmark discover IMAGES -k K --preset tiny --features FEATURES --seed SEED "
        "--set verification.enabled=false --set SETTINGS",
        "hardware": f"1 thread of {provenance.describe_processor()}, shared with other programs",
        "torch": torch.__version__,
        "rows": lines,
    }
    write_json({**read_json(results), _KEY: entry}, results)


if __name__ == "__main__":
    main()
