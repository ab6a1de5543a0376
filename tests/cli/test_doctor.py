"""`selfmark doctor`: the findings agree with the machine."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch

from selfmark.cli.doctor import collect_findings
from selfmark.config import PRESETS
from selfmark.weights_cache import PUBLISHED_WEIGHTS


def test_findings_describe_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path))
    findings = dict(collect_findings())
    assert findings["torch"] == torch.__version__
    assert findings["CPU"].startswith(f"{os.cpu_count()} cores")
    assert findings["preset auto"].split(":")[0] in PRESETS
    for name in PUBLISHED_WEIGHTS:
        assert f"selfmark weights {name}" in findings[f"weights {name}"]
    assert findings["weights efficientnet-lite0"].endswith(".pth")  # a dependency
    for name in ("av", "onnx", "fastapi"):
        installed = importlib.util.find_spec(name) is not None
        assert findings[f"optional {name}"] == ("installed" if installed else "not installed")


def test_installed_weights_are_shown_with_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(PUBLISHED_WEIGHTS))
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "selfmark.weights_cache.find_weights", lambda weights_name: tmp_path / f"{weights_name}.pth"
    )
    assert dict(collect_findings())[f"weights {name}"] == str(tmp_path / f"{name}.pth")
