"""Real trainings, of a schedule of seconds, on what the real readers give of miniature official layouts."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.io import savemat

from selfmark import pipeline
from selfmark.config import Config
from selfmark.demo.scene import Scene
from selfmark.images.flow import propagate_points
from selfmark.paper.reproduction import experiment, harness
from selfmark.run.folder import Run
from tests.paper.datasets import body_miniatures, face_miniatures
from tests.paper.reproduction import demo_datasets
from tests.paper.reproduction.conftest import short

pytestmark = pytest.mark.usefixtures("real_readers")


def _made(name: str, data: Path, output: Path) -> dict[str, list[float]]:
    """The numbers of each row that was made here, every training and measurement of it real."""
    changes = short(name) | {
        "guards.max_empty_fraction": 1.0
    }  # what has learned nothing may leave clusters empty
    harness.reproduce_tables([name], data, output, "tiny", changes, "cpu", say=lambda line: None)
    with (output / f"{name}.csv").open() as handle:
        lines = list(csv.reader(handle))[1:]
    return {line[0]: [float(cell) for cell in line[1::3]] for line in lines if line[1]}


@pytest.mark.parametrize("films", [False, True])
def test_bbcpose_is_trained_on_pairs_in_time(
    films: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the frames of the official archive, and of films."""
    body_miniatures.make_bbcpose(tmp_path / "data" / "bbcpose", films)
    paired: list[np.ndarray] = []

    def watched(*arguments: Any) -> Any:
        paired.append(arguments[3])
        return propagate_points(*arguments)

    monkeypatch.setattr(pipeline, "propagate_points", watched)
    made = _made("bbcpose", tmp_path / "data", tmp_path / "out")
    assert all(0 <= value <= 100 for value in made["Ours"])
    assert paired
    for near in paired:
        video = np.repeat(np.arange(10), 3)
        video = video if films else np.delete(video, 7)  # frame 111 of video 3 is not there
        found = near >= 0
        assert found.mean() > 0.5
        assert (video[near] == video[:, None])[found].all()


def _make_ls3d(root: Path, scene: Scene) -> None:
    """The layout of LS3D with pictures of a thing that moves, for the faces of `miniatures` are all alike."""
    made = demo_datasets.make("ls3d", root, scene)
    for row, xy in enumerate(made.train.xy):
        part = ("AFW", "HELEN", "IBUG", "LFPW")[row % 4]
        for folder in (part, f"landmarks/{part}"):
            (root / "300W_LP" / folder).mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / "300W_LP" / part / f"{part}_{row}.jpg"), scene.images[row])
        savemat(root / "300W_LP" / "landmarks" / part / f"{part}_{row}_pts.mat", {"pts_3d": xy + 1})
    balanced = root / "LS3D-W-balanced-20-03-2017" / "new_dataset"
    balanced.mkdir(parents=True)
    for row, xy in enumerate(made.test.xy, 1):
        cv2.imwrite(str(balanced / f"{row}.jpg"), scene.images[demo_datasets.TRAIN + row - 1])
        face_miniatures.write_t7(balanced / f"{row}.t7", xy + 1)


@pytest.fixture
def data(tmp_path: Path, scene: Scene) -> Path:
    _make_ls3d(tmp_path / "data" / "ls3d", scene)
    body_miniatures.make_bbcpose(tmp_path / "data" / "bbcpose")
    body_miniatures.make_pennaction(tmp_path / "data" / "pennaction")
    return tmp_path / "data"


def _trained(output: Path) -> list[Config]:
    """The settings of every run."""
    return [Run.open(run).config for run in (output / "trainings").iterdir()]


def test_rows_start_from_the_detectors_they_name(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that need no weights, on one of the two data sets."""
    table = experiment.load_experiment("initialization")
    rows = tuple(replace(row, paper=row.paper[2:]) for row in table.rows[:2])
    only = replace(table, rows=rows, columns=table.columns[2:])
    monkeypatch.setattr(experiment, "load_experiment", lambda name: only)
    made = _made("initialization", data, tmp_path / "out")
    assert list(made) == ["SIFT + ANMS", "ORB + ANMS"]
    sift, orb = made.values()
    assert sift != orb
    assert sorted(config.keypoints.detector for config in _trained(tmp_path / "out")) == ["orb", "sift"]


def test_rows_have_the_negatives_and_correspondence_they_name(data: Path, tmp_path: Path) -> None:
    made = _made("negatives", data, tmp_path / "out")
    assert len(made) == len({error for (error,) in made.values()}) == 4
    assert sorted(
        (config.loss.negatives, config.correspondence.mode) for config in _trained(tmp_path / "out")
    ) == [
        ("different-cluster", "clustering"),
        ("different-cluster", "equivariance"),
        ("same-image", "clustering"),
        ("same-image", "equivariance"),
    ]


def test_rows_are_flipped_where_they_say_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At test time only Stage 2 is, and nothing more is trained for it."""
    table = experiment.load_experiment("flipping")
    rows = tuple(row for row in table.rows if row.what.train == "ls3d")
    monkeypatch.setattr(experiment, "load_experiment", lambda name: replace(table, rows=rows))
    none, train, both = _made("flipping", data, tmp_path / "out").values()
    assert none[0] != train[0] == both[0]
    assert len({none[1], train[1], both[1]}) == 3
    flips = [config.flip for config in _trained(tmp_path / "out")]
    assert sorted((flip.train, flip.test) for flip in flips) == [(False, False), (True, True)]


def test_athletes_are_cropped_and_trained_on_as_the_paper_says(data: Path, tmp_path: Path) -> None:
    made = _made("pennaction", data, tmp_path / "out")
    assert all(0 <= value <= 100 for value in made["Ours"])
    (config,) = _trained(tmp_path / "out")
    assert (config.images.box_rule, config.images.body_scale, config.temporal.enabled) == (
        "body",
        1.35,
        False,
    )
