"""Test the budget of a comparison: iterations are planned so that the training takes the given time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark.comparison import pace
from selfmark.comparison.comparison_plan import Comparison, MethodJob
from selfmark.comparison.measure import _training_seconds
from selfmark.discovery import discover
from selfmark.run.folder import Run
from selfmark.train import engine
from tests.conftest import QUICK_FEATURES

CPU = torch.device("cpu")
BUDGET = 25.0  # seconds
_SECONDS_PER_ITERATION, _SECONDS_PER_PARAMETER = 0.5, 2e-7  # on the fake clock
_SETTINGS: dict[str, Any] = {
    name: value for name, value in QUICK_FEATURES.items() if not name.endswith("iterations") and name != "K"
} | {
    "student.frozen_rounds": 1,
    "features.orientation": "upright",
    "features.keypoint_landmarks": True,
    "features.max_unexplained_warmup": 1e9,
    "features.max_unexplained": 1e9,
    "correspondence.iterations": 5,
    "features.iterations": 5,
    "guards.min_points": 0.0,
    "guards.min_descriptor_spread": 0.0,
    "guards.max_empty_fraction": 1.0,
}


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a clock that advances only during iterations, by more if more parameters are trained."""
    now = [0.0]
    take_step = engine._Step.__call__

    def slow_step(step: engine._Step, *batch: torch.Tensor) -> None:
        take_step(step, *batch)
        parameters = step._state.network.parameters()
        num_trained = sum(parameter.numel() for parameter in parameters if parameter.grad is not None)
        now[0] += _SECONDS_PER_ITERATION + _SECONDS_PER_PARAMETER * num_trained

    monkeypatch.setattr(engine._Step, "__call__", slow_step)
    monkeypatch.setattr("time.monotonic", lambda: now[0])


def _build_job(labeled: Path, folder: Path) -> MethodJob:
    comparison = Comparison(
        images=(str(labeled / "images"),),
        labels=labeled / "labels.json",
        landmarks=4,
        budget=BUDGET,
        preset="tiny",
        settings=_SETTINGS,
    )
    return MethodJob(comparison, "self-training", folder, "cpu")


@pytest.mark.usefixtures("fake_clock", "without_report")
def test_self_training_takes_the_budget(labeled: Path, tmp_path: Path) -> None:
    """Stage 1 runs, its landmarks are used, and the encoder is trained in one of two rounds."""
    job = _build_job(labeled, tmp_path)
    schedule = pace.plan_schedule(job, CPU)
    discover(
        list(job.comparison.images),
        landmarks=4,
        output=job.run_folder,
        preset="tiny",
        settings={**job.settings, **schedule},
        device="cpu",
        method=job.method,
        verify=False,
    )
    run = Run.open(job.run_folder)
    assert {event["stage"] for event in run.events() if event["event"] == "train"} == {
        "warm-up",
        "round",
        "keypoints",
    }
    assert 0.75 * BUDGET <= _training_seconds(run) <= 1.25 * BUDGET
