"""Test `selfmark predict`: --min-trust leaves landmarks out, and results of another model are protected."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from selfmark.detector import Detector
from selfmark.export.onnx_export import FILES, write_int8
from selfmark.images.video import read_frames
from selfmark.model.card import ModelCard, read_card, write_card
from selfmark.model.colors import landmark_colors, to_rgb
from tests.conftest import read_error_line, selfmark

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"
TRUST = tuple([0.9, 0.1, 0.5, 0.25] + [0.8] * 12)


def make_model(folder: Path, **changes: object) -> ModelCard:
    """Copy the toy detector, with some fields of its card changed."""
    shutil.copytree(TOY_DETECTOR, folder)
    card = replace(read_card(folder), **changes)  # type: ignore[arg-type]
    write_card(card, folder)
    return card


def predict(model: Path, *arguments: object) -> int:
    return selfmark("predict", model, *arguments, "--device=cpu")


def read_names(folder: Path) -> list[str]:
    """Return the landmarks of the first image in landmarks.csv."""
    with open(folder / "landmarks.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    return [row["landmark"] for row in rows if row["image"] == rows[0]["image"]]


def test_landmarks_of_low_trust_are_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    card = make_model(model, trust=TRUST, hidden=(1,))
    before = (model / "model.json").read_bytes()
    image = photos / "000.png"
    assert predict(model, image, "-o", tmp_path / "all") == 0
    assert read_names(tmp_path / "all") == [name for index, name in enumerate(card.names) if index != 1]
    capsys.readouterr()
    assert predict(model, image, "-o", tmp_path / "half", "--min-trust=0.5") == 0
    assert read_names(tmp_path / "half") == [card.names[0], card.names[2], *card.names[4:]]
    note = f"left out 1 of 15 landmarks with a trust below 0.5: {card.names[3]} (0.25)"
    assert capsys.readouterr().err.strip().splitlines()[-1] == note
    assert predict(model, image, "-o", tmp_path / "coco", "--min-trust=0.85", "--format=coco") == 0
    (category,) = json.loads((tmp_path / "coco" / "landmarks.json").read_text())["categories"]
    assert (category["keypoints"], category["trust"]) == ([card.names[0]], [0.9])
    capsys.readouterr()
    assert predict(model, image, "-o", tmp_path / "none", "--min-trust=0.25") == 0
    assert read_names(tmp_path / "none") == read_names(tmp_path / "all")
    note = "all landmarks have a trust of at least 0.25; none was left out"
    assert capsys.readouterr().err.strip().splitlines()[-1] == note
    assert (model / "model.json").read_bytes() == before


def test_landmarks_of_low_trust_are_not_drawn(tmp_path: Path) -> None:
    card = make_model(tmp_path / "model", trust=(1.0, *[0.0] * 15), skeleton=((0, 1), (1, 2)))
    video = tmp_path / "clip.mp4"
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 64))
    for _ in range(3):
        writer.write(np.zeros((64, 64, 3), np.uint8))
    writer.release()
    assert predict(tmp_path / "model", video, "-o", tmp_path / "out", "--draw", "--min-trust=0.5") == 0
    ((_, frame),) = read_frames(tmp_path / "out" / "clip_landmarks.mp4", [1])
    bright = frame[frame.max(axis=2) > 100].astype(int)
    assert len(bright) > 0
    color = np.array(to_rgb(landmark_colors(card)[0]))
    cosine = bright @ color / np.linalg.norm(bright, axis=1) / np.linalg.norm(color)
    assert (cosine > 0.9).all(), "only landmark 0 is drawn"


def test_results_of_another_model_are_overwritten_only_on_request(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, out = tmp_path / "first", tmp_path / "second", tmp_path / "out"
    make_model(first)
    # The second model differs from the first only in the names of its landmarks, so it counts as the same.
    make_model(second, names=tuple(f"part {index}" for index in range(16)))
    image = photos / "000.png"
    assert predict(first, image, "-o", out) == 0
    assert predict(second, image, "-o", out, "--format=coco") == 0
    record = json.loads((out / "predictions.json").read_text())
    assert (record["run"], record["output_format"], record["smoothing"]) == (str(second), "coco", "none")
    before = {path: path.read_bytes() for path in out.iterdir()}
    detector = Detector.load(second)
    # With changed weights, the second model counts as another model.
    with torch.no_grad():
        next(iter(detector.psi.parameters())).mul_(2)
    detector.save(second)
    capsys.readouterr()
    assert predict(second, image, "-o", out) == 2
    error = capsys.readouterr().err.strip()
    assert f"has results of an earlier model of {second}, which has changed since" in error
    assert "--overwrite" in error
    assert "\n" not in error
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert predict(second, image, "-o", out, "--overwrite") == 0
    assert predict(second, image, "-o", out) == 0
    assert predict(first, image, "-o", out) == 2
    assert f"has results of another model ({second})" in capsys.readouterr().err


@pytest.mark.parametrize("runtime", ["onnx", "onnx-int8"])
def test_min_trust_works_with_every_runtime(runtime: str, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    model = tmp_path / "model"
    card = make_model(model, trust=TRUST)
    if runtime == "onnx":
        assert selfmark("export", model, "--onnx") == 0
    else:  # `selfmark export` would need the images of a run, and this model was not made by a run
        sample = torch.randint(0, 256, (4, 3, card.images.size, card.images.size), dtype=torch.uint8)
        write_int8(Detector.load(model), sample, model / FILES["int8"])
    image = photos / "000.png"
    assert predict(model, image, "-o", tmp_path / "out", "--runtime", runtime, "--min-trust=0.5") == 0
    assert read_names(tmp_path / "out") == [card.names[0], card.names[2], *card.names[4:]]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, ["--min-trust=0.5"], "has no trust, because an earlier version of selfmark made it"),
        ({"trust": TRUST}, ["--min-trust=0.95"], "has a trust of at least 0.95; the highest is 0.9"),
        ({"trust": TRUST, "hidden": (0,)}, ["--min-trust=0.85"], "the highest is 0.8"),
        ({"trust": TRUST}, ["--min-trust=0.5", "--mapped"], "mapped points have no trust"),
    ],
)
def test_a_min_trust_that_cannot_be_applied_is_an_error(
    changes: dict[str, object],
    options: list[str],
    message: str,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_model(tmp_path / "model", **changes)
    assert predict(tmp_path / "model", photos / "000.png", "-o", tmp_path / "out", *options) == 2
    assert message in read_error_line(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limit", ["-0.1", "1.1", "much"])
def test_min_trust_must_be_between_0_and_1(limit: str, photos: Path, tmp_path: Path) -> None:
    assert predict(TOY_DETECTOR, photos, "-o", tmp_path / "out", f"--min-trust={limit}") == 2
    assert not (tmp_path / "out").exists()
