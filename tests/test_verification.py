"""Test the verification of a run by a second one: held-out images, interruptions, failures, defaults."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark import discovery, verification
from selfmark.config import preset
from selfmark.detector import Detector
from selfmark.discovery import RunInputs, RunOptions, discover, open_run
from selfmark.errors import CollapsedTraining
from selfmark.image_ref import ImageRef
from selfmark.images.store import load_store
from selfmark.model.card import read_card
from selfmark.model_library import copy_model
from selfmark.run.folder import Event, Run, StartingPoint
from selfmark.verification import build_second_config
from tests.conftest import QUICK

SETTINGS = QUICK | {"verification.training_fraction": 0.7, "evaluation.num_samples": 12}


def _verify(photos: Path, output: Path, **changes: Any) -> list[Event]:
    events: list[Event] = []
    options: dict[str, Any] = {"preset": "tiny", "settings": SETTINGS, "verify": True}
    discover(photos, output=output, device="cpu", listener=events.append, **options | changes)
    return events


@pytest.fixture(scope="module")
def verified_run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("verified") / "run"
    _verify(photos, output)
    return output


def test_neither_run_sees_the_held_out_images(verified_run: Path, photos: Path) -> None:
    run = Run.open(verified_run)
    training, held_out = run.refs(), run.held_out_refs()
    assert len(held_out) == 3  # A tenth of 24 images, rounded up, is held out.
    assert sorted(ref.path for ref in [*training, *held_out]) == sorted(photos.iterdir())
    content = run.read_verification()
    assert content is not None
    assert content["images"] == 3
    assert content["second_run_images"] == 15  # 0.7 times 21 images, rounded up
    assert not (verified_run / "verification").exists()


def test_the_agreement_is_part_of_metrics_and_report(verified_run: Path) -> None:
    content = Run.open(verified_run).read_verification()
    metrics = json.loads((verified_run / "metrics.json").read_text())
    assert metrics["verification"] == content
    page = (verified_run / "report" / "index.html").read_text()
    assert page.index("Verdict") < page.index("Error against a second run") < page.index("Landmarks to trust")


def test_trust_and_verdict_are_stored_in_the_model_card(verified_run: Path) -> None:
    checks = json.loads((verified_run / "metrics.json").read_text())["unlabelled"]
    card = read_card(verified_run / "model")
    assert list(card.trust) == pytest.approx(checks["trust"], abs=1e-4)
    assert card.verdict == checks["verdict"]


def test_an_interrupted_verification_is_resumed(
    verified_run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = verification.compare_detectors

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verification, "compare_detectors", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _verify(photos, tmp_path / "run")
    assert (tmp_path / "run" / "verification" / "checkpoints" / "stage2.safetensors").exists()
    monkeypatch.setattr(verification, "compare_detectors", compare)
    events: list[Event] = []
    discover(photos, output=tmp_path / "run", resume=True, device="cpu", listener=events.append)
    assert Run.open(tmp_path / "run").read_verification() == Run.open(verified_run).read_verification()
    assert not any(event["event"] == "train" for event in events)


def test_a_finished_run_is_not_verified_again(verified_run: Path, tmp_path: Path) -> None:
    shutil.copytree(verified_run, tmp_path / "run")
    events: list[Event] = []
    discover(output=tmp_path / "run", resume=True, device="cpu", listener=events.append)
    assert not any(event["event"] == "verification" for event in events)


def test_a_run_is_finished_even_if_the_second_training_fails(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = discovery.train_run

    def fail_second(run: Run, *arguments: Any) -> Any:
        if run.path.name == "verification":
            raise CollapsedTraining("no points")
        return train(run, *arguments)

    monkeypatch.setattr(discovery, "train_run", fail_second)
    events = _verify(photos, tmp_path / "run")
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert notes == ["the run is not verified, because the second training failed: no points"]
    assert Run.open(tmp_path / "run").read_verification() is None
    assert (tmp_path / "run" / "report" / "index.html").exists()


def test_the_second_run_starts_from_the_same_detector(photos: Path, tmp_path: Path) -> None:
    Detector.load("demo").save(tmp_path / "demo")
    start = StartingPoint("demo", "0" * 64, partial(copy_model, tmp_path / "demo"))
    refs = [ImageRef(path) for path in sorted(photos.iterdir())]
    Run.create(tmp_path / "run", preset("tiny"), ["photos"], refs[3:], refs[:3], start)
    seen: list[Run] = []

    def stop(second: Run, is_new: bool) -> Any:
        seen.append(second)
        raise CollapsedTraining("no points")

    run = Run.open(tmp_path / "run")
    verification.verify_run(
        run, Detector.load("demo"), load_store(refs[3:5], run.config.images, 1.0, None), stop
    )
    assert seen[0].start_from() == run.start_from() == {"model": "demo", "sha256": "0" * 64}
    weights = "start/weights.safetensors"
    assert (seen[0].path / weights).read_bytes() == (tmp_path / "run" / weights).read_bytes()


def test_the_second_run_is_shorter_and_has_another_seed() -> None:
    config = preset("fast")
    second = build_second_config(config)
    assert second.seed == config.seed + 1
    assert second.student.iterations == config.student.iterations // 2
    assert second.rounds.iterations == config.rounds.iterations // 2
    assert not second.verification.enabled
    assert not second.features.runs_stage1


@pytest.mark.parametrize(
    ("device", "options", "expected"),
    [
        ("cpu", {}, False),
        ("cpu", {"verify": True}, True),
        ("cuda", {}, True),
        ("cuda", {"verify": False}, False),
        ("cuda", {"preset": "tiny"}, False),
        ("cuda", {"settings": QUICK | {"verification.enabled": False}}, False),
    ],
)
def test_runs_are_verified_by_default_on_a_gpu(
    device: str,
    options: dict[str, Any],
    expected: bool,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "select_device", lambda _: torch.device(device))
    settings = {"settings": QUICK | {"verification.min_images": 20}} | options
    with open_run(RunInputs([photos]), RunOptions(output=tmp_path / "run", **settings), None) as opened:
        assert opened.run.config.verification.enabled == expected
        assert bool(opened.run.held_out_refs()) == expected
