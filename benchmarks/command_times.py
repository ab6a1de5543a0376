"""Measure the wall-clock time of whole commands on a GPU, and where it goes.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/command_times.py DATA --out times.json

DATA contains flies-dpk.zip and faces-yt68.zip, or the unzipped folders. Each command runs in a new process.
The time includes the start of Python and the imports. The commands share one compilation cache, which is
empty at the start. Run the script alone on the machine. Rows:

discover_small_s      the default command on 60 training images of flies-dpk, including verification
discover_yt68_fast_s  `--preset fast` (no features) on all 3,095 training images of faces-yt68
zero_shot_3000_s      `--method zero-shot` on the first 3,000 of these images
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import provenance
import torch
from quality_data import prepare_working_copy
from run_profile import profile

from selfmark.images.sources import list_images
from selfmark.run.files import write_json

COMMANDS: dict[str, tuple[str, int, int, list[str]]] = {  # data set, K, maximum number of images, options
    "discover_small_s": ("flies-dpk", 16, 60, []),
    "discover_yt68_fast_s": ("faces-yt68", 30, 3_095, ["--preset", "fast", "--no-verify"]),
    "zero_shot_3000_s": ("faces-yt68", 30, 3_000, ["--method", "zero-shot", "--no-verify"]),
}


def main() -> None:
    """Run the commands one after the other and write their times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=sorted(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as work:
        environment = os.environ | {"TRITON_CACHE_DIR": f"{work}/triton"}
        for name in arguments.only:
            rows.append(measure(name, arguments.data, Path(work), environment, arguments.settings))
            print(rows[-1], flush=True)
    result = {
        "script": "benchmarks/command_times.py",
        "hardware": provenance.describe_device(),
        "torch": torch.__version__,
        "commit": provenance.read_commit(),
        "seed": 0,
        "rows": rows,
    }
    if arguments.out:
        write_json(result, arguments.out)


def measure(
    name: str, data: Path, work: Path, environment: dict[str, str], settings: list[str]
) -> dict[str, Any]:
    """Run one command; return its wall-clock time and the seconds of each part of the run.

    Args:
        name: key of `COMMANDS`.
        data: folder of the zipped or unzipped data sets.
        work: folder for unzipped data and for the run.
        environment: environment variables of the process.
        settings: settings that differ from the default, as `name=value`.
    """
    dataset, K, max_images, options = COMMANDS[name]
    folder = prepare_working_copy(dataset, data, work)
    images = [str(ref.path) for ref in list_images([folder / "images" / "train"])[:max_images]]
    listing = work / f"{name}.txt"
    listing.write_text("".join(f"{path}\n" for path in images), encoding="utf-8")
    words = [sys.executable, "-m", "selfmark", "discover", str(listing), "-k", str(K), *options]
    words += ["-o", str(work / name), *(f"--set={setting}" for setting in settings)]
    started, start_time = time.perf_counter(), time.time()
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    seconds_by_part = profile(work / name, start_time)
    return {
        "name": name,
        "value": round(seconds, 1),
        "unit": "s",
        "images": len(images),
        "command": " ".join(["selfmark", "discover", "IMAGES", "-k", str(K), *options]),
        "seconds_by_part": seconds_by_part,
    }


if __name__ == "__main__":
    main()
