"""Measure `selfmark evaluate` on a labeled data set, without and with existing predictions.

    python benchmarks/evaluate_speed.py RUN DATA [DATA ...] --out rows.json

DATA is an unzipped data set (images/train, images/test, train.json, test.json). Times are for the whole
command in a new process, including the report.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from selfmark.run.files import write_json


def main() -> None:
    """Evaluate each data set twice and write the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    rows = []
    for data in arguments.data:
        output = arguments.out.parent / f"evaluation-{data.name}"
        words = [sys.executable, "-m", "selfmark", "evaluate", str(arguments.run), str(data / "images")]
        words += ["--labels", str(data / "test.json"), "--train-labels", str(data / "train.json")]
        seconds = []
        for _ in range(2):
            started = time.monotonic()
            subprocess.run([*words, "-o", str(output)], check=True, stdout=subprocess.DEVNULL)
            seconds.append(round(time.monotonic() - started, 1))
        metrics = json.loads((output / "metrics.json").read_text())
        rows.append(
            {
                "data": data.name,
                "images": metrics["train_images_used"] + metrics["test_images_used"],
                "points": len(metrics["points"]),
                "seconds_first": seconds[0],
                "seconds_again": seconds[1],
                "hardware": hardware,
                "torch": torch.__version__,
                "python": platform.python_version(),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    write_json(rows, arguments.out)


if __name__ == "__main__":
    main()
