"""Stage 1 alone, round by round, keypoints and maps: the same numbers as the ways that exist already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from selfmark.config import override, preset
from selfmark.demo.scene import Scene
from selfmark.evaluation.detector_precision import settings_for_detector
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.paper.reproduction import contact_sheets, descriptor_maps, stage1_measurements
from selfmark.paper.reproduction.dataset_cache import CachedDataset
from selfmark.paper.reproduction.measurement_task import MeasurementTask, load_task_images
from selfmark.run.folder import Run
from tests.paper.reproduction import demo_datasets
from tests.paper.reproduction.conftest import SHORT


@pytest.fixture
def study(root: Path, scene: Scene, trained: Path, tmp_path: Path) -> MeasurementTask:
    data = demo_datasets.make("celeba", root / "celeba", scene)
    held = CachedDataset(data, data, tmp_path / "made")
    return MeasurementTask(
        run=trained,
        config=override(preset("tiny"), SHORT),
        test=held.test_file(),
        fit=held.fit_file(0, None),
        by=(),
        detectors=(),
        folder=tmp_path,
        device=torch.device("cpu"),
    )


def test_stage_1_alone_has_the_errors_that_evaluate_has(study: MeasurementTask, tmp_path: Path) -> None:
    settings = {
        name.removeprefix("evaluation."): value for name, value in SHORT.items() if "evaluation." in name
    }
    whole = evaluate_run(
        study.trained,
        EvaluationInputs(study.test, study.test, study.fit, study.fit),
        EvaluationOptions(settings=settings),
        output=tmp_path / "whole",
        device="cpu",
    )
    alone = stage1_measurements.measure_stage1_errors(study)
    assert alone["stage1"] == whole["stage1"]
    assert alone["headline"]["regressor"] == whole["headline"]["regressor"]


def test_the_last_round_is_what_stage_1_ended_with(study: MeasurementTask) -> None:
    """Its weights are those of the last checkpoint; only the clustering was drawn anew."""
    run = Run.open(study.trained)
    rounds = stage1_measurements.measure_errors_by_round(study)["rounds"]
    assert len(rounds) == run.config.rounds.count
    last, whole = rounds[-1]["stage1"], stage1_measurements.measure_stage1_errors(study)["stage1"]
    assert last["points_per_image"] == pytest.approx(whole["points_per_image"], rel=0.5)
    assert rounds[0] != rounds[-1]


def test_precision_counts_as_by_hand(study: MeasurementTask) -> None:
    """Points of a detector that lie within a tenth of the eyes' distance of a point, in a naive loop."""
    shown = load_task_images(study, study.test)
    asked = replace(study, detectors=("orb",))
    found = detect_first_keypoints(
        shown.store.pixels, shown.store.bounds, settings_for_detector("orb", study.config), study.device, 8
    )
    hits = 0
    for xy, image in zip(found.xy.numpy(), found.image_index.tolist(), strict=True):
        points = shown.xy[image]
        names = list(shown.truth.names)
        eyes = [
            points[[names.index(f"{side}_eye_{n}") for n in range(6)]].mean(axis=0)
            for side in ("left", "right")
        ]
        radius = 0.1 * np.linalg.norm(eyes[0] - eyes[1])
        hits += min(np.linalg.norm(points - xy, axis=1)) <= radius
    assert stage1_measurements.measure_precision(asked)["precision"]["orb"] == pytest.approx(
        100 * hits / len(found)
    )


def test_points_are_told_from_the_annotated_ones_near_them(study: MeasurementTask) -> None:
    shown = load_task_images(study, study.test)
    on = shown.xy[0, :3].astype(np.float32)
    off = on + 1000
    image = np.zeros(3, np.int64)
    there = shown.nearest(on, image, study.config)
    assert np.allclose(shown.xy[0, there], on, atol=1.0)
    assert shown.nearest(off, image, study.config).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("make", [descriptor_maps.map_keypoints, descriptor_maps.map_stage1_landmarks])
def test_a_map_has_a_place_and_a_point_for_every_dot(study: MeasurementTask, make: object) -> None:
    dots = np.array(make(study)["map"])  # type: ignore[operator]
    assert dots.shape[1] == 3
    assert len(dots) >= 4
    assert np.isfinite(dots).all()
    assert ((dots[:, 2] >= -1) & (dots[:, 2] < 68)).all()


def test_only_landmarks_that_stand_for_a_point_are_drawn(
    study: MeasurementTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(contact_sheets, "matched_landmarks", lambda fit: np.array([2, 0] + [-1] * 66))
    real = contact_sheets.draw_contact_sheet
    monkeypatch.setattr(
        contact_sheets,
        "draw_contact_sheet",
        lambda images, xy, columns: drawn.append(xy) or real(images, xy, columns),
    )
    assert contact_sheets.draw_matched_sheet(study) == {"matched_sheet": "matched.png"}
    assert np.isfinite(drawn[0]).all(axis=(0, 2)).tolist() == [True, False, True, False]
    assert (study.folder / "matched.png").stat().st_size > 1000
