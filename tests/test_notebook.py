"""Run the notebook examples/quickstart.ipynb from top to bottom."""

from __future__ import annotations

import csv
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat: Any = pytest.importorskip("nbformat")
    nbclient: Any = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    # The kernel runs with this Python and its packages, even if this Python is not registered with Jupyter.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), *sys.path]))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells), "stored without outputs"
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    text = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    match = re.search(r"error: ([\d.]+) %, guessing the mean: ([\d.]+) %", text)
    assert match is not None
    error, guessing = float(match[1]), float(match[2])
    assert error < 0.7 * guessing
    with open(tmp_path / "landmarks.csv", newline="") as handle:
        assert len(list(csv.DictReader(handle))) == 12 * 16, "16 landmarks in each of 12 images"
    displayed = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert sum("image/png" in output["data"] for output in displayed) == 2
