"""Test the settings of the process: freed memory is reused, and the user's variables are kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Program that prints how many megabytes the process keeps after it has freed a tensor of 20 MB.
MEASURE_KEPT_MEMORY = """
import resource, sys
from pathlib import Path
from selfmark.run.process_tuning import tune_process
if sys.argv[1] == "tuned":
    tune_process()
import torch

def measure_memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

before = measure_memory()
values = torch.ones(5_000_000)
del values
print(round((measure_memory() - before) / 1e6))
"""
PRINT_VARIABLES = """
import os
from selfmark.run.process_tuning import tune_process
tune_process()
print(os.environ["GOMP_SPINCOUNT"], os.environ["THP_MEM_ALLOC_ENABLE"])
"""


def run_python(code: str, *arguments: str, **environment: str) -> str:
    """Run code in a new process without the variables that tests and commands set; return its output."""
    names = ("GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=kept | environment, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is tuned")
def test_freed_memory_is_kept_for_the_next_tensors() -> None:
    tuned_bytes, plain_bytes = (int(run_python(MEASURE_KEPT_MEMORY, kind)) for kind in ("tuned", "plain"))
    assert tuned_bytes >= 18
    assert plain_bytes < 5


def test_variables_of_the_user_are_kept() -> None:
    assert run_python(PRINT_VARIABLES).split() == ["10000", "1"]
    assert run_python(PRINT_VARIABLES, GOMP_SPINCOUNT="7").split() == ["7", "1"]
