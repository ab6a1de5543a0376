"""Find the commit and the hardware that produced a result, for the result files."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def read_commit() -> str:
    """Return the git commit, with `-dirty` if files have uncommitted changes; "unknown" without git."""
    words = ["git", "describe", "--always", "--dirty"]
    try:
        result = subprocess.run(words, cwd=_HERE, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return result.stdout.strip() or "unknown"


def read_cpu_info() -> dict[str, str]:
    """Return the properties of the first core from /proc/cpuinfo; empty on systems other than Linux."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().split("\n\n")[0].splitlines() if path.exists() else []
    entries = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in entries}


def describe_processor() -> str:
    """Return the number of cores and the name of the processor."""
    name = read_cpu_info().get("model name") or platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {name}"


def describe_device() -> str:
    """Return the name of the GPU; without a GPU, the cores and the name of the processor."""
    import torch  # here, because some scripts configure torch before they import it

    return torch.cuda.get_device_name() if torch.cuda.is_available() else describe_processor()
