"""Merge the output of `run.py` into quality.json and claims.json in docs/results.

    python benchmarks/quality/merge.py DIR [DIR ...]

A new run replaces an old run of the same name. quality.json contains `rows` and `runs`. There is one row for
each stage and ridge of each run, in the order of the experiments. `runs` has everything else about each run:
its settings, errors by pose or yaw, trust in each landmark, versions. claims.json contains one record for
each run of `claim_experiments.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claim_experiments import CLAIM_EXPERIMENTS
from claim_records import read_records, shorten, write_records
from experiments import EXPERIMENTS

from selfmark.run.files import read_json, write_json

RESULTS = Path(__file__).resolve().parent.parent.parent / "docs" / "results"
QUALITY, CLAIMS = RESULTS / "quality.json", RESULTS / "claims.json"
ABOUT = {
    "script": "benchmarks/quality/run.py",
    "errors": "percent of the run's normalizer; regressors fitted on all training images",
    "ridge": "relative to the largest entry of X'X; the authors' program uses 0.001 on CelebA, 0.1 on LS3D",
    "minutes": "wall-clock time of `discover`, without startup and evaluation; the field `processes` of a "
    "run is the number of runs that shared the GPU",
}


def main() -> None:
    """Merge all result files of the given folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    arguments = parser.parse_args()
    results = [read_json(path) for folder in arguments.folders for path in sorted(folder.glob("*.json"))]
    new_results = [
        result for result in results if isinstance(result, dict) and set(result) == {"run", "rows"}
    ]
    refuse_trial_runs(new_results)
    names = [run for experiment in CLAIM_EXPERIMENTS for run in experiment.list_run_names()]
    quality = [result for result in new_results if result["run"]["name"] not in names]
    if quality:
        published = read_json(QUALITY) if QUALITY.exists() else {"runs": {}, "rows": []}
        merged = merge(published, quality)
        write_json(merged, QUALITY)
        print(f"merged {len(quality)} runs; {QUALITY} has {len(merged['runs'])} runs")
    claims = {
        result["run"]["name"]: shorten(result) for result in new_results if result["run"]["name"] in names
    }
    if claims:
        records = {record["run"]: record for record in read_records(CLAIMS)} | claims
        write_records([records[name] for name in names if name in records], CLAIMS)
        print(f"merged {len(claims)} runs; {CLAIMS} has {len(records)} runs")


def merge(published: dict[str, Any], new_results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of quality.json, updated with new results."""
    refuse_trial_runs(new_results)
    runs = dict(published["runs"]) | {result["run"]["name"]: result["run"] for result in new_results}
    replaced_runs = {result["run"]["name"] for result in new_results}
    rows = [row for row in published["rows"] if row["run"] not in replaced_runs]
    rows += [row for result in new_results for row in result["rows"]]
    order = {
        name: index
        for index, name in enumerate(run for experiment in EXPERIMENTS for run in experiment.list_run_names())
    }

    def sort_key(run: str) -> tuple[int, str]:
        return order.get(run, len(order)), run

    return ABOUT | {
        "runs": {name: runs[name] for name in sorted(runs, key=sort_key)},
        # The sort is stable, so the rows of a run keep their order.
        "rows": sorted(rows, key=lambda row: sort_key(row["run"])),
    }


def refuse_trial_runs(results: Sequence[dict[str, Any]]) -> None:
    """Exit if any result is from a trial run (`--smoke`)."""
    if any(row.get("smoke") for result in results for row in result["rows"]):
        raise SystemExit("the results contain --smoke runs; their numbers mean nothing, so nothing is merged")


if __name__ == "__main__":
    main()
