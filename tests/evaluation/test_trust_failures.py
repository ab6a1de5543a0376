"""Test that landmarks and runs that an earlier version misjudged are now judged correctly."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.config import Config, Evaluation, override, preset
from selfmark.evaluation import individuals
from selfmark.evaluation.advice import advise
from selfmark.evaluation.constellation import group_duplicates
from selfmark.evaluation.individuals import IndividualChecks, check_individuals
from selfmark.evaluation.trust import LandmarkTrust, TrustEvidence, judge_landmarks
from selfmark.evaluation.verdict import judge_run
from selfmark.model.card import GOOD_TRUST, MIN_TRUST
from selfmark.points import FloatArray
from tests.features.tiny_encoder import TinyEncoder

ROOT = Path(__file__).parents[2]
IMAGES, SIDE = 60, 128
COLORS = [(255, 30, 30), (30, 255, 30), (30, 30, 255), (240, 240, 30)]
BODY = np.array([[-30.0, 0.0], [30.0, 0.0], [0.0, -16.0], [0.0, 16.0]])  # head, tail, two wings
Pictures = tuple[torch.Tensor, FloatArray]


def _draw_animals(angles: FloatArray, rng: np.random.Generator, shift: float = 20) -> Pictures:
    """Return pictures [N, 3, S, S] of animals that face `angles` [N], and positions of parts [N, 4, 2]."""
    pixels = np.full((len(angles), SIDE, SIDE, 3), 128, dtype=np.uint8)
    rotations = np.stack([np.cos(angles), -np.sin(angles), np.sin(angles), np.cos(angles)], -1).reshape(
        -1, 2, 2
    )
    positions = (
        np.einsum("nij,kj->nki", rotations, BODY) + 63.5 + rng.uniform(-shift, shift, (len(angles), 1, 2))
    )
    for picture, parts in zip(pixels, positions, strict=True):
        for (x, y), color in zip(parts.round().astype(int), COLORS, strict=True):
            picture[max(y - 8, 0) : y + 9, max(x - 8, 0) : x + 9] = color
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), positions


def _judge(
    monkeypatch: pytest.MonkeyPatch, xy: FloatArray, pixels: torch.Tensor, **changes: Any
) -> tuple[IndividualChecks, LandmarkTrust]:
    """Judge the given landmarks as if they follow every deformation and are found in every image."""
    monkeypatch.setattr(individuals, "load_encoder", lambda *_: TinyEncoder(is_symmetric=True))
    config = override(preset("tiny"), changes)
    checks = check_individuals(xy, pixels, config, torch.device("cpu"))
    full_scores = np.ones(xy.shape[1])
    evidence = TrustEvidence(full_scores, checks.appearance_error, checks.unexplained, full_scores)
    return checks, judge_landmarks(evidence, config.evaluation)


def test_landmarks_that_confuse_head_and_tail_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bees face up or down, and the landmarks mark the upper and the lower end instead of head and tail."""
    rng = np.random.default_rng(0)
    angles = rng.choice([np.pi / 2, -np.pi / 2], IMAGES) + rng.normal(0, 0.4, IMAGES)
    pixels, parts = _draw_animals(angles, rng, shift=4)
    _, correct = _judge(monkeypatch, parts, pixels)
    assert correct.trust.min() > GOOD_TRUST
    by_height = np.take_along_axis(parts, parts[:, :2, 1].argsort(axis=1)[..., None], axis=1)
    confused = np.concatenate([by_height[:, :1], by_height[:, 1:2], parts[:, 2:]], axis=1)
    _, trust = _judge(monkeypatch, confused, pixels)
    assert trust.trust[:2].max() < GOOD_TRUST


def test_landmarks_that_slide_along_a_wheel_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    pixels, parts = _draw_animals(rng.uniform(-0.3, 0.3, IMAGES), rng)
    row, column = np.mgrid[:SIDE, :SIDE]
    rim = np.abs(np.hypot(row - 63.5, column - 63.5) - 56) < 4
    pixels[:, :, torch.from_numpy(rim)] = 20
    angle = rng.uniform(0, 2 * np.pi, (IMAGES, 2))
    sliding = 63.5 + 56 * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    _, trust = _judge(monkeypatch, np.concatenate([parts, sliding], axis=1), pixels)
    assert trust.trust[4:].max() < 0.3  # the expected error is more than 0.7 times that of guessing
    assert trust.trust[:4].min() > 0.8


def test_duplicates_are_listed_and_fewer_landmarks_are_advised() -> None:
    rng = np.random.default_rng(2)
    positions = rng.uniform(20, 100, (IMAGES, 5, 2))
    crowded = np.concatenate(
        [positions, *[positions[:, :1] + 0.5] * 3, *[positions[:, 1:2] - 0.5] * 2], axis=1
    )
    duplicates = group_duplicates(crowded, Evaluation().duplicate_radius * SIDE)
    assert duplicates == [[0, 5, 6, 7], [1, 8, 9]]
    (sentence,) = advise({"duplicates": duplicates, "trust": [1.0] * 10}, 500, Config())
    assert sentence.endswith("lower -k to about 5")


def test_mixed_kinds_of_objects_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    pixels, parts = _draw_animals(rng.uniform(-0.3, 0.3, IMAGES), rng)
    checks, _ = _judge(monkeypatch, parts, pixels)
    limit = Evaluation().max_kind_separation
    assert checks.kind_separation < limit
    pixels[::2] = 255 - pixels[::2]
    checks, _ = _judge(monkeypatch, parts, pixels)
    assert checks.kind_separation > limit


# --- recorded runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Runs with known true errors; see benchmarks/trust/calibration_runs.py."""
    content: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "trust-runs.json").read_text())
    return content


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """What benchmarks/trust/trust_model.py computed from the recorded runs."""
    content: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "trust.json").read_text())
    return content


@pytest.fixture
def trust_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module benchmarks/trust/trust_model.py; other modules beside it can be imported, too."""
    for folder in ("benchmarks", "benchmarks/trust"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return importlib.import_module("trust_model")


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(values))  # type: ignore[no-any-return]


def test_the_published_table_and_weights_follow_from_the_recorded_runs(
    recorded: dict[str, Any], published: dict[str, Any], trust_model: Any
) -> None:
    measured = _as_json(trust_model.measure(recorded["runs"]))
    assert {name: published[name] for name in measured} == measured
    verified = _as_json(trust_model.measure_verified(recorded["verified_runs"]))
    assert published["verified_runs"] == verified
    for name, weights in (published["weights"] | verified["weights"]).items():
        setting = getattr(Evaluation(), name)
        assert (list(setting) if isinstance(setting, tuple) else setting) == weights


def test_the_confirmation_runs_are_judged_with_weights_that_never_saw_them(
    recorded: dict[str, Any], published: dict[str, Any], trust_model: Any
) -> None:
    measured = _as_json(trust_model.measure_confirmation(recorded))
    assert published["confirmation_runs"] == measured
    # The verdict on a run does not depend on other confirmation runs, or on runs on the same data.
    last_run = recorded["confirmation_runs"][-1]
    runs_on_other_data = [run for run in recorded["runs"] if run["data"] != last_run["data"]]
    alone = recorded | {"runs": runs_on_other_data, "confirmation_runs": [last_run]}
    assert _as_json(trust_model.measure_confirmation(alone))["verdicts"] == measured["verdicts"][-1:]


def test_the_attainable_accuracy_agrees_with_simulated_estimates(trust_model: Any) -> None:
    rng = np.random.default_rng(0)
    forward = rng.uniform(0.05, 1.1, 40)
    estimates = forward * np.exp(rng.normal(0, 0.15, (20_000, 40)))
    limits = [Evaluation().good_error, Evaluation().failed_error]
    simulated = (np.digitize(estimates, limits) == np.digitize(forward, limits)).mean()
    assert trust_model.compute_attainable_accuracy(forward, 0.15) == pytest.approx(simulated, abs=0.005)


def _judge_recorded(run: dict[str, Any]) -> LandmarkTrust:
    columns = ("stable", "appearance_error", "unexplained", "found")
    return judge_landmarks(
        TrustEvidence(**{name: np.array(run[name], np.float64) for name in columns}), Evaluation()
    )


def _judge_recorded_run(run: dict[str, Any], trust: LandmarkTrust) -> str:
    missed = np.nan if run["missed_movement"] is None else run["missed_movement"]
    return judge_run(trust.expected_error, missed, Evaluation()).verdict


def test_good_runs_do_not_fail_and_few_of_their_landmarks_are_distrusted(recorded: dict[str, Any]) -> None:
    """An earlier version distrusted 14 of 20 landmarks of a run with 0.23 times the error of guessing."""
    default_runs = [run for run in recorded["runs"] if run["variant"] == "default"]
    good_runs = [run for run in default_runs if run["forward_share"] <= 0.3]
    assert len(good_runs) >= 5
    for run in good_runs:
        trust = _judge_recorded(run)
        assert _judge_recorded_run(run, trust) != "failed"
        assert (trust.trust < MIN_TRUST).mean() <= 0.3, run["data"]


def test_no_failed_run_is_called_good(recorded: dict[str, Any]) -> None:
    """An earlier version trusted 13 of 16 landmarks of a run on bees, whose error was worse than guessing."""
    failed = [run for run in recorded["runs"] if run["forward_share"] >= Evaluation().failed_error]
    assert len(failed) >= 3
    for run in failed:
        trust = _judge_recorded(run)
        assert _judge_recorded_run(run, trust) == "failed"
        assert (trust.trust < MIN_TRUST).all()
