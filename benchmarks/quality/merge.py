"""Gather what `run.py` wrote into docs/results/quality.json: a run that is made again replaces the old one.

    python benchmarks/quality/merge.py DIR [DIR ...]

The file holds `rows`, one per stage and ridge, and `runs`, what is known of each run besides: its settings,
errors by pose or yaw, trust in each landmark, versions. Rows are in the order in which runs are declared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rows import DECLARED

from selfmark.run.files import read_json, write_json

QUALITY = Path(__file__).resolve().parent.parent.parent / "docs" / "results" / "quality.json"
ABOUT = {
    "script": "benchmarks/quality/run.py",
    "errors": "percent of the normalizer named in the run, regressors fitted on all training images",
    "ridge": "factor on the largest entry of X'X; the authors' program has 0.001 on CelebA, 0.1 on LS3D",
    "minutes": "wall clock of discover, process start and evaluation not counted; `processes` of the run "
    "says how many runs shared the GPU",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    published = read_json(QUALITY) if QUALITY.exists() else {"runs": {}, "rows": []}
    found = [read_json(path) for folder in arguments.folders for path in sorted(folder.glob("*.json"))]
    made = [one for one in found if isinstance(one, dict) and set(one) == {"run", "rows"}]
    merged = merge(published, made)
    write_json(merged, QUALITY)
    print(f"{len(made)} runs merged: {len(merged['runs'])} runs, {len(merged['rows'])} rows in {QUALITY}")


def merge(published: dict[str, Any], made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Published runs and rows with these in their place; rows of trial runs (`--smoke`) are refused."""
    if any(row.get("smoke") for one in made for row in one["rows"]):
        raise SystemExit("figures of --smoke runs mean nothing and are not merged")
    runs = dict(published["runs"]) | {one["run"]["name"]: one["run"] for one in made}
    new = {one["run"]["name"] for one in made}
    rows = [row for row in published["rows"] if row["run"] not in new]
    rows += [row for one in made for row in one["rows"]]
    order = {name: place for place, name in enumerate(run for one in DECLARED for run in one.runs())}

    def place(run: str) -> tuple[int, str]:
        return order.get(run, len(order)), run

    return ABOUT | {
        "runs": {name: runs[name] for name in sorted(runs, key=place)},
        "rows": sorted(rows, key=lambda row: place(row["run"])),  # stable: a run's rows stay together
    }


if __name__ == "__main__":
    main()
