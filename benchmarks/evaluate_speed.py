"""Measure how long `selfmark evaluate` takes on a labeled data set, with and without existing predictions.

    python benchmarks/evaluate_speed.py RUN DATA [DATA ...] --out rows.json

DATA is an unzipped data set (images/train, images/test, train.json, test.json). The command runs twice for
each data set, each time in a new process; the second time, the predictions exist. Times include the report.
CPU time hardly depends on other work on the machine. On faces-yt68, `seconds_again` is the row
`evaluate_yt68_s` of docs/results/speed.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import provenance
import torch

from selfmark.run.files import write_json


def main() -> None:
    """Evaluate each data set twice and write the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    hardware = provenance.describe_processor()
    if torch.cuda.is_available():
        hardware = f"{torch.cuda.get_device_name()}, {hardware}"
    rows = []
    for data in arguments.data:
        output = arguments.out.parent / f"evaluation-{data.name}"
        words = [sys.executable, "-m", "selfmark", "evaluate", str(arguments.run), str(data / "images")]
        words += ["--labels", str(data / "test.json"), "--train-labels", str(data / "train.json")]
        seconds, cpu_seconds = [], []
        for _ in range(2):
            started, cpu_before = time.monotonic(), _cpu_seconds_of_children()
            subprocess.run([*words, "-o", str(output)], check=True, stdout=subprocess.DEVNULL)
            seconds.append(round(time.monotonic() - started, 1))
            cpu_seconds.append(round(_cpu_seconds_of_children() - cpu_before, 1))
        metrics = json.loads((output / "metrics.json").read_text())
        rows.append(
            {
                "data": data.name,
                "images": metrics["train_images_used"] + metrics["test_images_used"],
                "points": len(metrics["points"]),
                "seconds_first": seconds[0],
                "seconds_again": seconds[1],
                "cpu_seconds_first": cpu_seconds[0],
                "cpu_seconds_again": cpu_seconds[1],
                "hardware": hardware,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "commit": provenance.read_commit(),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    write_json(rows, arguments.out)


def _cpu_seconds_of_children() -> float:
    """Return the CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
