"""Predictions are made once, and again as soon as anything they depend on has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import selfmark.evaluation.cached_predictions as module
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation.cached_predictions import CachedPredictions, load_or_predict
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.run.folder import Run


@pytest.fixture
def folder(quick_run: Path, tmp_path: Path) -> Path:
    others = shutil.ignore_patterns("predictions")  # those of tests that ran before
    return Path(shutil.copytree(quick_run, tmp_path / "run", ignore=others))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one each time predictions are really made."""
    calls: list[int] = []
    original = module._predict

    def counted(run, detector, stage1, refs, on_progress):  # type: ignore[no-untyped-def]
        calls.append(len(refs))
        return original(run, detector, stage1, refs, on_progress)

    monkeypatch.setattr(module, "_predict", counted)
    return calls


def _predict(folder: Path, refs: Sequence[ImageRef]) -> CachedPredictions:
    run = Run.open(folder)
    return load_or_predict(run, Detector.load(folder), Stage1.load(run, "cpu"), refs)


def test_they_equal_what_the_detector_says(folder: Path, photos: Path) -> None:
    refs = list_images([photos])
    found = _predict(folder, refs)
    direct = Detector.load(folder)(photos)
    # The pictures have the network's size, so network pixels are the pictures' own.
    np.testing.assert_allclose(found.xy, direct.xy, atol=1e-4)
    np.testing.assert_allclose(found.score, direct.score, atol=1e-6)
    assert found.rows.tolist() == list(range(24))
    assert found.regions.tolist() == [[0, 0, 64, 64]] * 24
    assert found.stage1.shape == (24, 4, 2)


def test_made_once_then_read(folder: Path, photos: Path, made: list[int]) -> None:
    refs = list_images([photos])
    first, second = _predict(folder, refs), _predict(folder, refs)
    assert made == [24]
    for name in ("rows", "xy", "score", "stage1", "regions"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    _predict(folder, refs[:5])
    assert made == [24, 5]
    _predict(folder, refs)
    assert made == [24, 5]


def test_a_change_of_weights_settings_or_images_makes_them_anew(
    folder: Path, photos: Path, tmp_path: Path, made: list[int]
) -> None:
    pictures = Path(shutil.copytree(photos, tmp_path / "pictures"))
    refs = list_images([pictures])
    before = _predict(folder, refs)

    weights = folder / "model" / "weights.safetensors"
    tensors = load_file(weights)
    save_file({name: value + 0.1 * torch.randn_like(value) for name, value in tensors.items()}, weights)
    after = _predict(folder, refs)
    assert len(made) == 2
    assert not np.array_equal(before.xy, after.xy)

    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("threshold: 0.0\n", "threshold: 0.05\n"))
    _predict(folder, refs)
    assert len(made) == 3

    card = json.loads((folder / "model" / "model.json").read_text())
    card["flip_test"] = not card["flip_test"]
    (folder / "model" / "model.json").write_text(json.dumps(card))
    _predict(folder, refs)
    assert len(made) == 4

    os.utime(refs[3].path, ns=(1, 1))
    _predict(folder, refs)
    assert len(made) == 5


def test_names_and_evaluation_settings_change_nothing(folder: Path, photos: Path, made: list[int]) -> None:
    refs = list_images([photos])
    _predict(folder, refs)
    card = json.loads((folder / "model" / "model.json").read_text())
    card["names"] = ["nose", "ear", "paw", "tail"]
    (folder / "model" / "model.json").write_text(json.dumps(card))
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("draws: 10\n", "draws: 3\n"))
    _predict(folder, refs)
    assert len(made) == 1


def test_a_damaged_file_is_made_anew(folder: Path, photos: Path, made: list[int]) -> None:
    refs = list_images([photos])
    first = _predict(folder, refs)
    (file,) = (folder / "predictions").iterdir()
    file.write_bytes(file.read_bytes()[:500])
    np.testing.assert_array_equal(_predict(folder, refs).xy, first.xy)
    assert len(made) == 2


def test_unreadable_images_are_left_out_by_name(folder: Path, photos: Path, tmp_path: Path) -> None:
    pictures = Path(shutil.copytree(photos, tmp_path / "pictures"))
    refs = list_images([pictures])
    refs[2].path.write_bytes(b"no picture")
    found = _predict(folder, refs)
    assert found.rows.tolist() == [0, 1, *range(3, 24)]
    assert str(refs[2].path) in found.skipped[0]
    with pytest.raises(InputError, match="none of the 1 images"):
        _predict(folder, refs[2:3])
