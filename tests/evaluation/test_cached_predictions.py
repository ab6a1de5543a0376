"""Test that predictions are computed once, and again when anything they depend on changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import selfmark.evaluation.cached_predictions as cached_predictions_module
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation import run_evaluation
from selfmark.evaluation.cached_predictions import CachedPredictions, load_or_predict
from selfmark.evaluation.run_evaluation import EvaluationInputs, evaluate_run
from selfmark.evaluation.run_models import RunModels
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.run.folder import Run


@pytest.fixture
def folder(quick_run: Path, tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("predictions")  # written by earlier tests
    return Path(shutil.copytree(quick_run, tmp_path / "run", ignore=ignore))


@pytest.fixture
def prediction_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list; each call that computes predictions appends its number of images."""
    calls: list[int] = []
    original = cached_predictions_module._predict

    def count_calls(models, refs, on_progress):  # type: ignore[no-untyped-def]
        calls.append(len(refs))
        return original(models, refs, on_progress)

    monkeypatch.setattr(cached_predictions_module, "_predict", count_calls)
    return calls


def _load_or_predict(folder: Path, refs: Sequence[ImageRef]) -> CachedPredictions:
    """Open a run and return its predictions, from the cache if they are in it."""
    return load_or_predict(RunModels.open(Run.open(folder), "cpu"), refs)


def test_predictions_equal_those_of_the_detector(folder: Path, photos: Path) -> None:
    refs = list_images([photos])
    predictions = _load_or_predict(folder, refs)
    direct = Detector.load(folder)(photos)
    # The images have the size of the network's input, so network pixels equal image pixels.
    np.testing.assert_allclose(predictions.xy, direct.xy, atol=1e-4)
    np.testing.assert_allclose(predictions.score, direct.score, atol=1e-6)
    assert predictions.rows.tolist() == list(range(24))
    assert predictions.regions.tolist() == [[0, 0, 64, 64]] * 24
    assert predictions.stage1.shape == (24, 4, 2)


@pytest.mark.parametrize("step", ["_predict", "load_or_check", "run_label_free_checks"])
def test_results_of_a_detector_that_was_replaced_meanwhile_are_not_stored(
    step: str, folder: Path, labeled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `refine`, results of the original detector would count as those of the refined one."""
    module = cached_predictions_module if step == "_predict" else run_evaluation
    function = getattr(module, step)

    def compute_and_replace(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        detector = Detector.load(folder)
        with torch.no_grad():
            next(iter(detector.psi.parameters())).mul_(2)
        detector.save(folder / "model")
        return result

    monkeypatch.setattr(module, step, compute_and_replace)
    before = (folder / "metrics.json").read_bytes()
    inputs = EvaluationInputs(labeled / "images", labeled / "labels.json")
    with pytest.raises(InputError, match=r"the detector of .* changed while it was used, .*refine"):
        evaluate_run(folder, inputs, device="cpu")
    assert (folder / "metrics.json").read_bytes() == before
    endings = {"_predict": set(), "run_label_free_checks": {".safetensors"}}
    if step in endings:
        files = (folder / "predictions").glob("*")
        assert {path.name[16:] for path in files} == endings[step]


def test_predictions_are_computed_once_and_then_read(
    folder: Path, photos: Path, prediction_calls: list[int]
) -> None:
    refs = list_images([photos])
    first, second = _load_or_predict(folder, refs), _load_or_predict(folder, refs)
    assert prediction_calls == [24]
    for name in ("rows", "xy", "score", "stage1", "regions"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    _load_or_predict(folder, refs[:5])
    assert prediction_calls == [24, 5]
    _load_or_predict(folder, refs)
    assert prediction_calls == [24, 5]


def test_changed_weights_settings_or_images_invalidate_the_cache(
    folder: Path, photos: Path, tmp_path: Path, prediction_calls: list[int]
) -> None:
    images = Path(shutil.copytree(photos, tmp_path / "images"))
    refs = list_images([images])
    before = _load_or_predict(folder, refs)

    weights = folder / "model" / "weights.safetensors"
    tensors = load_file(weights)
    save_file({name: value + 0.1 * torch.randn_like(value) for name, value in tensors.items()}, weights)
    after = _load_or_predict(folder, refs)
    assert len(prediction_calls) == 2
    assert not np.array_equal(before.xy, after.xy)

    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("threshold: 0.0\n", "threshold: 0.05\n"))
    _load_or_predict(folder, refs)
    assert len(prediction_calls) == 3

    card = json.loads((folder / "model" / "model.json").read_text())
    card["flip_test"] = not card["flip_test"]
    (folder / "model" / "model.json").write_text(json.dumps(card))
    _load_or_predict(folder, refs)
    assert len(prediction_calls) == 4

    os.utime(refs[3].path, ns=(1, 1))  # an image with another time of modification counts as changed
    _load_or_predict(folder, refs)
    assert len(prediction_calls) == 5


@pytest.mark.parametrize("kind", ["written", "renamed"])
def test_an_image_of_the_same_size_and_modification_time_is_predicted_again(
    kind: str, folder: Path, photos: Path, tmp_path: Path, prediction_calls: list[int]
) -> None:
    """Archives restore modification times, and uncompressed images of one shape have the same file size."""
    used, other = tmp_path / "used.bmp", tmp_path / "other.bmp"
    for path, name in ((used, "000.png"), (other, "001.png")):
        with Image.open(photos / name) as image:
            image.save(path)
        os.utime(path, ns=(1, 1))
    before = _load_or_predict(folder, list_images([used]))
    if kind == "written":
        used.write_bytes(other.read_bytes())
        os.utime(used, ns=(1, 1))
    else:
        other.replace(used)
    after = _load_or_predict(folder, list_images([used]))
    assert prediction_calls == [1, 1]
    assert not np.array_equal(before.xy, after.xy)


def test_names_and_evaluation_settings_keep_the_cache(
    folder: Path, photos: Path, prediction_calls: list[int]
) -> None:
    refs = list_images([photos])
    _load_or_predict(folder, refs)
    card = json.loads((folder / "model" / "model.json").read_text())
    card["names"] = ["nose", "ear", "paw", "tail"]
    (folder / "model" / "model.json").write_text(json.dumps(card))
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("draws: 10\n", "draws: 3\n"))
    _load_or_predict(folder, refs)
    assert len(prediction_calls) == 1


def test_a_damaged_cache_file_is_replaced(folder: Path, photos: Path, prediction_calls: list[int]) -> None:
    refs = list_images([photos])
    first = _load_or_predict(folder, refs)
    (file,) = (folder / "predictions").iterdir()
    file.write_bytes(file.read_bytes()[:500])
    np.testing.assert_array_equal(_load_or_predict(folder, refs).xy, first.xy)
    assert len(prediction_calls) == 2


def test_unreadable_images_are_listed_as_skipped(folder: Path, photos: Path, tmp_path: Path) -> None:
    images = Path(shutil.copytree(photos, tmp_path / "images"))
    refs = list_images([images])
    refs[2].path.write_bytes(b"no picture")
    predictions = _load_or_predict(folder, refs)
    assert predictions.rows.tolist() == [0, 1, *range(3, 24)]
    assert str(refs[2].path) in predictions.skipped[0]
    with pytest.raises(InputError, match=r"none of the images could be read \(0 of 1\)"):
        _load_or_predict(folder, refs[2:3])
