"""Test `selfmark check`: pictures show what the network sees, and findings and advice fit the images."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from selfmark.config import Config, override, preset
from selfmark.config.schedule import stage_iterations
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.images.survey import ImageSurvey, survey_images
from selfmark.inspection import run_estimate, setup_advice, step_timing
from selfmark.inspection.input_sheets import draw_crops, draw_originals, draw_ruler
from selfmark.inspection.run_estimate import RunEstimate, estimate_run
from selfmark.inspection.setup_advice import InputFindings, advise_setup
from tests.conftest import QUICK, QUICK_FEATURES, selfmark

CPU = torch.device("cpu")


def _make_options(settings: dict[str, object]) -> list[str]:
    return [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]


def test_the_command_prints_findings_and_writes_pictures(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_estimate, "MEASURED_SECONDS", 0.0)
    folder, output = tmp_path / "photos", tmp_path / "check"
    shutil.copytree(photos, folder)
    shutil.copy(folder / "000.png", folder / "copy.png")
    (folder / "broken.jpg").write_bytes(b"")
    options = ["--preset=tiny", "--device=cpu", "-o", output, *_make_options(QUICK_FEATURES)]
    assert selfmark("check", folder, *options) == 0
    printed = capsys.readouterr()
    assert "25 images from 25 files, 64 x 64 pixels" in printed.out
    assert "4 landmarks: about 1 minute and" in printed.out
    assert "warning: 1 image is a copy of another" in printed.err
    assert "warning: 1 image cannot be read" in printed.err
    assert "broken.jpg (empty file)" in printed.err
    assert "advice: 25 images are few" in printed.out
    assert "advice: recipe: the objects" in printed.out
    assert f"picture: {output / 'crops.jpg'}" in printed.out
    assert sorted(path.name for path in output.iterdir()) == ["check.json", "crops.jpg", "ruler.jpg"]
    content = json.loads((output / "check.json").read_text())
    assert content["unreadable"] == [{"name": str(folder / "broken.jpg"), "reason": "empty file"}]
    assert content["estimate"]["seconds"] > 0


def test_the_crops_are_the_pixels_that_the_network_gets(photos: Path) -> None:
    config = override(preset("tiny"), QUICK)
    store = load_store(list_images([photos]), config.images, 1.0, None)
    sheet = draw_crops(store, max_images=10)  # rows of eight
    tile = config.images.size
    shown_rows = [0, 2, 5, 7, 10, 12, 15, 17, 20, 23]  # ten of 24 images, evenly spaced
    for index, row in enumerate(shown_rows):
        top, left = index // 8 * (tile + 4), index % 8 * (tile + 4)
        assert np.array_equal(
            sheet[top : top + tile, left : left + tile], store.pixels[row].permute(1, 2, 0).numpy()
        )


def test_boxes_are_drawn_where_the_regions_are(tmp_path: Path) -> None:
    path = tmp_path / "gray.png"
    cv2.imwrite(str(path), np.full((120, 240, 3), 90, np.uint8))
    images = Config().images
    store = load_store(
        [ImageRef(path, box=(100.0, 40.0, 50.0, 50.0))], replace(images, margin=0.0), 1.0, None
    )
    sheet = draw_originals(store, 10)
    assert sheet is not None
    assert sheet.shape == (240, 480, 3)
    rows, columns = np.nonzero((sheet == (255, 200, 0)).all(axis=2))
    assert (rows.min(), rows.max()) == pytest.approx((80, 180), abs=3)
    assert (columns.min(), columns.max()) == pytest.approx((200, 300), abs=3)


def test_the_rulers_have_a_mark_every_hundred_pixels(tmp_path: Path) -> None:
    path = tmp_path / "gray.png"
    cv2.imwrite(str(path), np.full((130, 3200, 3), 90, np.uint8))
    store = load_store([ImageRef(path)], Config().images, 1.0, None)
    ruler = draw_ruler(store, 10)
    assert ruler is not None
    assert ruler.shape == (40 + 65, 40 + 1600, 3)  # half the size, because it is wide
    marks = np.flatnonzero((ruler[36, 36:] < 128).all(axis=1)) + 36
    # The marks are at 0, 100, ... 3,100; a mark at 3,200 would be beyond the border of the ruler.
    np.testing.assert_array_equal(marks, 40 + np.arange(32) * 50)
    assert draw_ruler(store, 0.1) is None


@pytest.mark.parametrize(
    "settings",
    [QUICK, QUICK_FEATURES | {"features.keypoint_landmarks": True}, QUICK | {"method": "equivariance"}],
)
def test_every_stage_of_a_training_is_timed(
    photos: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_estimate, "MEASURED_SECONDS", 0.0)
    config = override(preset("tiny"), settings)
    before = torch.random.get_rng_state()
    estimate = estimate_run(list_images([photos]), config, CPU)
    assert torch.equal(torch.random.get_rng_state(), before)  # a later run starts from the same weights
    iterations = stage_iterations(override(config, {"features.orientation": "upright"}))
    assert estimate.seconds_per_iteration.keys() == iterations.keys()
    assert all(seconds > 0 for seconds in estimate.seconds_per_iteration.values())
    training = sum(count * estimate.seconds_per_iteration[stage] for stage, count in iterations.items())
    assert estimate.training == pytest.approx(training)
    longer = override(
        config, {"stage2.iterations": 60, "student.iterations": 30, "methods.iterations": 10_000}
    )
    assert sum(stage_iterations(longer).values()) > sum(iterations.values())


def test_the_comparison_of_rotations_is_part_of_the_estimate(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes one second. Objects that are not upright are also compared in three rotations.

    These passes are shorter, because they use images of half the side.
    """
    monkeypatch.setattr(run_estimate, "measure_pass", lambda *_: 1.0)
    monkeypatch.setattr(run_estimate, "measure_steps", lambda *_: {})
    settings = QUICK_FEATURES | {"features.keypoint_landmarks": False}
    passes = {}
    for orientation in ("auto", "upright", "not-upright", "turned"):
        config = override(preset("tiny"), settings | {"features.orientation": orientation})
        passes[orientation] = round(estimate_run(list_images([photos]), config, CPU).other)
    assert passes["auto"] == passes["upright"]
    assert passes["not-upright"] == passes["turned"] == passes["upright"] + 24 * 3 * (32 / 64) ** 2


def test_the_first_steps_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step takes 10 s, the others 2 s: 2 s are reported, and the time limit is respected."""
    now, steps = [0.0], []

    def run_phase(state: object, phase: object, task: object, runtime: object, on_log, *_: object) -> None:
        start = now[0]
        for iteration in range(phase.start, phase.stop):
            now[0] += 10.0 if not steps else 2.0
            steps.append(iteration)
            if (iteration + 1) % runtime.log_every == 0 or iteration + 1 == phase.stop:
                on_log(phase, iteration + 1, {}, now[0] - start)

    monkeypatch.setattr(step_timing, "run_phase", run_phase)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    assert step_timing._time_steps(None, None, Config(), 30.0) == pytest.approx(2.0)
    assert now[0] <= 32.0
    assert len(steps) == 11


# --- advice ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def survey(photos: Path) -> ImageSurvey:
    return survey_images(load_store(list_images([photos]), Config().images, 1.0, None))


def _advise(survey: ImageSurvey, findings: InputFindings | None = None, **options: object) -> str:
    estimate = RunEstimate({}, 60.0, 1.0, 1.0, options.pop("memory", 2**30), 0)
    config = override(preset("tiny"), {"features.name": "efficientnet-lite0", **options})
    return "\n".join(advise_setup(survey, findings or InputFindings(), estimate, config, 2, CPU))


def test_advice_fits_the_images(survey: ImageSurvey, monkeypatch: pytest.MonkeyPatch) -> None:
    large_survey = replace(survey, images=300)
    assert "24 images are few" in _advise(survey)
    assert "few" not in _advise(large_survey)
    assert "are upright (upside-down copies are recognized in 97%" in _advise(
        large_survey, InputFindings(0.97)
    )
    assert "face any direction" in _advise(large_survey, InputFindings(0.6))
    assert "fewer than -k 10: use -k 7 or less" in _advise(large_survey, InputFindings(keypoints=7))
    assert "-k 10 is fine" in _advise(large_survey, InputFindings(keypoints=25))
    video = replace(survey, images=3_000, videos=1)
    # The survey has every second frame, so --every must be twice the stride.
    assert "--every 20 uses 300 frames" in _advise(replace(video, stride=10))
    assert "--every 6 reads only that many" in _advise(video)  # the preset uses 1,000 of 3,000
    monkeypatch.setattr(setup_advice, "available_memory", lambda: 3 * 2**30)
    assert "memory" not in _advise(large_survey, memory=2 * 2**30)
    assert "needs about 4.0 GiB, but 3.0 GiB are free" in _advise(large_survey, memory=4 * 2**30)


def test_advice_mentions_a_gpu_that_is_missing_or_unused(
    survey: ImageSurvey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "Colab" in _advise(survey)
    assert "Kaggle" in _advise(survey)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert "torch cannot use it" in _advise(survey)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert "leave out --device cpu" in _advise(survey)
