"""Measure how long `selfmark compare` takes for all methods on the demo's training images.

    PYTHONPATH=src:benchmarks python benchmarks/compare_demo.py [--work FOLDER] [--out FILE]

The result has wall-clock time and CPU time, because other programs may use the cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import provenance

from selfmark.demo.demo_run import SIZE, TRAIN_IMAGES, TRAIN_SEED
from selfmark.demo.scene import generate_scene, write_scene
from selfmark.run.files import read_json, write_json

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "compare_demo.json"
LANDMARKS = 16


def main() -> None:
    """Generate the images, run the command, and record its time and rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("runs/compare-demo"))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    data, output = arguments.work / "data", arguments.work / "comparison"
    if not data.exists():
        write_scene(generate_scene(TRAIN_IMAGES, SIZE, TRAIN_SEED), data)
    command = [sys.executable, "-m", "selfmark", "compare", str(data / "images")]
    command += ["--labels", str(data / "labels.json"), "-k", str(LANDMARKS)]
    command += ["--device", "cpu", "-o", str(output)]
    before, started = os.times(), time.monotonic()
    subprocess.run(command, check=True)
    after = os.times()
    rows = read_json(output / "compare.json")["rows"]
    cpu_seconds = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    record = {
        "script": "benchmarks/compare_demo.py",
        "command": f"selfmark compare images --labels labels.json -k {LANDMARKS}",
        "images": TRAIN_IMAGES,
        "wall_minutes": round((time.monotonic() - started) / 60, 1),
        "cpu_minutes": round(cpu_seconds / 60, 1),
        "load": round(os.getloadavg()[2], 1),
        "peak_gigabytes": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20, 2),
        "hardware": provenance.describe_processor(),
        "versions": {"torch": rows[0]["torch"], "python": sys.version.split()[0]},
        "commit": provenance.read_commit(),
        "rows": rows,
    }
    write_json(record, arguments.out)
    print(f"{record['wall_minutes']} minutes, {record['cpu_minutes']} minutes of CPU time", flush=True)


if __name__ == "__main__":
    main()
