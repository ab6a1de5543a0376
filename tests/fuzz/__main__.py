"""Fuzz every file reader, and every writer that a reader reads back.

    python -m tests.fuzz --minutes 10 --seed 1 --out fuzz.json

Valid files are corrupted and read for the given time; slow readers get fewer files. Files that a reader
accepts are corrupted further. Readers may only raise errors of selfmark, and what is written must be read
back unchanged. Other errors are printed, the files that caused them are added to tests/fuzz/corpus,
which the test suite reads, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from selfmark.errors import SelfmarkError
from tests.fuzz.readers import Reader, make_pictures, readers

CORPUS = Path(__file__).parent / "corpus"
_ROUND = 200  # files per reader before the next one has its turn
_MAX_ACCEPTED = 200  # accepted files of a reader that are corrupted further


@dataclass
class FuzzResult:
    """Outcome of fuzzing one reader."""

    inputs: int = 0
    read: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    failing_inputs: list[bytes] = field(default_factory=list)
    accepted: list[bytes] = field(default_factory=list)


def fuzz(
    reader: Reader, folder: Path, count: int, rng: random.Random, result: FuzzResult | None = None
) -> FuzzResult:
    """Let a reader read its valid files, which must succeed, and then `count` corrupted ones.

    Args:
        reader: the reader.
        folder: folder for its file.
        count: number of corrupted files.
        rng: source of the corruption.
        result: result of earlier rounds, to which this one is added; None for the first round.
    """
    path = folder / reader.file
    if result is None:
        result = FuzzResult()
        for content in reader.seeds:
            path.write_bytes(content)
            reader.read(path)
    for _ in range(count):
        content = rng.choice((*reader.seeds, *result.accepted))
        corrupted = rng.choice(reader.mutators)(content, rng)
        path.write_bytes(corrupted)
        start = time.perf_counter()
        result.inputs += 1
        try:
            reader.read(path)
            result.read += 1
            if len(corrupted) < 4 * len(content) and rng.random() < 0.1:
                result.accepted = [*result.accepted, corrupted][-_MAX_ACCEPTED:]
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


def corpus_files(reader: Reader, kind: str) -> list[Path]:
    """Return the files of the corpus for a reader: those that once caused an error."""
    return sorted((CORPUS / kind.replace(" ", "-")).glob(f"*-{reader.file}"))


def add_to_corpus(kind: str, reader: Reader, content: bytes) -> Path:
    """Store a file that caused an error."""
    folder = CORPUS / kind.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(content).hexdigest()[:12]}-{reader.file}"
    path.write_bytes(content)
    return path


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


def fuzz_all(minutes: float, seed: str) -> tuple[dict[str, FuzzResult], int]:
    """Fuzz all readers in turn; return their results and the peak memory in megabytes."""
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    results: dict[str, FuzzResult] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pictures(folder)
        targets = readers(folder)
        rngs = {kind: random.Random(f"{seed} {kind}") for kind in targets}
        while time.perf_counter() - start < 60 * minutes:
            for kind, reader in targets.items():
                count = max(1, _ROUND // reader.cost)
                reported = len(results[kind].failures) if kind in results else 0
                results[kind] = fuzz(reader, folder, count, rngs[kind], results.get(kind))
                for reason, content in zip(
                    results[kind].failures[reported:], results[kind].failing_inputs[reported:], strict=True
                ):
                    print(f"{kind}: {reason} ({add_to_corpus(kind, reader, content)})", flush=True)
    return results, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every reader and writer.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    start, made_on = time.perf_counter(), describe_machine()
    seeds = [f"{arguments.seed} {number}" for number in range(arguments.processes)]
    with ProcessPoolExecutor(arguments.processes) as executor:
        parts = list(executor.map(fuzz_all, [arguments.minutes] * len(seeds), seeds))
    results = {kind: [part[kind] for part, _ in parts] for kind in parts[0][0]}
    counts = {
        kind: {
            "inputs": sum(part.inputs for part in group),
            "read": sum(part.read for part in group),
            "refused": sum(part.refused for part in group),
            "failures": sum(len(part.failures) for part in group),
            "slowest_seconds": round(max(part.slowest_seconds for part in group), 3),
        }
        for kind, group in results.items()
    }
    summary = {
        "seed": arguments.seed,
        "processes": arguments.processes,
        "inputs": sum(count["inputs"] for count in counts.values()),
        "failures": sum(count["failures"] for count in counts.values()),
        "readers": counts,
        "seconds": round(time.perf_counter() - start),
        "peak_megabytes": max(megabytes for _, megabytes in parts),
        "made_on": made_on,
    }
    text = json.dumps(summary, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
    return 1 if summary["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
