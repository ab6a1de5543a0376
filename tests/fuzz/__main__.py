"""Fuzz every file reader: python -m tests.fuzz COUNT SEED OUTPUT.json.

COUNT corrupted files are divided between the readers; slow readers get fewer. Readers may only raise errors
of selfmark. Other errors are printed, the files that caused them are kept beside OUTPUT, and the exit code
is 1.
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
class FuzzResult:
    """Outcome of fuzzing one reader."""

    inputs: int = 0
    read: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    failing_inputs: list[bytes] = field(default_factory=list)


def fuzz(reader: Reader, folder: Path, count: int, rng: random.Random) -> FuzzResult:
    """Let a reader read its valid files, which must succeed, and then `count` corrupted ones."""
    result, path = FuzzResult(), folder / reader.file
    for content in reader.seeds:
        path.write_bytes(content)
        reader.read(path)
    for _ in range(count):
        content = rng.choice(reader.seeds)
        corrupted = rng.choice(reader.mutators)(content, rng)
        path.write_bytes(corrupted)
        start = time.perf_counter()
        result.inputs += 1
        try:
            reader.read(path)
            result.read += 1
        except SelfmarkError:
            result.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            result.failures.append(f"{type(error).__name__}: {str(error)[:200]}")
            result.failing_inputs.append(corrupted)
        result.slowest_seconds = max(result.slowest_seconds, time.perf_counter() - start)
    path.unlink()
    return result


def describe_machine() -> dict[str, object]:
    """Describe the machine, versions and commit, for files in docs/results."""
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
    results: dict[str, FuzzResult] = {}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pictures(folder)
        targets = readers(folder)
        for number, (kind, reader) in enumerate(targets.items()):
            num_files = round(count / reader.cost / sum(1 / other.cost for other in targets.values()))
            results[kind] = fuzz(reader, folder, num_files, random.Random(f"{seed} {kind}"))
            print(kind, results[kind].inputs, "inputs,", len(results[kind].failures), "failures", flush=True)
            for index, (reason, content) in enumerate(
                zip(results[kind].failures[:20], results[kind].failing_inputs[:20], strict=True)
            ):
                print("  ", reason, flush=True)
                output.with_name(f"failure-{number}-{index}").write_bytes(content)
    summary = {
        "seed": seed,
        "inputs": sum(result.inputs for result in results.values()),
        "failures": sum(len(result.failures) for result in results.values()),
        "readers": {
            kind: {
                "inputs": result.inputs,
                "read": result.read,
                "refused": result.refused,
                "failures": len(result.failures),
                "slowest_seconds": round(result.slowest_seconds, 3),
            }
            for kind, result in results.items()
        },
        "seconds": round(time.perf_counter() - start),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "made_on": describe_machine(),
    }
    output.write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if summary["failures"] else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
