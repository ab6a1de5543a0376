"""Spoilt files for every reader, counted: python -m tests.fuzz COUNT SEED OUTPUT.json

COUNT files are shared out between the readers, slow ones getting fewer. Only selfmark's own errors may come
out; anything else is printed with the file that caused it, kept beside OUTPUT, and makes the exit code 1.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from selfmark.errors import SelfmarkError
from tests.fuzz.readers import Reader, make_pictures, readers


@dataclass
class Tally:
    """What became of a reader's files."""

    inputs: int = 0
    read: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    culprits: list[bytes] = field(default_factory=list)


def fuzz(reader: Reader, folder: Path, count: int, rng: random.Random) -> Tally:
    """Give a reader `count` spoilt files, and each of its valid ones first, which it must take."""
    tally, path = Tally(), folder / reader.file
    for content in reader.seeds:
        path.write_bytes(content)
        reader.read(path)
    for _ in range(count):
        content = rng.choice(reader.seeds)
        spoilt = rng.choice(reader.spoil)(content, rng)
        path.write_bytes(spoilt)
        began = time.perf_counter()
        tally.inputs += 1
        try:
            reader.read(path)
            tally.read += 1
        except SelfmarkError:
            tally.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            tally.failures.append(f"{type(error).__name__}: {str(error)[:200]}")
            tally.culprits.append(spoilt)
        tally.slowest_seconds = max(tally.slowest_seconds, time.perf_counter() - began)
    path.unlink()
    return tally


def made_on() -> dict[str, object]:
    """The machine, the versions and the commit, for files under docs/results."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    packages = ("torch", "numpy", "pillow", "safetensors", "PyYAML")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "commit": commit.strip(),
    }


def main(count: int, seed: int, output: Path) -> int:
    warnings.simplefilter("ignore")
    tallies: dict[str, Tally] = {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pictures(folder)
        targets = readers(folder)
        for number, (kind, reader) in enumerate(targets.items()):
            share = round(count / reader.cost / sum(1 / other.cost for other in targets.values()))
            tallies[kind] = fuzz(reader, folder, share, random.Random(f"{seed} {kind}"))
            print(kind, tallies[kind].inputs, "inputs,", len(tallies[kind].failures), "failures", flush=True)
            for index, (why, content) in enumerate(
                zip(tallies[kind].failures[:20], tallies[kind].culprits[:20], strict=True)
            ):
                print("  ", why, flush=True)
                output.with_name(f"failure-{number}-{index}").write_bytes(content)
    result = {
        "seed": seed,
        "inputs": sum(tally.inputs for tally in tallies.values()),
        "failures": sum(len(tally.failures) for tally in tallies.values()),
        "readers": {
            kind: {
                "inputs": tally.inputs,
                "read": tally.read,
                "refused": tally.refused,
                "failures": len(tally.failures),
                "slowest_seconds": round(tally.slowest_seconds, 3),
            }
            for kind, tally in tallies.items()
        },
        "seconds": round(time.perf_counter() - began),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "made_on": made_on(),
    }
    output.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
