"""Test the steps of the discovery with features: labels, rounds, stored landmarks.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark.config import override, preset
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.feature_discovery import feature_pipeline
from selfmark.feature_discovery.feature_images import UsedImages, compare_landmarks
from selfmark.feature_discovery.feature_labels import FoundLandmarks
from selfmark.features.orientation import rotation_matrices
from selfmark.images.feed import PixelFeed
from selfmark.pipeline_steps import show_nothing
from selfmark.run.folder import Run
from tests.feature_discovery.feature_runs import create_run
from tests.features.random_images import random_images
from tests.features.tiny_encoder import TinyEncoder

CPU = torch.device("cpu")


# --- labels --------------------------------------------------------------------------------------------


def _make_landmarks(num_images: int = 50, K: int = 4) -> FoundLandmarks:
    generator = torch.Generator().manual_seed(1)
    xy, mirrored_xy = torch.rand(2, num_images, K, 2, generator=generator) * 64
    score, mirrored_score = torch.rand(2, num_images, K, generator=generator)
    return FoundLandmarks(xy, score, mirrored_xy, mirrored_score)


def test_only_the_most_confident_labels_of_each_landmark_are_used() -> None:
    config = override(preset("tiny"), {"K": 4, "student.confident_fraction": 0.7})
    landmarks = _make_landmarks()
    table = feature_pipeline._build_table(landmarks, config)
    for score, present in (
        (landmarks.score, table.present),
        (landmarks.mirrored_score, table.mirrored_present),
    ):
        for landmark in range(4):
            best = sorted(range(50), key=lambda image: -float(score[image, landmark]))[:35]
            assert sorted(best) == torch.nonzero(present[:, landmark]).flatten().tolist()
    assert torch.equal(table.mirrored_xy, landmarks.mirrored_xy)
    usable = [image for image in range(50) if (table.present & table.mirrored_present)[image].any()]
    assert table.usable.tolist() == usable


def test_landmarks_that_are_their_own_partners_have_the_same_labels_in_mirror_images() -> None:
    config = override(preset("tiny"), {"K": 4, "flip.partner": "itself"})
    table = feature_pipeline._build_table(_make_landmarks(), config)
    assert torch.equal(table.mirrored_xy, table.xy)
    assert torch.equal(table.mirrored_present, table.present)
    assert feature_pipeline._find_partners(_make_landmarks(), config) == LandmarkPartners.identity(4)


# --- rounds --------------------------------------------------------------------------------------------


def _make_images(count: int, angle: float = 0.0) -> UsedImages:
    matrix = rotation_matrices(torch.full((count,), angle), 64)
    return UsedImages(None, torch.arange(count), matrix, None, slice(0, count))  # type: ignore[arg-type]


def test_landmarks_are_turned_back_before_they_are_compared() -> None:
    """Landmarks that stay in place in turned images move with the object once the images are turned back."""
    generator = torch.Generator().manual_seed(0)
    first, second = (
        _make_landmarks()._replace(xy=32 + torch.randn(50, 4, 2, generator=generator)) for _ in range(2)
    )
    first = first._replace(xy=first.xy + torch.tensor([12.0, 0]))
    second = second._replace(xy=second.xy + torch.tensor([0, 12.0]))
    upright = _make_images(50)
    angles = torch.rand(50, generator=generator) * 2 * torch.pi
    turned = upright._replace(matrix=rotation_matrices(angles, 64))
    assert compare_landmarks(first.xy, second.xy, upright.matrix) > 0.9
    assert compare_landmarks(first.xy, second.xy, turned.matrix) < 0.3


def _train_until_worse(
    run: Run, worse_from: int, monkeypatch: pytest.MonkeyPatch, num_candidates: int = 2, label_rounds: int = 1
) -> Any:
    """Train rounds and judge round `worse_from` and later ones as worse; return the result and the images."""
    monkeypatch.setattr(feature_pipeline, "load_encoder", lambda name, device: TinyEncoder())
    feed = PixelFeed((random_images(8, 32) * 255).byte(), CPU)
    table = feature_pipeline._build_table(_make_landmarks(8, num_candidates), run.config)
    result = feature_pipeline._train_rounds(
        run,
        "student",
        _make_images(8)._replace(feed=feed),
        feature_pipeline._FirstLabels(table, label_rounds),
        lambda found, number: number >= worse_from,
        show_nothing,
    )
    return result, feed


SMALL = {
    "K": 2,
    "images__size": 32,
    "student__rounds": 3,
    "student__iterations": 3,
    "student__batch": 4,
    "student__encoder_lr": 0.5,
    "student__width": 4,
}


@pytest.mark.parametrize(("worse_from", "last_good"), [(9, 3), (3, 2), (2, 1)])
def test_the_last_round_that_is_not_worse_is_used(
    worse_from: int, last_good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "run", **SMALL)
    result, feed = _train_until_worse(run, worse_from, monkeypatch)
    rounds = [event["round"] for event in run.events() if event["event"] == "train"]
    assert max(rounds) == min(worse_from, 3), "training ends with the first worse round"
    expected = run.load_or_compute_tensors(f"student-{last_good}", CPU, dict)
    repeated = feature_pipeline._find_landmarks(run, result.psi, feed)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(result.found, name), value)
        torch.testing.assert_close(repeated[name], value)
    is_encoder_changed = not torch.equal(result.psi.encoder.cells.weight, TinyEncoder().cells.weight)
    assert is_encoder_changed == (last_good > 1), "the encoder is frozen in the first round"


def test_no_round_is_used_if_the_first_one_is_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _train_until_worse(create_run(tmp_path / "run", **SMALL), 1, monkeypatch)[0] is None


def test_finished_rounds_are_loaded_when_a_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "run", **SMALL)
    first, _ = _train_until_worse(run, 9, monkeypatch)
    iterations = sum(event["event"] == "train" for event in run.events())
    repeated, _ = _train_until_worse(Run.open(run.path), 9, monkeypatch)
    assert sum(event["event"] == "train" for event in run.events()) == iterations
    for name, value in first.psi.state_dict().items():
        assert torch.equal(repeated.psi.state_dict()[name], value), name
    assert torch.equal(first.found.xy, repeated.found.xy)


@pytest.mark.parametrize("label_rounds", [1, 2])
def test_rounds_use_the_first_labels_and_then_the_landmarks_of_the_previous_round(
    label_rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "run", **SMALL)
    used: list[torch.Tensor] = []
    build = feature_pipeline.build_regression_task

    def record(psi: Any, feed: Any, table: Any, *rest: Any) -> Any:
        used.append(table.xy)
        return build(psi, feed, table, *rest)

    monkeypatch.setattr(feature_pipeline, "build_regression_task", record)
    _train_until_worse(run, 9, monkeypatch, label_rounds=label_rounds)
    first = _make_landmarks(8, 2).xy
    learned = [run.load_or_compute_tensors(f"student-{number}", CPU, dict)["xy"] for number in (1, 2)]
    expected = [first, *([first] if label_rounds == 2 else [learned[0]]), learned[1]]
    assert all(torch.equal(xy, wanted) for xy, wanted in zip(used, expected, strict=True))


def test_the_first_round_learns_all_candidates_and_later_rounds_the_chosen_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "run", **SMALL)
    chosen = torch.tensor([1, 4])
    monkeypatch.setattr(feature_pipeline, "choose_landmarks", lambda *_: chosen.numpy())
    first_round, _ = _train_until_worse(run, 2, monkeypatch, num_candidates=5)
    candidates = run.load_or_compute_tensors("student-1", CPU, dict)
    assert candidates["xy"].shape[1] == 5
    assert torch.equal(first_round.found.xy, candidates["xy"][:, chosen])
    trained, feed = _train_until_worse(Run.open(run.path), 9, monkeypatch, num_candidates=5, label_rounds=2)
    repeated = feature_pipeline._find_landmarks(run, first_round.psi, feed)
    torch.testing.assert_close(repeated["xy"], candidates["xy"][:, chosen])
    assert trained.found.xy.shape[1] == 2
    assert feature_pipeline._find_landmarks(run, trained.psi, feed)["xy"].shape[1] == 2
    resumed, _ = _train_until_worse(Run.open(run.path), 9, monkeypatch, num_candidates=5, label_rounds=2)
    for name, value in trained.psi.state_dict().items():
        assert torch.equal(resumed.psi.state_dict()[name], value), name
