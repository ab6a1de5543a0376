"""Fuzz readers in one process or several, and count what was read."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import resource
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfmark.errors import SelfmarkError
from tests.fuzz.readers import Reader, build_readers, make_pictures

CORPUS = Path(__file__).parent / "corpus"
_ROUND = 200  # files that a reader reads before the next reader's turn
_MAX_ACCEPTED = 200  # accepted files of a reader that are corrupted further
_COUNTS = "counts.json"  # file with the counts of a process so far

Counts = dict[str, Any]


@dataclass
class FuzzResult:
    """Outcome of fuzzing one reader.

    inputs:          number of corrupted files
    read:            number of corrupted files that the reader read without an error
    refused:         number of corrupted files that the reader refused with an error of selfmark
    slowest_seconds: longest time for one file
    failures:        messages of all other errors
    failing_inputs:  contents of the files that caused the failures
    accepted:        contents of some of the files that were read; these contents are corrupted further
    """

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
    """Let a reader read `count` corrupted files.

    In the first round, the reader reads its valid files before the corrupted files. If it fails on a valid
    file, the error is raised.

    Args:
        reader: the reader.
        folder: folder for its file.
        count: number of corrupted files.
        rng: source of the corruption.
        result: result of earlier rounds, to which this round is added; None for the first round.
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


def list_corpus_files(reader: Reader, kind: str) -> list[Path]:
    """Return the files of the corpus for a reader: those that once caused an error."""
    return sorted((CORPUS / kind.replace(" ", "-")).glob(f"*-{Path(reader.file).name}"))


def add_to_corpus(kind: str, reader: Reader, content: bytes) -> Path:
    """Store a file that caused an error."""
    folder = CORPUS / kind.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(content).hexdigest()[:12]}-{Path(reader.file).name}"
    path.write_bytes(content)
    return path


def describe_machine(commit: str) -> dict[str, object]:
    """Describe the machine, versions and commit, for files in docs/results."""
    packages = ("torch", "numpy", "pillow", "safetensors", "PyYAML")
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "commit": commit or _ask_git(),
    }


def _ask_git() -> str:
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


# --- one process ---------------------------------------------------------------------------------------


def fuzz_all(minutes: float, seed: str, kinds: list[str], folder: Path) -> None:
    """Fuzz readers in turn, and write the counts after each round of all readers.

    So the counts of earlier rounds are kept if the process dies.

    Args:
        minutes: time to spend.
        seed: seed of the corruption.
        kinds: names of the readers.
        folder: empty folder for the files and for the counts.
    """
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    results: dict[str, FuzzResult] = {}
    make_pictures(folder)
    targets = {kind: reader for kind, reader in build_readers(folder).items() if kind in kinds}
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
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        counts = {kind: _count(result) for kind, result in results.items()}
        (folder / _COUNTS).write_text(json.dumps({"readers": counts, "peak_megabytes": megabytes}))


def _count(result: FuzzResult) -> Counts:
    return {
        "inputs": result.inputs,
        "read": result.read,
        "refused": result.refused,
        "failures": len(result.failures),
        "slowest_seconds": round(result.slowest_seconds, 3),
    }


# --- several processes and runs ------------------------------------------------------------------------


def fuzz_in_processes(minutes: float, seed: int, processes: int, kinds: list[str]) -> dict[str, Any]:
    """Fuzz readers in several processes at the same time and return the sum of their counts.

    A process may die, for example by a segmentation fault in a library. Its death counts as a failure of the
    reader whose file the process was reading, and this file is added to the corpus.
    """
    summaries = []
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, str(number)) for number in range(processes)]
        workers = []
        for number, folder in enumerate(folders):
            folder.mkdir()
            arguments = (minutes, f"{seed} {number}", kinds, folder)
            workers.append(multiprocessing.get_context("spawn").Process(target=fuzz_all, args=arguments))
            workers[-1].start()
        for worker, folder in zip(workers, folders, strict=True):
            worker.join()
            path = folder / _COUNTS
            summary = json.loads(path.read_text()) if path.exists() else {"readers": {}, "peak_megabytes": 0}
            if worker.exitcode != 0:
                summary = add_counts([summary, record_death(folder, worker.exitcode)])
            summaries.append(summary)
    return add_counts(summaries)


def record_death(folder: Path, code: int | None) -> dict[str, Any]:
    """Return counts with one failure, for the file that a process was reading when it died."""
    make_pictures(folder)
    being_read = [
        (kind, reader) for kind, reader in build_readers(folder).items() if (folder / reader.file).exists()
    ]
    for kind, reader in being_read:
        path = add_to_corpus(kind, reader, (folder / reader.file).read_bytes())
        print(f"{kind}: the process ended with {code} ({path})", flush=True)
    kind = being_read[0][0] if being_read else "process"
    failure = {"inputs": 1, "read": 0, "refused": 0, "failures": 1, "slowest_seconds": 0.0}
    return {"readers": {kind: failure}, "peak_megabytes": 0}


def add_counts(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add the counts of several processes or runs.

    >>> one = {"readers": {"video": {"inputs": 2, "failures": 0, "slowest_seconds": 0.5}}}
    >>> add_counts([one, one])["readers"]["video"]
    {'inputs': 4, 'failures': 0, 'slowest_seconds': 0.5}
    """
    total: dict[str, Counts] = {}
    for summary in summaries:
        for kind, counts in summary["readers"].items():
            known = total.setdefault(kind, dict.fromkeys(counts, 0))
            for name, value in counts.items():
                known[name] = max(known[name], value) if name == "slowest_seconds" else known[name] + value
    return {
        "inputs": sum(counts["inputs"] for counts in total.values()),
        "failures": sum(counts["failures"] for counts in total.values()),
        "readers": total,
        "peak_megabytes": max(summary.get("peak_megabytes", 0) for summary in summaries),
        "runs": [run for summary in summaries for run in summary.get("runs", ())],
    }
