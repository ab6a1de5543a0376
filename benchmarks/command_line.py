"""Measure how long the command line takes to show its help and to report a wrong path.

    python benchmarks/command_line.py --out docs/results/command_line.json

The commands take turns. Each runs several times, every time in a new process. In the results, `value` is
the median CPU time, which depends little on other programs. `wall` is the shortest wall-clock time.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import provenance

from selfmark.run.files import write_json

COMMANDS = {
    "cli_help_s": ["--help"],
    "cli_error_s": ["discover", "nosuch"],
    "cli_error_predict_s": ["predict", "nosuch", "x"],
    "cli_error_evaluate_s": ["evaluate", "nosuch", "x"],
}


def run_once(words: list[str]) -> tuple[float, float]:
    """Run a command; return its CPU time and its wall-clock time in seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-m", "selfmark", *words], check=False, capture_output=True)
    wall_seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_seconds


def main() -> None:
    """Run all commands and write their times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(arguments.repeats):
        for name, words in COMMANDS.items():
            seconds[name].append(run_once(words))
    rows = [
        {
            "name": name,
            "command": " ".join(["selfmark", *COMMANDS[name]]),
            "value": round(statistics.median(cpu for cpu, _ in values), 3),
            "wall": round(min(wall for _, wall in values), 3),
            "unit": "s",
        }
        for name, values in seconds.items()
    ]
    write_json(
        {
            "script": "benchmarks/command_line.py",
            "commit": provenance.read_commit(),
            "hardware": provenance.describe_processor(),
            "python": platform.python_version(),
            "rows": rows,
        },
        arguments.out,
    )


if __name__ == "__main__":
    main()
