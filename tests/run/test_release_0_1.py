"""Test that runs and models of selfmark 0.1.0 can still be opened, evaluated and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import selfmark
from selfmark.config import override, preset, used_settings
from selfmark.detector import Detector
from selfmark.evaluation.cached_predictions import run_fingerprint
from selfmark.evaluation.run_models import RunModels
from selfmark.report.run_report import build_report
from selfmark.run.folder import Run
from tests.conftest import selfmark as run_command

FIXTURES = Path(__file__).parent.parent / "fixtures" / "release-0.1"
FINISHED, UNFINISHED = Path("finished"), Path("unfinished")
IMAGES, LABELS = Path("images"), Path("labels.json")
SETTINGS: dict[str, Any] = {  # settings of both runs, with the names of 0.1.0
    "K": 3,
    "M": 6,
    "images.size": 32,
    "network.channels": 8,
    "network.norm_groups": 1,
    "network.descriptor": 4,
    "network.depth": 1,
    "keypoints.image_size": 64,
    "keypoints.outlier_neighbours": 20,
    "keypoints.outlier_share": 0.3,
    "heatmaps.threshold": 0.0,
    "correspondence.restarts": 1,
    "correspondence.iterations": 5,
    "loss.random_negatives": 8,
    "warmup.iterations": 4,
    "rounds.count": 2,
    "rounds.iterations": 3,
    "rounds.same_image_share": 0.5,
    "stage2.iterations": 6,
    "stage2.batch": 4,
    "optimiser.lr": 0.001,
    "runtime.batch": 3,
    "runtime.checkpoint_every": 2,
    "runtime.log_every": 2,
    "evaluation.look_at": 5,
}


@pytest.fixture(autouse=True)
def _in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a copy of the fixtures, because the paths in them are relative to their folder."""
    shutil.copytree(FIXTURES, tmp_path / "release")
    monkeypatch.chdir(tmp_path / "release")


def _read_expected(kind: str) -> Any:
    """Return the predictions of selfmark 0.1.0: `landmarks` or `mapped`."""
    return json.loads(Path("predictions.json").read_text())[kind]


def _assert_predicts(detector: Detector, expected: Any) -> None:
    predictions = detector(IMAGES)
    assert list(predictions.names) == expected["names"]
    np.testing.assert_allclose(predictions.xy, expected["xy"], atol=2e-2)
    np.testing.assert_allclose(predictions.score, expected["score"], atol=1e-3)


@pytest.mark.parametrize("folder", [FINISHED, UNFINISHED])
def test_runs_can_be_opened(folder: Path) -> None:
    run = Run.open(folder)
    expected = override(preset("tiny"), SETTINGS)
    assert used_settings(run.config) == used_settings(expected)
    assert not run.config.uses_features
    assert run.config.optimizer.lr == 0.001
    assert run.config.evaluation.num_samples == 5
    assert [ref.path for ref in run.refs()] == sorted(IMAGES.iterdir())
    events = [event["event"] for event in run.events()]
    assert {"start", "plan", "images", "keypoints", "train", "recovery", "checkpoint"} <= set(events)
    assert ("done" in events) == (folder == FINISHED)


def test_detectors_of_0_1_predict_the_same_landmarks_as_in_0_1() -> None:
    _assert_predicts(selfmark.load(FINISHED), _read_expected("landmarks"))
    _assert_predicts(selfmark.load(FINISHED / "model"), _read_expected("landmarks"))


def test_mapped_detectors_of_0_1_predict_the_same_points_as_in_0_1() -> None:
    _assert_predicts(selfmark.load(FINISHED, mapped=True), _read_expected("mapped"))


def test_metrics_are_still_valid_and_reports_show_them() -> None:
    run, detector = Run.open(FINISHED), Detector.load(FINISHED)
    metrics = json.loads((FINISHED / "metrics.json").read_text())
    assert run_fingerprint(run, detector.card) == metrics["model"]
    page = build_report(RunModels.of(run, detector)).read_text()
    assert f"{metrics['headline']['forward']['error']:.2f}" in page
    assert "belongs to an earlier state" not in page


def test_an_evaluation_of_a_run_of_0_1_gives_the_same_metrics_as_in_0_1() -> None:
    old_metrics = json.loads((FINISHED / "metrics.json").read_text())
    new_metrics = selfmark.evaluate(
        FINISHED, IMAGES, LABELS, settings={"draws": 1, "fit_images": [3]}, output="again", device="cpu"
    )
    for direction in ("forward", "backward"):
        assert new_metrics["headline"][direction]["error"] == pytest.approx(
            old_metrics["headline"][direction]["error"], rel=1e-2
        )
    assert new_metrics["unlabelled"]["stable"] == pytest.approx(old_metrics["unlabelled"]["stable"], abs=2e-2)
    assert new_metrics.keys() == old_metrics.keys() | {"advice", "curves", "inter_ocular", "verification"}


def test_old_names_of_evaluation_settings_are_accepted() -> None:
    metrics = selfmark.evaluate(FINISHED, IMAGES, settings={"look_at": 3}, output="again", device="cpu")
    assert metrics["unlabelled"]["images"] == 3


@pytest.mark.parametrize("settings", [{}, {"optimiser.lr": "1e-3"}])
def test_an_unfinished_run_is_resumed_from_its_checkpoint(settings: dict[str, Any]) -> None:
    selfmark.discover(output=UNFINISHED, resume=True, settings=settings, device="cpu")
    resumed = [event for event in Run.open(UNFINISHED).events() if event["event"] == "resumed"]
    assert [(event["stage"], event["iteration"]) for event in resumed] == [("stage1", 10), ("stage2", 2)]
    _assert_same_weights(UNFINISHED, FINISHED)
    _assert_predicts(selfmark.load(UNFINISHED), _read_expected("landmarks"))


def test_a_finished_run_is_resumed_without_changes() -> None:
    shutil.copytree(FINISHED, "resumed")
    assert run_command("discover", "-o", "resumed", "--resume", "--device", "cpu") == 0
    _assert_same_weights(Path("resumed"), FINISHED)


def test_the_command_line_accepts_old_names_of_settings() -> None:
    change = ["--set", "optimiser.lr=2e-3", "--set", "guards.look_at=4"]
    assert run_command("discover", "-o", UNFINISHED, "--resume", "--device", "cpu", *change) == 0
    config = Run.open(UNFINISHED).config
    assert (config.optimizer.lr, config.guards.num_samples) == (2e-3, 4)
    assert "optimizer:" in (UNFINISHED / "config.yaml").read_text()


def test_a_new_run_with_old_names_gives_the_same_weights() -> None:
    selfmark.discover(IMAGES, output="new", preset="tiny", settings=SETTINGS, device="cpu")
    _assert_same_weights(Path("new"), FINISHED)


def _assert_same_weights(run: Path, expected_run: Path) -> None:
    """Fail unless two runs have the same weights within a tolerance; rounding differs between processors."""
    actual, expected = (load_file(path / "model" / "weights.safetensors") for path in (run, expected_run))
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        torch.testing.assert_close(value, expected[name], atol=1e-3, rtol=1e-2)


def _list_keys(value: Any, prefix: str = "") -> set[str]:
    """Return the dotted names of all keys of nested JSON objects."""
    if not isinstance(value, dict):
        return set()
    return {f"{prefix}{key}" for key in value} | {
        name for key, item in value.items() for name in _list_keys(item, f"{prefix}{key}.")
    }


def test_files_of_new_runs_keep_the_keys_of_old_ones(quick_run: Path) -> None:
    """Programs that read logs, model cards and metrics of 0.1.0 can read those of this version."""
    logs = []  # For each run, a mapping from the kind of an event to its keys.
    for run in (FINISHED, quick_run):
        keys: dict[str, set[str]] = {}
        for line in (run / "log.jsonl").read_text().splitlines():
            event = json.loads(line)
            keys.setdefault(event["event"], set()).update(_list_keys(event))
        logs.append(keys)
    old_log, new_log = logs
    assert old_log.keys() <= new_log.keys()
    removed_values = {name: old_log[name] - new_log[name] for name in old_log}
    assert {name: keys for name, keys in removed_values.items() if keys} == {}
    for file in ("model/model.json", "run.json"):
        old_keys, new_keys = (
            _list_keys(json.loads((run / file).read_text())) for run in (FINISHED, quick_run)
        )
        assert old_keys - new_keys == set()
    before = json.loads((FINISHED / "metrics.json").read_text())
    after = selfmark.evaluate(FINISHED, IMAGES, LABELS, device="cpu", output="evaluated")
    assert _list_keys(before) - _list_keys(json.loads(json.dumps(after))) == set()
