"""Read and write docs/results/claims.json, which has a short record of each run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from summaries import RIDGE

from selfmark.run.files import read_json

Record = dict[str, Any]

_ABOUT = {
    "script": "benchmarks/quality/run.py --only claims",
    "errors": "percent of the data set's unit, on validation images; ridge 0.01, all training images",
    "stage2": "for each way of reading a heatmap: forward error, its guessing value, backward error, its "
    "guessing value, raw hits in percent, spread of the landmarks divided by that of the annotated points",
}
# Order of the values that a record has for each way of reading heatmaps.
_READING = ("forward", "guessing_forward", "backward", "guessing_backward", "hits", "spread")


def shorten(result: Record) -> Record:
    """Return the record of a run from its result file."""
    run = result["run"]
    (first,) = [row for row in result["rows"] if row["stage"] == 1 and row["ridge"] == RIDGE]
    return {
        "run": run["name"],
        "row": first["name"],
        "data": first["data"],
        "seed": first["seed"],
        "digest": run["digest"],
        "stage1": {
            "forward": first["forward"],
            "guessing_forward": first["mean_shape"],
            "backward": first["backward"],
            "guessing_backward": first["mean_shape_backward"],
            "points_per_image": first["points_per_image"],
        },
        "stage2": {row["reading"]: [row[name] for name in _READING] for row in run["readings"]},
        "unpaired": len(run["unpaired"]),
        "train_images": run["images"],
        "validation_images": run["test_images"],
        "minutes": first["minutes"],
        "processes": run["processes"],
        "hardware": first["hardware"],
        "torch": run["versions"]["torch"],
        "commit": first["commit"],
    }


def get_stage2_value(record: Record, name: str, reading: str) -> float:
    """Return one number of Stage 2, by its name in `_READING` and the way of reading heatmaps."""
    return float(record["stage2"][reading][_READING.index(name)])


def read_records(path: Path) -> list[Record]:
    """Return all records of a file; an empty list if the file does not exist."""
    records: list[Record] = read_json(path)["runs"] if path.exists() else []
    return records


def write_records(records: Sequence[Record], path: Path) -> None:
    """Write all records, one per line."""
    lines = ",\n".join(f"  {json.dumps(record)}" for record in records)
    about = "".join(f" {json.dumps(name)}: {json.dumps(text)},\n" for name, text in _ABOUT.items())
    path.write_text(f'{{\n{about} "runs": [\n{lines}\n ]\n}}\n', encoding="utf-8")
