"""Test that each guard detects and explains its fault, and that a failing run saves no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from selfmark import pipeline
from selfmark.config import Guards
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.detector import Detector, NetworkLandmarks
from selfmark.discovery import discover
from selfmark.errors import TrainingError
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.folder import Event, Run
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.train import engine
from selfmark.train.guards import (
    check_labels,
    check_landmarks,
    check_points,
    measure_descriptor_spread,
    measure_point_spread,
)
from tests.conftest import QUICK, QUICK_OPTIONS, selfmark

GUARDS = Guards()


def make_points(per_image: int = 5, images: int = 4, seed: int = 0) -> DescribedPoints:
    """Return points at random positions in images of 64 pixels, with random descriptors."""
    generator = torch.Generator().manual_seed(seed)
    count = per_image * images
    vectors = torch.nn.functional.normalize(torch.randn(count, 16, generator=generator), dim=1)
    xy = 64 * torch.rand(count, 2, generator=generator)
    index = torch.arange(images).repeat_interleave(per_image)
    return DescribedPoints(Keypoints(xy, index, torch.ones(count), vectors), None)


def test_healthy_points_pass() -> None:
    check_points(make_points(), 4, 64, GUARDS)


def _make_descriptors_alike(described: DescribedPoints) -> DescribedPoints:
    vectors = described.points.descriptor
    assert vectors is not None
    similar_vectors = torch.nn.functional.normalize(vectors[:1] + 0.01 * vectors, dim=1)
    return DescribedPoints(replace(described.points, descriptor=similar_vectors), None)


def _move_points_together(described: DescribedPoints) -> DescribedPoints:
    return DescribedPoints(replace(described.points, xy=30 + described.points.xy / 1000), None)


def _drop_most_points(described: DescribedPoints) -> DescribedPoints:
    return DescribedPoints(described.points.select(torch.tensor([0])), None)


# Mapping from a regular expression for the message about a fault to a function that causes this fault.
FAULTS: dict[str, Callable[[DescribedPoints], DescribedPoints]] = {
    "descriptors of all points are alike": _make_descriptors_alike,
    "all points of an image lie in one place": _move_points_together,
    "only 0.0. points per image": _drop_most_points,
}


@pytest.mark.parametrize("message", FAULTS)
def test_collapsed_points_raise(message: str) -> None:
    with pytest.raises(TrainingError, match=f"collapsed: .*{message}.*Start again with"):
        check_points(FAULTS[message](make_points(images=24)), 24, 64, GUARDS)


def test_descriptors_that_are_not_finite_raise() -> None:
    described = make_points()
    assert described.points.descriptor is not None
    described.points.descriptor[3] = float("nan")
    with pytest.raises(TrainingError, match="alike"):
        check_points(described, 4, 64, GUARDS)


def test_spreads_match_numpy() -> None:
    points = make_points(7, 3).points
    assert points.descriptor is not None
    vectors = points.descriptor.double().numpy()
    assert measure_descriptor_spread(points.descriptor) == pytest.approx(vectors.var(axis=0).sum(), abs=1e-6)
    xy = points.xy.double().numpy().reshape(3, 7, 2)
    expected = ((xy - xy.mean(axis=1, keepdims=True)) ** 2).sum(axis=2) ** 0.5
    assert measure_point_spread(points) == pytest.approx(expected.mean(), rel=1e-6)


def label_points(labels: list[int], clusters: int) -> LabeledPoints:
    count = len(labels)
    points = Keypoints(torch.zeros(count, 2), torch.arange(count), torch.ones(count))
    label_tensor = torch.tensor(labels)
    return LabeledPoints(points, label_tensor, torch.full_like(label_tensor, -1), clusters)


def test_too_many_empty_clusters_raise() -> None:
    check_labels(label_points([0, 1, 2, 3, -1], 8), GUARDS)
    with pytest.raises(TrainingError, match=r"5 of 8 clusters have no points\. Start again with a smaller K"):
        check_labels(label_points([0, 1, 2, 0, -1], 8), GUARDS)


def test_collapsed_landmarks_raise() -> None:
    xy, score = make_points().points.xy.view(4, 5, 2), torch.full((4, 5), 0.5)
    check_landmarks(xy, score, 64, GUARDS)
    for bad_xy, bad_score, message in (
        (30 + xy / 1000, score, "all landmarks lie in one place"),
        (xy, score * 0, "no landmark has a score above"),
        (xy * float("nan"), score, "not finite numbers"),
    ):
        with pytest.raises(TrainingError, match=message):
            check_landmarks(bad_xy, bad_score, 64, GUARDS)


# --- within a run -----------------------------------------------------------------------------------


def run_discover(photos: Path, output: Path) -> tuple[int, list[Event]]:
    code = selfmark("discover", photos, "-o", output, *QUICK_OPTIONS)
    return code, Run.open(output).events()


@pytest.mark.parametrize("message", FAULTS)
def test_a_faulty_run_stops_before_the_next_round_and_saves_no_model(
    message: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The fault occurs when the images are described before round 2, so no iteration of round 2 runs."""
    original_describe, calls = pipeline.describe_images, 0

    def describe_with_fault(*arguments: Any) -> DescribedPoints:
        nonlocal calls
        calls += 1
        described = original_describe(*arguments)
        return FAULTS[message](described) if calls == 2 else described

    monkeypatch.setattr(pipeline, "describe_images", describe_with_fault)
    code, events = run_discover(photos, tmp_path / "run")
    assert code == 1
    assert "training has collapsed" in capsys.readouterr().err
    assert {event["round"] for event in events if event["event"] == "train"} == {0, 1}
    assert not (tmp_path / "run" / "model").exists()


def test_a_detector_that_collapsed_in_stage2_is_not_saved(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original_locate = Detector.locate

    def locate_in_one_place(detector: Detector, pixels: torch.Tensor) -> NetworkLandmarks:
        located = original_locate(detector, pixels)
        return NetworkLandmarks(torch.full_like(located.xy, 31.0), located.score)

    monkeypatch.setattr(Detector, "locate", locate_in_one_place)
    code, _ = run_discover(photos, tmp_path / "run")
    assert code == 1
    assert "all landmarks lie in one place" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("broken", ["loss", "weight"])
def test_checkpoints_contain_only_finite_numbers(
    broken: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value becomes NaN in step 7, between two log lines. So the last checkpoint is of iteration 6."""
    original_call, calls = engine._Step.__call__, 0

    def break_once(step: Any, *batch: Any) -> None:
        nonlocal calls
        calls += 1
        original_call(step, *batch)
        if calls == 7:
            target = step._sums if broken == "loss" else next(step._state.network.parameters()).data
            target[(0,) * target.ndim] = float("nan")

    monkeypatch.setattr(engine._Step, "__call__", break_once)
    settings = QUICK | {"runtime.log_every": 100}
    with pytest.raises(TrainingError, match=r"no longer a finite number at iteration .* of round\. .*resume"):
        discover(photos, output=tmp_path / "run", preset="tiny", settings=settings, device="cpu")
    events = Run.open(tmp_path / "run").events()
    assert [event["iteration"] for event in events if event["event"] == "checkpoint"][-1] == 6
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(
    "measure",
    [
        lambda described, group: measure_descriptor_spread(described.points.descriptor, group),
        lambda described, group: measure_point_spread(described.points, group),
    ],
    ids=["descriptors", "points"],
)
def test_the_spread_is_measured_over_all_processes(
    measure: Callable[[DescribedPoints, ProcessGroup], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, each with half of the points, together measure the spread of all points."""
    all_points, group_of_two = make_points(6, 4), ProcessGroup(rank=0, size=2)
    expected = measure(all_points, SINGLE_PROCESS)
    sums: list[torch.Tensor] = []

    def add_to_sums(group: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
        sums.append(tensor)
        return sum(sums, torch.zeros_like(tensor))

    monkeypatch.setattr(ProcessGroup, "device", torch.device("cpu"))
    monkeypatch.setattr(ProcessGroup, "all_sum", add_to_sums)
    halves = [all_points.select(all_points.points.image_index // 2 == half) for half in (0, 1)]
    # The first process has nothing to add its sums to yet; the second adds its sums to those of the first.
    assert measure(halves[0], group_of_two) != pytest.approx(expected)
    assert measure(halves[1], group_of_two) == pytest.approx(expected)
