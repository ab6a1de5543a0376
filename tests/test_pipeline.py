"""Test the whole pipeline: it learns, resumes to the same result, and its settings take effect."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import selfmark
from selfmark import pipeline
from selfmark.config import override, preset
from selfmark.demo.demo_run import measure_errors
from selfmark.demo.scene import Scene, generate_scene, write_scene
from selfmark.discovery import discover, train_stage1
from selfmark.errors import InputError
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.images.flow import propagate_points
from selfmark.pipeline import plan_stage1_phases
from selfmark.run.folder import Event, Run
from tests.conftest import QUICK
from tests.stored_results import assert_same_tensors, read_tensors


@pytest.fixture(scope="module")
def finished_run(quick_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the finished run, which tests may resume."""
    return Path(shutil.copytree(quick_run, tmp_path_factory.mktemp("runs") / "uninterrupted"))


@pytest.mark.usefixtures("without_report")
def test_landmarks_beat_the_mean_shape(tmp_path: Path) -> None:
    """The forward error of the mean shape is more than 1.6 times that of a short run."""
    write_scene(generate_scene(250, 64, seed=1), tmp_path / "data" / "train")
    write_scene(generate_scene(100, 64, seed=2), tmp_path / "data" / "test")
    settings = QUICK | {
        "K": 8,
        "M": 24,
        "loss.random_negatives": 64,
        "loss.negative_distance": 2.5,
        "loss.negative_weight": 3.0,
        "heatmaps.threshold": 0.1,
        "heatmaps.sigma": 1.0,
        "correspondence.restarts": 3,
        "correspondence.iterations": 50,
        "warmup.iterations": 120,
        "rounds.count": 2,
        "rounds.iterations": 60,
        "stage2.iterations": 100,
        "stage2.batch": 12,
        "optimizer.lr": 1e-3,
        "runtime.batch": 8,
        "runtime.log_every": 50,
        "runtime.checkpoint_every": 500,
    }
    images = tmp_path / "data" / "train" / "images"
    discover(images, output=tmp_path / "run", preset="tiny", settings=settings, device="cpu")
    result = measure_errors(tmp_path / "run", tmp_path / "data", "cpu")
    assert result.forward * 1.6 < result.mean_shape
    assert result.backward < result.mean_shape_backward


def test_a_run_folder_has_all_files_and_events(finished_run: Path, photos: Path) -> None:
    for name in ("config.yaml", "run.json", "images.json", "model/model.json", "report/index.html"):
        assert (finished_run / name).is_file(), name
    run = Run.open(finished_run)
    assert run.config == override(preset("tiny"), QUICK)
    assert len(run.refs()) == 24
    events = run.events()
    kinds = {event["event"] for event in events}
    for name in ("start", "plan", "images", "keypoints", "train", "recovery", "checkpoint", "done"):
        assert name in kinds, name
    stages = [(event["stage"], event["round"]) for event in events if event["event"] == "train"]
    assert list(dict.fromkeys(stages)) == [("warm-up", 0), ("round", 1), ("round", 2), ("stage 2", 0)]
    assert not list(finished_run.rglob("*.part"))
    assert not [path for path in finished_run.rglob("*") if path.suffix in (".pkl", ".pt", ".pth", ".npy")]


@pytest.mark.usefixtures("without_report")
def test_the_seed_determines_the_result(finished_run: Path, photos: Path, tmp_path: Path) -> None:
    discover(photos, output=tmp_path / "again", preset="tiny", settings=QUICK, device="cpu")
    assert_same_tensors(finished_run, tmp_path / "again")
    discover(photos, output=tmp_path / "other", preset="tiny", settings=QUICK | {"seed": 1}, device="cpu")
    with pytest.raises(AssertionError):
        assert_same_tensors(finished_run, tmp_path / "other")


def _interrupt_at(number: int) -> Any:
    """Return a listener that interrupts the run at its n-th event, like Ctrl-C."""
    count = 0

    def listener(event: Event) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise KeyboardInterrupt

    return listener


@pytest.mark.parametrize("number", [3, 5, 9, 12, 15, 19, 23, 27, 30])
def test_an_interrupted_run_resumes_to_the_same_result(
    number: int, finished_run: Path, photos: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    output = tmp_path / "run"
    if number < 30:  # Checks and report take time, so only the last case has them.
        request.getfixturevalue("without_report")
    with pytest.raises(KeyboardInterrupt):
        discover(
            photos, output=output, preset="tiny", settings=QUICK, device="cpu", listener=_interrupt_at(number)
        )
    discover(output=output, resume=True, device="cpu")
    assert_same_tensors(finished_run, output)


def test_resuming_a_finished_run_changes_nothing(finished_run: Path) -> None:
    before = read_tensors(finished_run)
    discover(output=finished_run, resume=True, device="cpu")
    for name, value in read_tensors(finished_run).items():
        assert torch.equal(value, before[name])


@pytest.mark.usefixtures("without_report")
def test_stage_2_can_follow_a_separate_stage_1(finished_run: Path, photos: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    train_stage1(photos, output=output, preset="tiny", settings=QUICK, device="cpu")
    assert not (output / "model").exists()
    checkpoints = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert checkpoints[0] == "stage1.previous.safetensors"
    assert Stage1.load(Run.open(output), "cpu").centroids.shape[0] == QUICK["K"]
    train_stage1(output=output, resume=True, device="cpu")  # A finished Stage 1 is not changed.
    discover(output=output, resume=True, device="cpu")
    assert_same_tensors(finished_run, output)


def test_weights_of_rounds_are_kept_if_requested(finished_run: Path, photos: Path, tmp_path: Path) -> None:
    """If a run stops after the last checkpoint of a round, resuming it saves the weights of that round."""
    settings = QUICK | {"rounds.keep_weights": True}
    output, stopped = tmp_path / "run", tmp_path / "stopped"
    train_stage1(photos, output=output, preset="tiny", settings=settings, device="cpu")
    first, last = (load_file(Run.open(output).round_weights_path(number)) for number in (1, 2))
    state = load_file(output / "checkpoints" / "stage1.safetensors")
    assert all(torch.equal(value, state[f"network.{name}"]) for name, value in last.items())
    assert any(not torch.equal(value, last[name]) for name, value in first.items())
    assert not list((finished_run / "checkpoints").glob("round-*"))

    end_of_round_1 = QUICK["warmup.iterations"] + QUICK["rounds.iterations"]

    def stop(event: Event) -> None:
        if event["event"] == "checkpoint" and event["iteration"] == end_of_round_1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_stage1(photos, output=stopped, preset="tiny", settings=settings, device="cpu", listener=stop)
    assert not Run.open(stopped).round_weights_path(1).exists()
    train_stage1(output=stopped, resume=True, device="cpu")
    resumed = load_file(Run.open(stopped).round_weights_path(1))
    assert all(torch.equal(value, resumed[name]) for name, value in first.items())


# Settings for a run that chooses K from three candidates.
AUTO_K = {name: value for name, value in QUICK.items() if name not in ("K", "M")} | {
    "M": 12,
    "auto_k.candidates": [3, 4, 6],
    "auto_k.splits": 2,
    "rounds.count": 1,
}


@pytest.fixture(scope="module")
def chosen(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that chose its number of landmarks."""
    output = tmp_path_factory.mktemp("runs") / "chosen"
    discover(photos, landmarks="auto", output=output, preset="tiny", settings=AUTO_K, device="cpu")
    return output


def _read_choices(run: Path) -> list[Event]:
    return [event for event in Run.open(run).events() if event["event"] == "landmark_count"]


def test_the_chosen_number_of_landmarks_is_stored_logged_and_reported(chosen: Path) -> None:
    (event,) = _read_choices(chosen)
    stored = json.loads((chosen / "landmark_count.json").read_text())
    assert stored["K"] == event["K"] in (3, 4, 6)
    assert [trial["K"] for trial in stored["trials"]] == [3, 4, 6]
    assert stored["K"] == Run.open(chosen).config.K
    assert len(selfmark.load(str(chosen)).names) == stored["K"]
    page = (chosen / "report" / "index.html").read_text()
    assert "How many landmarks" in page
    assert event["why"][:40] in page


def test_a_chosen_number_gives_the_same_result_as_a_given_one(
    chosen: Path, photos: Path, tmp_path: Path
) -> None:
    K = Run.open(chosen).config.K
    discover(photos, landmarks=K, output=tmp_path / "given", preset="tiny", settings=AUTO_K, device="cpu")
    assert_same_tensors(chosen, tmp_path / "given")
    assert "How many landmarks" not in (tmp_path / "given" / "report" / "index.html").read_text()


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("moment", ["how many landmarks", "landmark_count", "recovery"])
def test_a_run_interrupted_around_the_choice_of_k_resumes_to_the_same_result(
    moment: str, chosen: Path, photos: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"

    def listener(event: Event) -> None:
        if moment in (event["event"], event.get("stage")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        discover(
            photos,
            landmarks="auto",
            output=output,
            preset="tiny",
            settings=AUTO_K,
            device="cpu",
            listener=listener,
        )
    assert (output / "landmark_count.json").exists() == (moment == "recovery")
    before = len(_read_choices(output))
    discover(output=output, resume=True, device="cpu")
    assert_same_tensors(chosen, output)
    assert len(_read_choices(output)) == before + (moment != "recovery")


def test_the_number_of_landmarks_must_be_positive(photos: Path, tmp_path: Path) -> None:
    for invalid in (0, -2, "many", 2.5):
        with pytest.raises(InputError, match=r"at least 1, or 'auto'|must be int, 'auto' or None"):
            discover(photos, landmarks=invalid, output=tmp_path / "run", device="cpu")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_resume_refuses_other_images(finished_run: Path, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "new.png"), np.zeros((64, 64, 3), np.uint8))
    with pytest.raises(InputError, match="started on other images"):
        discover(tmp_path, output=finished_run, resume=True, device="cpu")


def test_two_processes_cannot_work_on_one_run(finished_run: Path) -> None:
    with Run.open(finished_run).lock(), pytest.raises(InputError, match="another process"):
        discover(output=finished_run, resume=True, device="cpu")


# The checks or the report at the end of a run use these settings, so their ablations run both.
ABLATIONS_IN_REPORT = {"warmup.bootstrap", "flip.train", "correspondence.mode", "keypoints.detector"}


@pytest.mark.parametrize(
    "changes",
    [
        {"loss.negatives": "different-cluster"},
        {"correspondence.mode": "equivariance"},
        {"correspondence.assignment": "hungarian"},
        {"warmup.bootstrap": "detector-descriptors"},
        {"flip.train": False, "flip.test": False},
        {"flip.test": False},
        {"flip.partner": "itself"},
        {"keypoints.detector": "sift"},
        {"keypoints.random_fraction": 0.8},
        {"loss.average": "together", "heatmaps.refine": "quarter"},
        {"M": 12},
        {"warmup.iterations": 1},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_every_ablation_takes_effect(
    changes: dict[str, Any],
    finished_run: Path,
    photos: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if not changes.keys() & ABLATIONS_IN_REPORT:
        request.getfixturevalue("without_report")
    detector = discover(
        photos, output=tmp_path / "run", preset="tiny", settings=QUICK | changes, device="cpu"
    )
    assert len(detector.names) == 4
    if changes == {"flip.test": False}:
        assert not detector.card.flip_test  # This setting does not change the weights.
        return
    if changes == {"flip.partner": "itself"}:
        assert detector.card.mirror == (0, 1, 2, 3)
    with pytest.raises(AssertionError):
        assert_same_tensors(finished_run, tmp_path / "run")


def test_bootstrapping_from_detector_descriptors_has_no_warm_up() -> None:
    config = override(preset("tiny"), {"warmup.bootstrap": "detector-descriptors"})
    warmup, rounds = plan_stage1_phases(config)
    assert (warmup.start, warmup.stop, rounds[0].start) == (0, 0, 0)


def test_the_preset_paper_has_the_phases_of_the_paper() -> None:
    warmup, rounds = plan_stage1_phases(preset("paper"))
    assert (warmup.stop, rounds[0].start, rounds[0].stop, rounds[-1].stop) == (
        30_000,
        30_000,
        35_000,
        200_000,
    )
    assert warmup.drops == (150_000, 180_000)


@pytest.mark.usefixtures("without_report")
def test_first_keypoints_can_be_read_from_a_file(photos: Path, scene: Scene, tmp_path: Path) -> None:
    """As in an experiment of the paper, the first keypoints are the true landmarks."""
    path = tmp_path / "points.csv"
    rows = [
        f"{index:03d}.png,{x:.3f},{y:.3f}"
        for index in range(len(scene.images))
        for (x, y), is_visible in zip(scene.xy[index], scene.visible[index], strict=True)
        if is_visible
    ]
    path.write_text("\n".join(["image,x,y", *rows]))
    settings = QUICK | {"keypoints.detector": "file", "keypoints.points_file": str(path)}
    discover(photos, output=tmp_path / "run", preset="tiny", settings=settings, device="cpu")
    first = load_file(tmp_path / "run" / "points" / "first.safetensors")
    for index in range(len(scene.images)):
        points = first["xy"][first["image_index"] == index].numpy()
        np.testing.assert_allclose(points, scene.xy[index][scene.visible[index]], atol=1e-2)


def test_temporal_pairs_of_a_video_change_the_result(
    scene: Scene, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "clip.avi"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (96, 64))
    wide_image = cv2.copyMakeBorder(scene.images[0], 0, 0, 16, 16, cv2.BORDER_REFLECT)
    for shift in range(20):
        video.write(np.roll(wide_image, shift % 5, axis=1)[..., ::-1])
    video.release()
    settings = QUICK | {"temporal.enabled": True}
    detector = discover(path, output=tmp_path / "run", preset="tiny", settings=settings, device="cpu")
    points = detector(path)
    assert points.xy.shape == (20, 4, 2)
    assert Run.open(tmp_path / "run").refs()[3].frame == 3
    request.getfixturevalue("without_report")
    plain_detector = discover(path, output=tmp_path / "plain", preset="tiny", settings=QUICK, device="cpu")
    with pytest.raises(AssertionError):
        assert_same_tensors(tmp_path / "run", tmp_path / "plain")
    assert plain_detector.names == detector.names


def test_temporal_pairs_need_video_frames(photos: Path, tmp_path: Path) -> None:
    settings = QUICK | {"temporal.enabled": True}
    with pytest.raises(InputError, match="no two of these images are frames of the same video: give videos"):
        discover(photos, output=tmp_path / "run", preset="tiny", settings=settings, device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_report")
def test_images_that_a_coco_file_calls_frames_form_temporal_pairs(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pictures are frames 0, 20, ... of one video and 10, 30, ... of another; the last is no frame."""
    images = [
        {"id": index, "file_name": str(path), "video_id": index % 2, "frame_id": 10 * index}
        for index, path in enumerate(sorted(photos.iterdir()))
    ]
    del images[-1]["video_id"]
    (tmp_path / "frames.json").write_text(json.dumps({"images": images, "annotations": []}))
    paired: list[np.ndarray] = []

    def record_neighbors(*arguments: Any) -> Any:
        paired.append(arguments[4])
        return propagate_points(*arguments)

    monkeypatch.setattr(pipeline, "propagate_points", record_neighbors)
    settings = QUICK | {"temporal.enabled": True, "stage2.iterations": 1}
    discover(
        tmp_path / "frames.json", output=tmp_path / "run", preset="tiny", settings=settings, device="cpu"
    )
    assert len(paired) == QUICK["rounds.count"]
    video = np.arange(23) % 2  # the index of the video of every picture but the last
    for neighbors in paired:
        assert (neighbors[:-1] >= 0).all()
        assert (neighbors[:-1] % 2 == video[:, None]).all(), "neighbors are frames of the same video"
        assert (neighbors[-1] == -1).all()
    assert Run.open(tmp_path / "run").refs()[3].clip == (f"{tmp_path / 'frames.json'}:1", 30)


def test_a_run_can_be_loaded_and_applied(finished_run: Path, photos: Path) -> None:
    detector = selfmark.load(str(finished_run))
    points = detector(photos / "003.png")
    assert isinstance(points, selfmark.Landmarks)
    assert points.xy.shape == (1, 4, 2)
    assert points.score.shape == (1, 4)
    assert points.names == detector.names
