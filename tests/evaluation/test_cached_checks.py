"""Test two caches: the label-free checks of a run, and the landmarks and plot positions of a report.

A cache is used until one of its inputs changes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.config import Evaluation
from selfmark.evaluation.cached_checks import load_or_check
from selfmark.evaluation.run_models import RunModels
from selfmark.images.sources import list_images
from selfmark.report.cached_placements import Placements, load_or_compute_placements
from selfmark.run.folder import Run

CHECKS = {"appearance_error": [0.25, None], "trust": [0.1, 1 / 3], "verdict": "good"}


@pytest.fixture
def models(quick_run: Path, tmp_path: Path) -> RunModels:
    ignore = shutil.ignore_patterns("predictions")  # written by earlier tests
    return RunModels.open(Run.open(Path(shutil.copytree(quick_run, tmp_path / "run", ignore=ignore))), "cpu")


def _count_calls(result: Any) -> tuple[Callable[[], Any], list[None]]:
    """Return a function that returns `result`, and a list that has one entry for each of its calls."""
    calls: list[None] = []

    def compute() -> Any:
        calls.append(None)
        return result

    return compute, calls


def test_cached_checks_are_used_until_an_input_or_the_cache_file_changes(
    models: RunModels, photos: Path
) -> None:
    """The inputs are the images, the settings and the result of the run's verification."""
    refs, settings = list_images([photos]), Evaluation()
    compute, calls = _count_calls(CHECKS)
    for _ in range(2):
        assert load_or_check(models, refs, settings, None, compute) == CHECKS
    assert len(calls) == 1
    (file,) = (models.run.path / "predictions").iterdir()
    file.write_text(file.read_text().replace("0.25", "0.75"))  # edited, so its checksum is wrong
    assert load_or_check(models, refs, settings, None, compute) == CHECKS
    file.write_text("[]")
    assert load_or_check(models, refs, settings, None, compute) == CHECKS
    assert len(calls) == 3
    changes = (
        (refs, replace(settings, deformations=3), None),
        (refs, settings, {"backward_shares": [0.5]}),
        (refs[:-1], settings, None),
    )
    for num_calls, (new_refs, new_settings, verification) in enumerate(changes, start=4):
        load_or_check(models, new_refs, new_settings, verification, compute)
        assert len(calls) == num_calls


def test_checks_without_pretrained_features_are_not_cached(models: RunModels, photos: Path) -> None:
    """The appearance error needs pretrained features; it is None if they are not installed."""
    compute, calls = _count_calls(CHECKS | {"appearance_error": [None, None]})
    for _ in range(2):
        load_or_check(models, list_images([photos]), Evaluation(), None, compute)
    assert len(calls) == 2


def test_cached_landmarks_and_plot_positions_are_used_until_weights_or_cache_file_change(
    models: RunModels, photos: Path
) -> None:
    refs, num_landmarks = list_images([photos]), len(models.card.names)
    rng = np.random.default_rng(0)
    placed = Placements(
        rng.random((3, num_landmarks, 2)).astype(np.float32),
        rng.random((3, num_landmarks)).astype(np.float32),
        rng.random((5, 2)),
        np.arange(5) % num_landmarks,
    )
    compute, calls = _count_calls(placed)
    for _ in range(2):
        cached = load_or_compute_placements(models.run, models.card, refs, 3, compute)
        for name, array in vars(placed).items():
            np.testing.assert_array_equal(getattr(cached, name), array)
    assert len(calls) == 1
    (file,) = (models.run.path / "predictions").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    load_or_compute_placements(models.run, models.card, refs, 3, compute)
    assert len(calls) == 2
    weights = models.run.model_folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    load_or_compute_placements(models.run, models.card, refs, 3, compute)
    assert len(calls) == 3
