"""Write rows of measurements on a CPU to a result file."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import provenance
import torch

from selfmark.run.files import write_json

SEED = 0
Rows = dict[str, tuple[float, str]]  # name: value and unit


def write_rows(rows: Rows, path: Path, script: str, cores: str, versions: Mapping[str, str]) -> None:
    """Print rows and write them to a file, replacing rows of the same name and keeping the others.

    Args:
        rows: values, already rounded, and their units.
        path: the result file.
        script: name of the script that measured the rows.
        cores: how many cores the script used.
        versions: versions of the packages that matter, apart from torch and NumPy.
    """
    before = json.loads(path.read_text()) if path.exists() else {"rows": []}
    merged = {row["name"]: row for row in before["rows"]}
    for name, (value, unit) in rows.items():
        print(f"{name:72s} {value:>12} {unit}", flush=True)
        merged[name] = {"name": name, "value": value, "unit": unit}
    content = {
        "script": f"benchmarks/{script}",
        "hardware": f"{cores}, {describe_cpu_and_vnni()}",
        "versions": {
            "torch": torch.__version__,
            **versions,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "commit": provenance.read_commit(),
        "seed": SEED,
        "rows": list(merged.values()),
        **({"note": before["note"]} if "note" in before else {}),
    }
    write_json(content, path)


def describe_cpu_and_vnni() -> str:
    """Return the name of the processor and whether it has VNNI (8-bit multiplication)."""
    info = provenance.read_cpu_info()
    name = info.get("model name", platform.processor())
    return f"{name}, {'with' if 'vnni' in info.get('flags', '') else 'without'} VNNI"
