"""Test the files written from a data set: COCO files, samples of its images, and start points."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from selfmark.annotations import build_annotated_objects
from selfmark.config import preset
from selfmark.demo.scene import Scene
from selfmark.errors import InputError
from selfmark.image_ref import ClipFrame, ImageRef
from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.reproduction.dataset_cache import (
    CachedDataset,
    DatasetCache,
    compute_objects_digest,
    sample_objects,
)
from selfmark.paper.reproduction.experiment import StartPoints
from tests.paper.datasets import body_miniatures, face_miniatures
from tests.paper.reproduction import demo_datasets


@pytest.fixture
def cached_data(root: Path, scene: Scene, tmp_path: Path) -> CachedDataset:
    data = demo_datasets.make_dataset("celeba", root / "celeba", scene)
    return CachedDataset(data, data, tmp_path / "celeba")


def test_the_same_seed_draws_the_same_sample(cached_data: CachedDataset) -> None:
    file = cached_data.write_fit_file(0, 5)
    content = json.loads(file.read_text())
    assert len(content["annotations"]) == 5
    assert cached_data.write_fit_file(0, 5) == file
    assert cached_data.write_fit_file(1, 5) != file
    assert sample_objects(cached_data.fit, 99, 0) is cached_data.fit
    sample = sample_objects(cached_data.fit, 5, 0)
    assert list(sample.paths) == sorted(sample.paths)


def test_regressors_are_fitted_on_the_split_fit_or_else_on_the_training_split(
    cached_data: CachedDataset,
) -> None:
    with_fit = replace(cached_data, data=replace(cached_data.data, fit=cached_data.data.test))
    assert with_fit.fit is cached_data.data.test
    assert cached_data.fit is cached_data.data.train


def test_digest_depends_on_the_objects_and_not_on_the_folder(
    cached_data: CachedDataset, tmp_path: Path
) -> None:
    train = cached_data.data.train
    assert compute_objects_digest(train) == compute_objects_digest(
        replace(cached_data.data, root=tmp_path).train
    )
    assert compute_objects_digest(train) != compute_objects_digest(train.select(np.arange(3)))
    moved = train.boxes.copy()
    moved[0, 0] += 1
    assert compute_objects_digest(train) != compute_objects_digest(replace(train, boxes=moved))


@pytest.mark.parametrize(
    ("clips", "folders"),
    [
        ((), "train-5f7feedfca6f test-7e831cef92b9 fit-01704a3be186 started-5f7feedfca6f start-df72635a34ed"),
        (
            (("film", 1), None, None, ("film", 2)),
            "train-492a88efd5d6 test-23f2b51db9af fit-42ec001db4aa started-492a88efd5d6 start-955e65919877",
        ),
    ],
)
def test_folder_names_have_not_changed_since_selfmark_0_1(
    clips: tuple[ClipFrame | None, ...], folders: str, tmp_path: Path
) -> None:
    """Files that selfmark 0.1 wrote are still used."""
    xy = np.arange(24.0).reshape(4, 3, 2)
    xy[1, 2] = np.nan
    hidden = np.zeros((4, 3), bool)
    hidden[2, 0] = True
    frames = (None, None, 3, 4)
    objects = build_annotated_objects(
        [
            ImageRef(Path(f"images/{index}.jpg"), frames[index], clip=clips[index] if clips else None)
            for index in range(4)
        ],
        ("left_eye", "right_eye", "nose"),
        xy,
        np.array([[0.5, 1.5, 20.0, 30.0]] * 4),
        hidden,
        {"yaw": ("a", "b", "c", "d"), "n": (1, 2, 3, 4)},
    )
    data = Dataset(
        name="faces",
        root=Path("/data/faces"),
        category="face",
        names=("left_eye", "right_eye", "nose"),
        mirror=(1, 0, 2),
        normalizer="inter_ocular",
        settings={},
        train=objects,
        test=objects.select(np.arange(2)),
    )
    cached_data, start = CachedDataset(data, data, tmp_path), StartPoints((0, 2), 3.0)
    files = [
        cached_data.write_train_file(),
        cached_data.write_test_file(),
        cached_data.write_fit_file(0, 2),
        cached_data.write_start_train_file(start),
        cached_data.write_start_points_file(start, 0, preset("fast")),
    ]
    assert [file.parent.name for file in files] == folders.split()


def test_labels_digest_depends_on_the_sample_and_the_points(cached_data: CachedDataset) -> None:
    digest = cached_data.labels_digest(0, None)
    assert cached_data.labels_digest(0, None) == digest
    assert cached_data.labels_digest(0, 5) != digest
    test = cached_data.data.test
    changed = replace(cached_data, data=replace(cached_data.data, test=replace(test, xy=test.xy + 1)))
    assert changed.labels_digest(0, None) != digest


def test_a_moved_data_set_gets_new_files(cached_data: CachedDataset, tmp_path: Path) -> None:
    """The files contain absolute paths, although the digest of the objects does not depend on the folder."""
    moved_data = replace(cached_data.base, root=tmp_path)
    moved = replace(cached_data, base=moved_data, data=moved_data)
    assert moved.write_test_file() != cached_data.write_test_file()


def test_start_points_are_shifted_annotated_points(cached_data: CachedDataset) -> None:
    """The points are shifted by up to three pixels of a 256-pixel crop, whatever the size of the image."""
    start, config = StartPoints((0, 30, 67), 3.0), preset("paper")
    with cached_data.write_start_points_file(start, 0, config).open() as handle:
        rows = list(csv.DictReader(handle))
    train = cached_data.data.train
    assert len(rows) == 3 * len(train)
    shift = np.array([[float(row["x"]), float(row["y"])] for row in rows]) - train.xy[
        :, list(start.points)
    ].reshape(-1, 2)
    side = np.repeat(train.boxes[:, 2:].max(axis=1) * 1.2, 3)  # The margin is 0.1 on each side.
    in_network_pixels = shift * (256 / side)[:, None]
    assert np.abs(in_network_pixels).max() <= 3.02  # Coordinates in the file are rounded.
    assert np.abs(in_network_pixels).max() > 2.5
    assert Path(rows[0]["image"]).is_file()


def test_images_without_start_points_are_left_out(cached_data: CachedDataset) -> None:
    """A detector may find points in only some training images; a note says in how many."""
    start, train = StartPoints((0, 30), 3.0), cached_data.data.train
    xy = train.xy.copy()
    xy[:5] = np.nan
    xy[5, [0, 30]] = np.nan
    xy[6, 30] = np.nan
    partial = replace(cached_data, data=replace(cached_data.data, train=replace(train, xy=xy), fit=train))
    content = json.loads(partial.write_start_train_file(start).read_text())
    file_names = [image["file_name"] for image in content["images"]]
    assert file_names == [str((partial.base.root / file).resolve()) for file in train.paths[6:]]
    with partial.write_start_points_file(start, 0, preset("paper")).open() as handle:
        rows = list(csv.DictReader(handle))
    assert list(dict.fromkeys(row["image"] for row in rows)) == file_names
    assert len(rows) == 2 * len(file_names) - 1
    (note,) = partial.start_notes(start)
    assert note.startswith(f"landmarks are discovered in {len(train) - 6} of {len(train)} training images")
    assert cached_data.start_notes(start) == []
    without_points = replace(cached_data.data, train=replace(train, xy=np.full_like(xy, np.nan)), fit=train)
    with pytest.raises(InputError, match=f"none of its {len(train)} training images has any"):
        replace(cached_data, data=without_points).select_start_objects(start)


def test_unknown_start_points_raise(cached_data: CachedDataset) -> None:
    with pytest.raises(InputError, match="start point 68 does not exist: celeba has points 0 to 67"):
        cached_data.write_start_points_file(StartPoints((68,), 3.0), 0, preset("paper"))


@pytest.mark.parametrize("name", ["human36m", "human36m32"])
def test_data_sets_that_share_a_folder_share_the_file_of_boxes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # Undo the fixture demo_readers (conftest.py).
    body_miniatures.make_human36m(tmp_path / "human36m")
    without_boxes = DatasetCache(tmp_path, tmp_path / "made").load(name).base.train
    boxes = ["image,frame,x,y,w,h"]
    boxes += [
        f"{file},{frame},1,2,30,40"
        for file, frame in zip(without_boxes.paths, without_boxes.frames, strict=True)
    ]
    (tmp_path / "human36m-boxes.csv").write_text("\n".join(boxes))
    with_boxes = DatasetCache(tmp_path, tmp_path / "made").load(name).base.train
    assert len(with_boxes) == len(without_boxes)
    assert (with_boxes.boxes == [1, 2, 30, 40]).all()


def test_detected_points_and_boxes_are_read_from_files_next_to_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detected points change only the labels and start points; detected boxes change the training images."""
    monkeypatch.undo()  # Undo the fixture demo_readers (conftest.py).
    face_miniatures.make_celeba(tmp_path / "celeba", images=8, fit_images=3)
    datasets = DatasetCache(tmp_path, tmp_path / "made")
    with pytest.raises(InputError, match=r"has 5 annotated points, but 68 are needed; .* celeba-68"):
        datasets.load("celeba", 68)
    names = [f"{number:06d}.jpg" for number in range(1, 9)]
    points = np.stack([face_miniatures.make_sixty_eight_points(-60) for _ in names])
    np.savez(tmp_path / "celeba-68.npz", names=np.array(names), xy=points)
    five_points, many_points = datasets.load("celeba", 5), datasets.load("celeba", 68)
    assert (len(five_points.data.names), len(many_points.data.names)) == (5, 68)
    assert five_points.write_train_file() == many_points.write_train_file()
    assert five_points.write_fit_file(0, None) != many_points.write_fit_file(0, None)
    assert (len(many_points.fit), len(many_points.data.test), len(many_points.base.train)) == (3, 2, 6)
    start = StartPoints((0, 4), 3.0)
    assert datasets.start_digest("celeba", 5, start) != datasets.start_digest("celeba", 68, start)
    assert datasets.labels_digest("celeba", 5, 0, None) != datasets.labels_digest("celeba", 68, 0, None)

    np.savez(tmp_path / "celeba-68.npz", names=np.array(names), xy=points + 1)
    changed = DatasetCache(tmp_path, tmp_path / "made")
    assert changed.start_digest("celeba", 68, start) != datasets.start_digest("celeba", 68, start)
    assert changed.labels_digest("celeba", 68, 0, None) != datasets.labels_digest("celeba", 68, 0, None)
    assert changed.load("celeba", 68).write_test_file() != many_points.write_test_file()
    assert changed.load("celeba", 68).write_train_file() == many_points.write_train_file()

    boxes = ["image,x,y,w,h", *(f"{name},40,70,100,110" for name in names)]
    (tmp_path / "celeba-boxes.csv").write_text("\n".join(boxes))
    assert DatasetCache(tmp_path, tmp_path / "made").train_digest("celeba") != datasets.train_digest("celeba")
