"""What is made of a data set: COCO files, some of its images, first keypoints."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from selfmark.annotations import annotate_images
from selfmark.config import preset
from selfmark.demo.scene import Scene
from selfmark.errors import InputError
from selfmark.image_ref import ClipFrame, ImageRef
from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.reproduction.dataset_cache import (
    CachedDataset,
    DatasetCache,
    objects_digest,
    sample_objects,
)
from selfmark.paper.reproduction.experiment import StartPoints
from tests.paper.datasets import body_miniatures, face_miniatures
from tests.paper.reproduction import demo_datasets


@pytest.fixture
def held(root: Path, scene: Scene, tmp_path: Path) -> CachedDataset:
    data = demo_datasets.make("celeba", root / "celeba", scene)
    return CachedDataset(data, data, tmp_path / "celeba")


def test_some_images_are_drawn_and_the_same_again(held: CachedDataset) -> None:
    file = held.fit_file(0, 5)
    content = json.loads(file.read_text())
    assert len(content["annotations"]) == 5
    assert held.fit_file(0, 5) == file
    assert held.fit_file(1, 5) != file
    assert sample_objects(held.fit, 99, 0) is held.fit
    drawn = sample_objects(held.fit, 5, 0)
    assert list(drawn.paths) == sorted(drawn.paths)


def test_regressors_are_fitted_on_the_split_set_aside(held: CachedDataset) -> None:
    aside = replace(held, data=replace(held.data, fit=held.data.test))
    assert aside.fit is held.data.test
    assert held.fit is held.data.train


def test_identity_follows_the_objects_and_not_their_place(held: CachedDataset, tmp_path: Path) -> None:
    train = held.data.train
    assert objects_digest(train) == objects_digest(replace(held.data, root=tmp_path).train)
    assert objects_digest(train) != objects_digest(train.select(np.arange(3)))
    moved = train.boxes.copy()
    moved[0, 0] += 1
    assert objects_digest(train) != objects_digest(replace(train, boxes=moved))


@pytest.mark.parametrize(
    ("clip", "folders"),
    [
        ((), "train-5f7feedfca6f test-7e831cef92b9 fit-01704a3be186 started-5f7feedfca6f start-df72635a34ed"),
        (
            (("film", 1), None, None, ("film", 2)),
            "train-492a88efd5d6 test-23f2b51db9af fit-42ec001db4aa started-492a88efd5d6 start-955e65919877",
        ),
    ],
)
def test_folder_names_are_those_of_selfmark_0_1(
    clip: tuple[ClipFrame | None, ...], folders: str, tmp_path: Path
) -> None:
    """Files that selfmark 0.1 wrote are used again."""
    xy = np.arange(24.0).reshape(4, 3, 2)
    xy[1, 2] = np.nan
    hidden = np.zeros((4, 3), bool)
    hidden[2, 0] = True
    frames = (None, None, 3, 4)
    objects = annotate_images(
        [
            ImageRef(Path(f"images/{index}.jpg"), frames[index], clip=clip[index] if clip else None)
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
    cached, start = CachedDataset(data, data, tmp_path), StartPoints((0, 2), 3.0)
    files = [
        cached.train_file(),
        cached.test_file(),
        cached.fit_file(0, 2),
        cached.started_train_file(start),
        cached.start_file(start, 0, preset("paper")),
    ]
    assert [file.parent.name for file in files] == folders.split()


def test_labels_follow_the_points(held: CachedDataset) -> None:
    usual = held.labels(0, None)
    assert held.labels(0, None) == usual
    assert held.labels(0, 5) != usual
    test = held.data.test
    other = replace(held, data=replace(held.data, test=replace(test, xy=test.xy + 1)))
    assert other.labels(0, None) != usual


def test_a_data_set_that_was_moved_gets_files_of_its_own(held: CachedDataset, tmp_path: Path) -> None:
    elsewhere = replace(held.base, root=tmp_path)
    assert replace(held, base=elsewhere, data=elsewhere).test_file() != held.test_file()


def test_first_keypoints_are_annotated_points_moved_a_little(held: CachedDataset) -> None:
    """Three pixels of the 256 that the network sees of an image, whatever its size."""
    start, config = StartPoints((0, 30, 67), 3.0), preset("paper")
    with held.start_file(start, 0, config).open() as handle:
        rows = list(csv.DictReader(handle))
    train = held.data.train
    assert len(rows) == 3 * len(train)
    shift = np.array([[float(row["x"]), float(row["y"])] for row in rows]) - train.xy[
        :, list(start.points)
    ].reshape(-1, 2)
    side = np.repeat(train.boxes[:, 2:].max(axis=1) * 1.2, 3)  # a margin of a tenth on each side
    in_network_pixels = shift * (256 / side)[:, None]
    assert np.abs(in_network_pixels).max() <= 3.02
    assert np.abs(in_network_pixels).max() > 2.5
    assert Path(rows[0]["image"]).is_file()


def test_only_images_with_points_are_started_from(held: CachedDataset) -> None:
    """Points of a detector may be of a part of the training images; which is said."""
    start, train = StartPoints((0, 30), 3.0), held.data.train
    xy = train.xy.copy()
    xy[:5] = np.nan
    xy[5, [0, 30]] = np.nan
    xy[6, 30] = np.nan
    partly = replace(held, data=replace(held.data, train=replace(train, xy=xy), fit=train))
    content = json.loads(partly.started_train_file(start).read_text())
    named = [image["file_name"] for image in content["images"]]
    assert named == [str((partly.base.root / file).resolve()) for file in train.paths[6:]]
    with partly.start_file(start, 0, preset("paper")).open() as handle:
        rows = list(csv.DictReader(handle))
    assert list(dict.fromkeys(row["image"] for row in rows)) == named
    assert len(rows) == 2 * len(named) - 1
    (note,) = partly.start_notes(start)
    assert note.startswith(f"landmarks are discovered in {len(train) - 6} of {len(train)} training images")
    assert held.start_notes(start) == []
    nowhere = replace(held.data, train=replace(train, xy=np.full_like(xy, np.nan)), fit=train)
    with pytest.raises(InputError, match=f"none of its {len(train)} training images has any"):
        replace(held, data=nowhere).started(start)


def test_points_a_data_set_does_not_have_are_refused(held: CachedDataset) -> None:
    with pytest.raises(InputError, match="point 68 of celeba, which has 68 points only"):
        held.start_file(StartPoints((68,), 3.0), 0, preset("paper"))


@pytest.mark.parametrize("name", ["human36m", "human36m32"])
def test_data_sets_of_the_same_files_have_the_same_boxes_beside_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    body_miniatures.make_human36m(tmp_path / "human36m")
    usual = DatasetCache(tmp_path, tmp_path / "made").hold(name).base.train
    boxes = ["image,frame,x,y,w,h"]
    boxes += [f"{file},{frame},1,2,30,40" for file, frame in zip(usual.paths, usual.frames, strict=True)]
    (tmp_path / "human36m-boxes.csv").write_text("\n".join(boxes))
    boxed = DatasetCache(tmp_path, tmp_path / "made").hold(name).base.train
    assert len(boxed) == len(usual)
    assert (boxed.boxes == [1, 2, 30, 40]).all()


def test_faces_with_points_and_boxes_of_detectors_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real reader, on the official layout; landmarks are discovered in the same images either way."""
    monkeypatch.undo()
    face_miniatures.make_celeba(tmp_path / "celeba", images=8, fitted=3)
    shelf = DatasetCache(tmp_path, tmp_path / "made")
    with pytest.raises(InputError, match=r"has 5 annotated points where 68 are needed; .* celeba-68"):
        shelf.hold("celeba", 68)
    names = [f"{number:06d}.jpg" for number in range(1, 9)]
    points = np.stack([face_miniatures.sixty_eight(-60) for _ in names])
    np.savez(tmp_path / "celeba-68.npz", names=np.array(names), xy=points)
    five, many = shelf.hold("celeba", 5), shelf.hold("celeba", 68)
    assert (len(five.data.names), len(many.data.names)) == (5, 68)
    assert five.train_file() == many.train_file()
    assert five.fit_file(0, None) != many.fit_file(0, None)
    assert (len(many.fit), len(many.data.test), len(many.base.train)) == (3, 2, 6)
    start = StartPoints((0, 4), 3.0)
    assert shelf.started_from("celeba", 5, start) != shelf.started_from("celeba", 68, start)
    assert shelf.measured_on("celeba", 5, 0, None) != shelf.measured_on("celeba", 68, 0, None)

    np.savez(tmp_path / "celeba-68.npz", names=np.array(names), xy=points + 1)
    anew = DatasetCache(tmp_path, tmp_path / "made")
    assert anew.started_from("celeba", 68, start) != shelf.started_from("celeba", 68, start)
    assert anew.measured_on("celeba", 68, 0, None) != shelf.measured_on("celeba", 68, 0, None)
    assert anew.hold("celeba", 68).test_file() != many.test_file()
    assert anew.hold("celeba", 68).train_file() == many.train_file()

    boxes = ["image,x,y,w,h", *(f"{name},40,70,100,110" for name in names)]
    (tmp_path / "celeba-boxes.csv").write_text("\n".join(boxes))
    assert DatasetCache(tmp_path, tmp_path / "made").trained_on("celeba") != shelf.trained_on("celeba")
