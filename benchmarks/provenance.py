"""What every published figure says of itself: which commit made it, and on which processor."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def commit() -> str:
    """What git calls the code, `-dirty` where it has uncommitted changes; "unknown" outside a repository."""
    words = ["git", "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(words, cwd=_HERE, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return found.stdout.strip() or "unknown"


def processor_facts() -> dict[str, str]:
    """What Linux says of the first core; empty elsewhere."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().split("\n\n")[0].splitlines() if path.exists() else []
    entries = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in entries}


def processor() -> str:
    """How many cores of what."""
    name = processor_facts().get("model name") or platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores, {name}"
