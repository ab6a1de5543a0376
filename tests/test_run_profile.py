"""Test that `benchmarks/run_profile.py` adds the time before an event to the part that the event ends."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CHECKS = {"event": "progress", "stage": "checking landmarks"}


def _profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]]
) -> dict[str, float]:
    """Return a mapping from the parts of a run to their seconds, for a run with one event per second.

    Parts that took no time are left out.
    """
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    lines = [json.dumps({"time": second, **event}) for second, event in enumerate(events)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    all_seconds: dict[str, float] = import_module("run_profile").profile(tmp_path)
    return {part: seconds for part, seconds in all_seconds.items() if seconds}


def test_the_time_to_compare_the_two_detectors_counts_as_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"event": "progress", "stage": "training a second detector"}
    events = [{"event": "preview"}, {"event": "verification"}, training, training, CHECKS, CHECKS]
    events += [{"event": "agreement_of_runs"}, {"event": "done"}]
    expected = {"previews": 1, "verification": 3, "checks and report": 3}
    assert _profile(tmp_path, monkeypatch, events) == expected


def test_the_first_check_of_an_unverified_run_does_not_count_as_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [{"event": "preview"}, CHECKS, {"event": "done"}]
    assert _profile(tmp_path, monkeypatch, events) == {"checks and report": 2}


def test_the_agreement_of_student_rounds_counts_as_time_of_the_zero_shot_landmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [
        {"event": "preview"},
        {"event": "agreement", "stage": "student"},
        {"event": "agreement", "stage": "keypoints"},
    ]
    expected = {"features and zero-shot landmarks": 1, "describing and clustering keypoints": 1}
    assert _profile(tmp_path, monkeypatch, events) == expected


def test_measurements_between_steps_count_as_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [{"event": name} for name in ("preview", "train", "movement", "train", "checkpoint", "train")]
    expected = {"first steps of each phase": 1, "steps": 4}
    assert _profile(tmp_path, monkeypatch, events) == expected
