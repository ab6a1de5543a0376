"""Compare measurements of Stage 1, of keypoints and of t-SNE maps with independent computations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from selfmark.config import override, preset
from selfmark.demo.scene import Scene
from selfmark.evaluation.detector_precision import build_detector_settings
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.paper.reproduction import contact_sheets, descriptor_maps, stage1_measurements, workspace
from selfmark.paper.reproduction.dataset_cache import CachedDataset
from selfmark.paper.reproduction.measurement_task import MeasurementTask, load_task_images
from selfmark.paper.reproduction.table_metrics import parse_metric
from selfmark.run.folder import Run
from tests.paper.reproduction import demo_datasets
from tests.paper.reproduction.conftest import SHORT


@pytest.fixture
def task(root: Path, scene: Scene, finished_run: Path, tmp_path: Path) -> MeasurementTask:
    data = demo_datasets.make_dataset("celeba", root / "celeba", scene)
    cached = CachedDataset(data, data, tmp_path / "made")
    return MeasurementTask(
        run=finished_run,
        config=override(preset("tiny"), SHORT),
        test=cached.write_test_file(),
        fit=cached.write_fit_file(0, None),
        by=(),
        detectors=(),
        folder=tmp_path,
        device=torch.device("cpu"),
    )


def test_stage1_errors_equal_those_of_evaluate_run(task: MeasurementTask, tmp_path: Path) -> None:
    settings = {
        name.removeprefix("evaluation."): value for name, value in SHORT.items() if "evaluation." in name
    }
    evaluated = evaluate_run(
        task.run_folder,
        EvaluationInputs(task.test, task.test, task.fit, task.fit),
        EvaluationOptions(settings=settings),
        output=tmp_path / "evaluated",
        device="cpu",
    )
    measured = stage1_measurements.measure_stage1_errors(task)
    assert measured["stage1"] == evaluated["stage1"]
    assert measured["headline"]["regressor"] == evaluated["headline"]["regressor"]
    assert measured["normaliser"] == evaluated["normaliser"] == "inter_ocular"
    for name, entry in measured["inter_ocular"].items():
        assert entry["stage1"] == evaluated["inter_ocular"][name]["stage1"]

    # The measurement has errors for two definitions of the inter-ocular distance. They equal the errors of an
    # evaluation that uses this definition as its normalizer.
    two_points = evaluated["inter_ocular"]
    assert two_points["eye_centers"]["headline"] == evaluated["headline"]
    expected = evaluate_run(
        task.run_folder,
        EvaluationInputs(task.test, task.test, task.fit, task.fit),
        EvaluationOptions("points:41,46", settings=settings),
        output=tmp_path / "authors",
        device="cpu",
    )
    by_points = two_points["points_41_46"]
    assert by_points["guessing"] == pytest.approx(expected["guessing"])
    assert by_points["stage1"]["guessing"] == pytest.approx(expected["stage1"]["guessing"])
    for row, expected_row in zip(by_points["stage1"]["errors"], expected["stage1"]["errors"], strict=True):
        assert row == pytest.approx(expected_row)
    for direction in ("forward", "backward"):
        for key in ("error", "cumulative", "guessing_by_point"):
            assert by_points["headline"][direction][key] == pytest.approx(
                expected["headline"][direction][key]
            )
    assert expected["headline"]["forward"]["error"] != evaluated["headline"]["forward"]["error"]


def test_curves_are_means_over_several_samples_of_images(task: MeasurementTask) -> None:
    """The regressors of a figure are fitted on several samples of images; the page shows the mean curve."""
    evaluation = replace(task.config.evaluation, draws=3)
    drawn = replace(task, fit_images=5, config=replace(task.config, evaluation=evaluation))
    results = workspace._evaluate(drawn)
    (curve,) = results["curves"]
    assert (curve["images"], curve["draws"]) == (5, 3)
    assert parse_metric("forward_curve")[0].read(results, "") == curve["forward"]["mean"]
    assert parse_metric("backward_curve_spread")[0].read(results, "") == curve["backward"]["spread"]
    assert max(curve["backward"]["spread"]) > 0
    assert parse_metric("forward")[0].read(results, "") != results["headline"]["forward"]["error"]
    whole_result = workspace._evaluate(task)
    assert whole_result["curves"] == []
    assert (
        parse_metric("forward_curve")[0].read(whole_result, "")
        == whole_result["headline"]["forward"]["cumulative"]
    )


def test_the_last_round_is_similar_to_the_end_of_stage_1(task: MeasurementTask) -> None:
    """Both have the same weights, but the landmarks are clustered again, so the results are only similar."""
    run = Run.open(task.run_folder)
    rounds = stage1_measurements.measure_errors_by_round(task)["rounds"]
    assert len(rounds) == run.config.rounds.count
    last_errors, final_errors = (
        rounds[-1]["stage1"],
        stage1_measurements.measure_stage1_errors(task)["stage1"],
    )
    assert last_errors["points_per_image"] == pytest.approx(final_errors["points_per_image"], rel=0.5)
    assert rounds[0] != rounds[-1]


def test_precision_equals_that_of_a_naive_loop(task: MeasurementTask) -> None:
    """Count keypoints within a tenth of the inter-ocular distance of an annotated point."""
    images = load_task_images(task, task.test)
    orb = replace(task, detectors=("orb",))
    keypoints = detect_first_keypoints(
        images.store.pixels, images.store.bounds, build_detector_settings("orb", task.config), task.device, 8
    )
    hits = 0
    for xy, image in zip(keypoints.xy.numpy(), keypoints.image_index.tolist(), strict=True):
        points = images.xy[image]
        names = list(images.truth.names)
        eyes = [
            points[[names.index(f"{side}_eye_{n}") for n in range(6)]].mean(axis=0)
            for side in ("left", "right")
        ]
        radius = 0.1 * np.linalg.norm(eyes[0] - eyes[1])
        hits += min(np.linalg.norm(points - xy, axis=1)) <= radius
    assert stage1_measurements.measure_precision(orb)["precision"]["orb"] == pytest.approx(
        100 * hits / len(keypoints)
    )


def test_the_nearest_annotated_point_is_found_unless_all_are_far_away(task: MeasurementTask) -> None:
    images = load_task_images(task, task.test)
    near_xy = images.xy[0, :3].astype(np.float32)
    far = near_xy + 1000
    image_index = np.zeros(3, np.int64)
    nearest = images.find_nearest(near_xy, image_index, task.config)
    assert np.allclose(images.xy[0, nearest], near_xy, atol=1.0)
    assert images.find_nearest(far, image_index, task.config).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("measure", [descriptor_maps.map_keypoints, descriptor_maps.map_stage1_landmarks])
def test_a_tsne_map_has_the_position_and_the_annotated_point_of_every_dot(
    task: MeasurementTask, measure: object
) -> None:
    dots = np.array(measure(task)["map"])  # type: ignore[operator]
    assert dots.shape[1] == 3
    assert len(dots) >= 4
    assert np.isfinite(dots).all()
    assert ((dots[:, 2] >= -1) & (dots[:, 2] < 68)).all()


def test_each_field_has_its_own_sheet(task: MeasurementTask, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = contact_sheets.read_labels(task.test, task.config)
    light = tuple(str(row % 2) for row in range(len(truth)))
    monkeypatch.setattr(
        contact_sheets,
        "read_labels",
        lambda path, config: replace(truth, fields={**truth.fields, "light": light}),
    )
    results = contact_sheets.draw_landmark_sheet(replace(task, by=("yaw_bucket", "light")))
    for field in ("yaw_bucket", "light"):
        metric, argument = parse_metric(f"pose_sheet {field}")
        assert metric.read(results, argument) == f"by-{field}.png"
        assert (task.folder / f"by-{field}.png").stat().st_size > 1000


def test_only_matched_landmarks_are_drawn(task: MeasurementTask, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(contact_sheets, "match_annotated_points", lambda fit: np.array([2, 0] + [-1] * 66))
    draw_contact_sheet = contact_sheets.draw_contact_sheet
    monkeypatch.setattr(
        contact_sheets,
        "draw_contact_sheet",
        lambda images, xy, columns: drawn.append(xy) or draw_contact_sheet(images, xy, columns),
    )
    assert contact_sheets.draw_matched_sheet(task) == {"matched_sheet": "matched.png"}
    assert np.isfinite(drawn[0]).all(axis=(0, 2)).tolist() == [True, False, True, False]
    assert (task.folder / "matched.png").stat().st_size > 1000
