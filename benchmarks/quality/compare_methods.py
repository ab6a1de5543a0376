"""Compare all methods on the labeled data sets, for docs/results/compare.json.

    export PYTHONPATH=src:benchmarks:benchmarks/quality
    python benchmarks/quality/compare_methods.py --data-folder DATA --work WORK \
        [--runs NAME[:METHOD,...] ...] [--budget 2min] [--seeds 0 1 2] [--part validation|test] \
        [--processes 6] [--minutes 9] [--set SETTING=VALUE]

Each run is a row of `selfmark compare` on the training images of a data set. Errors are measured on its
validation part (see `validation_split.py`) or on its test images. Methods of other papers use images of
128 x 128 pixels, as most of their papers do.

The script adds each row to docs/results/compare.json as soon as it is done. A new row replaces an old row of
the same data set, part, method, budget and seed. An interrupted run resumes from WORK. A run is skipped if
the file already has its row from the same commit, without a failure. The values of `--set` are not compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import provenance
from quality_data import DATASETS, prepare_working_copy
from validation_split import select_validation_part

from selfmark.cli.options import parse_settings
from selfmark.comparison.comparison_plan import Comparison, MethodJob, RowName, parse_duration, parse_methods
from selfmark.comparison.runner import run_in_process
from selfmark.errors import InputError
from selfmark.images.sources import list_images
from selfmark.run.files import read_json, write_json

RESULTS = Path(__file__).resolve().parent.parent.parent / "docs" / "results" / "compare.json"
LANDMARKS = {  # number of landmarks for each data set
    "faces-yt68": 30,
    "faces-mtfl-aflw": 10,
    "birds-cub": 30,
    "flies-dpk": 16,
    "mouse-openfield": 10,
}
_OWN_METHODS = ("self-training", "zero-shot")
_OTHERS_SETTINGS = {"images.size": 128}  # settings of methods of other papers
_KEYS = ("data", "part", "method", "budget_minutes", "seed")  # fields that identify a row
_OVERHEAD = 45.0  # seconds that a run needs besides training: reading images, checks, evaluation


def main() -> None:
    """Run the methods, several at a time, and store their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", default=list(LANDMARKS), metavar="NAME[:METHOD,...]")
    parser.add_argument("--budget", default="2min")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--processes", type=int, default=1, help="runs at the same time")
    parser.add_argument("--minutes", type=float, help="start no run that would end after this many minutes")
    parser.add_argument(
        "--commit",
        default=provenance.read_commit(),
        help="commit of the code; by default, that of the git checkout",
    )
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    started = time.monotonic()
    limit = float("inf") if arguments.minutes is None else started + 60 * arguments.minutes
    jobs = [entry for entry in build_jobs(arguments) if not is_stored(*entry, arguments.results)]
    run_jobs(jobs, arguments.processes, limit, arguments.results)
    print(f"all took {(time.monotonic() - started) / 60:.1f} minutes", flush=True)


def build_jobs(arguments: argparse.Namespace) -> list[tuple[dict[str, Any], MethodJob]]:
    """Return the runs in the order of the command line, each with the additional fields of its row.

    Runs without training come last: they are short and fill the time that is left.
    """
    jobs = []
    for seed in arguments.seeds:
        for run in arguments.runs:
            name, _, methods = run.partition(":")
            if name not in LANDMARKS:
                raise SystemExit(f"unknown data set '{name}': choose from {', '.join(LANDMARKS)}")
            method_names: list[RowName] = list(parse_methods(methods))
            for method in method_names if methods else [*method_names, "untrained"]:
                jobs.append(_build_job(name, method, seed, arguments))
    return sorted(jobs, key=lambda entry: entry[1].name in ("zero-shot", "untrained"))


def is_stored(fields: dict[str, Any], job: MethodJob, results: Path) -> bool:
    """Return True if the results contain the row of a job, made with the same commit, without a failure."""
    key = (fields["data"], fields["part"], job.name, job.comparison.budget / 60, job.comparison.seed)
    return any(
        tuple(row[name] for name in _KEYS) == key and row["commit"] == fields["commit"] and not row["failure"]
        for row in _read_rows(results)
    )


def _build_job(
    name: str, method: RowName, seed: int, arguments: argparse.Namespace
) -> tuple[dict[str, Any], MethodJob]:
    folder = prepare_working_copy(name, arguments.data_folder, arguments.work).resolve()
    dataset = DATASETS[name]
    if arguments.part == "validation":
        dataset = select_validation_part(dataset, folder)
    settings = {**({} if method in _OWN_METHODS else _OTHERS_SETTINGS), **parse_settings(arguments.settings)}
    comparison = Comparison(
        images=tuple(str(folder / file) for file in dataset.inputs),
        labels=folder / dataset.labels,
        landmarks=LANDMARKS[name],
        budget=parse_duration(arguments.budget),
        label_images=tuple(str(folder / file) for file in dataset.images),
        train_labels=folder / dataset.train_labels,
        normalizer=dataset.normalizer,
        seed=seed,
        settings=settings,
    )
    budget = arguments.budget.replace(" ", "")
    output = arguments.work / f"{name}-{arguments.part}-{budget}-s{seed}" / method
    fields = {
        "data": name,
        "part": arguments.part,
        "commit": arguments.commit,
        "settings": settings,
        "runs_at_once": arguments.processes,
        "train_images": len(list_images(list(comparison.images))),
    }
    return fields, MethodJob(comparison, method, output, "auto")


def run_jobs(
    jobs: Sequence[tuple[dict[str, Any], MethodJob]],
    processes: int,
    limit: float,
    results: Path,
    run: Callable[[MethodJob], dict[str, Any]] = run_in_process,
) -> None:
    """Run jobs, several at a time, and store the row of each when it is done.

    Args:
        jobs: additional fields of each row, and the job.
        processes: number of jobs at the same time.
        limit: time on the monotonic clock. Jobs that would end later are left out.
        results: file of all rows.
        run: function that runs one job and returns its row.
    """
    lock = Lock()

    def work(fields: dict[str, Any], job: MethodJob) -> None:
        is_trained = job.name not in ("zero-shot", "untrained")
        needed_seconds = _OVERHEAD + is_trained * job.comparison.budget
        if time.monotonic() + needed_seconds > limit:
            print(fields["data"], job.name, "left out: no time", flush=True)
            return
        try:
            row = run(job)
        except InputError as error:
            print(fields["data"], job.name, error, flush=True)
            return
        with lock:
            store_rows([fields | row], results)
        print(fields["data"], job.name, row["forward"], row["failure"], row["minutes"], flush=True)

    with ThreadPoolExecutor(processes) as pool:
        for done in [pool.submit(work, fields, job) for fields, job in jobs]:
            done.result()


def store_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Add rows to a file. A row replaces an old one with the same data, part, method, budget and seed."""
    by_key = {tuple(row[key] for key in _KEYS): row for row in [*_read_rows(path), *rows]}
    ordered_rows = [by_key[key] for key in sorted(by_key, key=str)]
    write_json({"script": "benchmarks/quality/compare_methods.py", "rows": ordered_rows}, path)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_json(path)["rows"] if path.exists() else []
    return rows


if __name__ == "__main__":
    main()
