"""Test that the findings of `selfmark doctor` agree with the machine."""

from __future__ import annotations

import importlib.util
import os
import re
import tomllib
from pathlib import Path

import pytest
import torch

from selfmark.cli.doctor import EXTRAS, collect_findings
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
    assert findings["weights efficientnet-lite0"].endswith(".pth")  # installed with selfmark
    assert re.fullmatch(r"[\d.]+ GiB, [\d.]+ GiB free", findings["memory"])
    assert findings["extra video"].startswith("more video codecs")
    assert findings["extra video"].endswith("installed") == (importlib.util.find_spec("av") is not None)


def test_every_extra_is_listed_with_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert EXTRAS.keys() == extras.keys() - {"dev", "all", "export"}  # export is the old name of onnx
    for name, (modules, _) in EXTRAS.items():
        packages = [re.split("[<>=]", line)[0].replace("-", "_") for line in extras[name]]
        assert [{"scikit_learn": "sklearn"}.get(package, package) for package in packages] == list(modules)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'selfmark[web]'" in dict(collect_findings())["extra web"]


def test_a_driver_without_a_cuda_build_of_torch_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert "install a CUDA build of torch" in dict(collect_findings())["GPU"]


def test_installed_weights_are_shown_with_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(PUBLISHED_WEIGHTS))
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "selfmark.weights_cache.find_weights", lambda weights_name: tmp_path / f"{weights_name}.pth"
    )
    assert dict(collect_findings())[f"weights {name}"] == str(tmp_path / f"{name}.pth")
