"""Train for a few seconds on miniatures of data sets in their official layouts, with the real readers."""

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
from selfmark.paper.reproduction import experiment
from selfmark.paper.reproduction.harness import ReproductionOptions, reproduce_tables
from selfmark.run.folder import Run
from tests.paper.datasets import body_miniatures, face_miniatures
from tests.paper.reproduction import demo_datasets
from tests.paper.reproduction.conftest import select_short_settings

pytestmark = pytest.mark.usefixtures("real_readers", "without_report")


def _reproduce(name: str, data: Path, output: Path) -> dict[str, list[float]]:
    """Reproduce a table with real training runs and measurements; return the numbers of each measured row."""
    # Models that have learned nothing may leave clusters empty.
    changes = select_short_settings(name) | {"guards.max_empty_fraction": 1.0}
    reproduce_tables([name], data, output, ReproductionOptions("tiny", changes, "cpu"), log=lambda line: None)
    with (output / f"{name}.csv").open() as handle:
        lines = list(csv.reader(handle))[1:]
    # Each column of the table has three cells: our number, the number of the paper, and the difference.
    return {line[0]: [float(cell) for cell in line[1::3]] for line in lines if line[1]}


@pytest.mark.parametrize("as_videos", [False, True])
def test_bbcpose_is_trained_on_temporal_pairs(
    as_videos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train on images of frames, as in the official archive, and on videos."""
    body_miniatures.make_bbcpose(tmp_path / "data" / "bbcpose", as_videos)
    neighbors: list[np.ndarray] = []

    def record_neighbors(*arguments: Any) -> Any:
        neighbors.append(arguments[4])
        return propagate_points(*arguments)

    monkeypatch.setattr(pipeline, "propagate_points", record_neighbors)
    numbers = _reproduce("bbcpose", tmp_path / "data", tmp_path / "out")
    assert all(0 <= value <= 100 for value in numbers["Ours"])
    assert neighbors
    for neighbor in neighbors:
        video = np.repeat(np.arange(10), 3)
        video = video if as_videos else np.delete(video, 7)  # frame 111 of video 3 is missing
        exists = neighbor >= 0
        assert exists.mean() > 0.5
        assert (video[neighbor] == video[:, None])[exists].all()


def _make_ls3d(root: Path, scene: Scene) -> None:
    """Fill the layout of LS3D with images of the demo, because the images of `face_miniatures` look alike."""
    dataset = demo_datasets.make_dataset("ls3d", root, scene)
    for row, xy in enumerate(dataset.train.xy):
        part = ("AFW", "HELEN", "IBUG", "LFPW")[row % 4]
        for folder in (part, f"landmarks/{part}"):
            (root / "300W_LP" / folder).mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / "300W_LP" / part / f"{part}_{row}.jpg"), scene.images[row])
        savemat(root / "300W_LP" / "landmarks" / part / f"{part}_{row}_pts.mat", {"pts_3d": xy + 1})
    balanced = root / "LS3D-W-balanced-20-03-2017" / "new_dataset"
    balanced.mkdir(parents=True)
    for row, xy in enumerate(dataset.test.xy, 1):
        cv2.imwrite(str(balanced / f"{row}.jpg"), scene.images[demo_datasets.NUM_TRAIN + row - 1])
        face_miniatures.write_t7(balanced / f"{row}.t7", xy + 1)


@pytest.fixture
def data(tmp_path: Path, scene: Scene) -> Path:
    _make_ls3d(tmp_path / "data" / "ls3d", scene)
    body_miniatures.make_bbcpose(tmp_path / "data" / "bbcpose")
    body_miniatures.make_pennaction(tmp_path / "data" / "pennaction")
    return tmp_path / "data"


def _read_run_configs(output: Path) -> list[Config]:
    """Return the settings of every run."""
    return [Run.open(run).config for run in (output / "trainings").iterdir()]


def test_rows_use_their_keypoint_detectors(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use only the detectors that need no weights, on one of the two data sets."""
    table = experiment.load_experiment("initialization")
    rows = tuple(replace(row, paper=row.paper[2:]) for row in table.rows[:2])
    selected = replace(table, rows=rows, columns=table.columns[2:])
    monkeypatch.setattr(experiment, "load_experiment", lambda name: selected)
    numbers = _reproduce("initialization", data, tmp_path / "out")
    assert list(numbers) == ["SIFT + ANMS", "ORB + ANMS"]
    sift, orb = numbers.values()
    assert sift != orb
    assert sorted(config.keypoints.detector for config in _read_run_configs(tmp_path / "out")) == [
        "orb",
        "sift",
    ]


def test_rows_use_their_negatives_and_correspondence(data: Path, tmp_path: Path) -> None:
    numbers = _reproduce("negatives", data, tmp_path / "out")
    assert len(numbers) == len({error for (error,) in numbers.values()}) == 4
    assert sorted(
        (config.loss.negatives, config.correspondence.mode) for config in _read_run_configs(tmp_path / "out")
    ) == [
        ("different-cluster", "clustering"),
        ("different-cluster", "equivariance"),
        ("same-image", "clustering"),
        ("same-image", "equivariance"),
    ]


def test_rows_use_their_flip_settings(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flipping at test time affects only Stage 2 and needs no new training."""
    table = experiment.load_experiment("flipping")
    rows = tuple(row for row in table.rows if row.spec.train == "ls3d")
    monkeypatch.setattr(experiment, "load_experiment", lambda name: replace(table, rows=rows))
    never, train, train_and_test = _reproduce("flipping", data, tmp_path / "out").values()
    stage1, stage2 = zip(never, train, train_and_test, strict=True)
    assert stage1[0] != stage1[1] == stage1[2]
    assert len(set(stage2)) == 3
    flips = [config.flip for config in _read_run_configs(tmp_path / "out")]
    assert sorted((flip.train, flip.test) for flip in flips) == [(False, False), (True, True)]


def test_athletes_are_cropped_as_in_the_paper(data: Path, tmp_path: Path) -> None:
    numbers = _reproduce("pennaction", data, tmp_path / "out")
    assert all(0 <= value <= 100 for value in numbers["Ours"])
    (config,) = _read_run_configs(tmp_path / "out")
    assert (config.images.box_rule, config.images.body_scale, config.temporal.enabled) == (
        "body",
        1.35,
        False,
    )
