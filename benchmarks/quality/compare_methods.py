"""Compare all methods on the labeled data sets, for docs/results/compare.json.

    export PYTHONPATH=src:benchmarks:benchmarks/quality
    python benchmarks/quality/compare_methods.py --data-folder DATA --work WORK [--data NAME ...] \
        [--methods a,b] [--budget 2min] [--seeds 0 1 2] [--part validation|test] [--set SETTING=VALUE]

Each comparison is `selfmark compare` on the training images of a data set, measured on its validation part
(see `validation_split.py`) or on its test images. Rows are added to docs/results/compare.json; a repeated row
replaces the old one. An interrupted comparison is resumed from WORK.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import provenance
from quality_data import DATASETS, working_copy
from validation_split import validation_part

from selfmark.cli.options import parse_settings
from selfmark.comparison.jobs import Comparison, parse_duration, parse_methods
from selfmark.comparison.runner import find_devices, run_comparison
from selfmark.run.files import read_json, write_json

RESULTS = Path(__file__).resolve().parent.parent.parent / "docs" / "results" / "compare.json"
LANDMARKS = {
    "faces-yt68": 30,
    "faces-mtfl-aflw": 10,
    "birds-cub": 30,
    "flies-dpk": 16,
    "mouse-openfield": 10,
}
_KEYS = ("data", "part", "method", "budget_minutes", "seed")  # identify a row


def main() -> None:
    """Run the comparisons and store their rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", nargs="+", choices=sorted(LANDMARKS), default=list(LANDMARKS))
    parser.add_argument("--methods", default="")
    parser.add_argument("--budget", default="2min")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name in arguments.data:
            comparison = build_comparison(name, seed, arguments)
            budget = arguments.budget.replace(" ", "")
            output = arguments.work / f"{name}-{arguments.part}-{budget}-s{seed}"
            rows = run_comparison(
                comparison,
                output,
                find_devices("auto"),
                on_done=lambda row: print(row["method"], row["forward"], row["failure"], flush=True),
            )
            labels = {"data": name, "part": arguments.part, "commit": provenance.commit()}
            store_rows([labels | row for row in rows], arguments.results)


def build_comparison(name: str, seed: int, arguments: argparse.Namespace) -> Comparison:
    """Return the comparison on a data set."""
    folder = working_copy(name, arguments.data_folder, arguments.work).resolve()
    dataset = DATASETS[name]
    if arguments.part == "validation":
        dataset = validation_part(dataset, folder)
    return Comparison(
        images=tuple(str(folder / file) for file in dataset.inputs),
        labels=folder / dataset.labels,
        landmarks=LANDMARKS[name],
        budget=parse_duration(arguments.budget),
        methods=parse_methods(arguments.methods),
        label_images=tuple(str(folder / file) for file in dataset.images),
        train_labels=folder / dataset.train_labels,
        normalizer=dataset.normalizer,
        seed=seed,
        settings=parse_settings(arguments.settings),
    )


def store_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Add rows to a file; those with the same data, part, method, budget and seed replace old ones."""
    stored = read_json(path)["rows"] if path.exists() else []
    by_key = {tuple(row[key] for key in _KEYS): row for row in [*stored, *rows]}
    ordered = [by_key[key] for key in sorted(by_key, key=str)]
    write_json({"script": "benchmarks/quality/compare_methods.py", "rows": ordered}, path)


if __name__ == "__main__":
    main()
