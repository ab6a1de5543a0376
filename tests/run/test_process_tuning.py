"""Test the settings of the process: freed memory is reused, and the user's variables are kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Program that prints the number of page faults in each call of `compute_maps`. As in training steps, the maps
# are freed after every call.
COUNT_PAGE_FAULTS = """
import resource, sys
from selfmark.run.process_tuning import tune_process
if sys.argv[1] == "tuned":
    tune_process()
import torch
torch.set_num_threads(1)

def compute_maps():
    maps = [torch.zeros(2 << 20)]  # 8 MB
    for _ in range(8):
        maps.append(maps[-1] + 1)

for _ in range(3):
    compute_maps()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    compute_maps()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 4)
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
def test_freed_maps_are_reused() -> None:
    assert int(run_python(COUNT_PAGE_FAULTS, "tuned")) < 0.25 * int(run_python(COUNT_PAGE_FAULTS, "plain"))


def test_variables_of_the_user_are_kept() -> None:
    assert run_python(PRINT_VARIABLES).split() == ["10000", "1"]
    assert run_python(PRINT_VARIABLES, GOMP_SPINCOUNT="7").split() == ["7", "1"]
