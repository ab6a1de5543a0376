"""Test data sets that are read back from COCO files, and COCO files of other programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.paper.datasets import coco_folder
from selfmark.paper.datasets.dataset import write_coco_dataset
from selfmark.paper.datasets.dataset_registry import read_dataset
from tests.paper.datasets import body_miniatures, face_miniatures

MAKERS: dict[str, Callable[[Path], Path]] = {
    "celeba": face_miniatures.make_celeba,  # This data set has a split for fitting regressors.
    "ls3d": face_miniatures.make_ls3d,  # This one has a field, the yaw.
    "cub": face_miniatures.make_cub,  # This one has points that are not annotated.
    "human36m": body_miniatures.make_human36m,  # This one has frames of videos.
    "pennaction": body_miniatures.make_pennaction,  # It has settings and hidden points.
}


@pytest.mark.parametrize("name", MAKERS)
def test_written_files_are_read_back(name: str, tmp_path: Path) -> None:
    data = read_dataset(name, MAKERS[name](tmp_path / "official"))
    write_coco_dataset(data, tmp_path / "written")
    written = read_dataset(name, tmp_path / "written")
    assert written.names == data.names
    assert written.mirror == data.mirror
    assert written.normalizer == data.normalizer
    assert written.category == data.category
    assert dict(written.settings) == dict(data.settings)
    assert written.splits.keys() == data.splits.keys()
    for split, objects in data.splits.items():
        read_back = written.splits[split]
        assert [written.root / file for file in read_back.paths] == [
            (data.root / file).resolve() for file in objects.paths
        ]
        for field in ("boxes", "xy", "hidden"):
            np.testing.assert_array_equal(getattr(read_back, field), getattr(objects, field))
        assert dict(read_back.fields) == dict(objects.fields)
        assert read_back.frames == objects.frames
        assert [ref.clip for ref in read_back.refs] == [ref.clip for ref in objects.refs]
    assert "not from its official files" in " ".join(written.notes)


@pytest.fixture
def own_files(tmp_path: Path) -> Path:
    """Write two files as users might: with relative names and a crowd, but no partners or normalizer."""
    for split in ("train", "test"):
        (tmp_path / "images" / split).mkdir(parents=True)
        for index in range(2):
            cv2.imwrite(str(tmp_path / "images" / split / f"{index}.png"), np.zeros((20, 30, 3), np.uint8))
        _save(tmp_path, split, {})
    return tmp_path


def _save(
    folder: Path, split: str, changes: dict[str, Any], names: tuple[str, ...] = ("left_eye", "x")
) -> None:
    content = {
        "images": [{"id": index, "file_name": f"{index}.png"} for index in range(2)],
        "annotations": [
            {"image_id": 0, "category_id": 1, "keypoints": [3, 4, 2, 0, 0, 0], "bbox": [1, 2, 5, 6]},
            {"image_id": 1, "category_id": 1, "keypoints": [5, 6, 1, 7, 8, 2], "iscrowd": 0, "sex": "f"},
            {"image_id": 1, "category_id": 1, "keypoints": [0, 0, 0, 0, 0, 0], "iscrowd": 1},
        ],
        "categories": [{"id": 1, "name": "cat", "keypoints": list(names)}],
        **changes,
    }
    (folder / f"{split}.json").write_text(json.dumps(content))


def test_files_made_by_users_are_read(own_files: Path) -> None:
    # `read_dataset` would leave out the first object, because it has only one point.
    data = coco_folder.read_coco_folder("cats", own_files)
    assert data.test.paths == (Path("images/test/0.png"), Path("images/test/1.png"))
    np.testing.assert_array_equal(data.train.xy, [[[3, 4], [np.nan, np.nan]], [[5, 6], [7, 8]]])
    np.testing.assert_array_equal(data.train.boxes, [[1, 2, 5, 6], [np.nan] * 4])
    np.testing.assert_array_equal(data.train.hidden, [[False, False], [True, False]])
    assert data.train.fields == {"sex": ("", "f")}
    assert data.normalizer == "box"
    assert dict(data.settings) == {}


@pytest.mark.parametrize(
    ("info", "note"),
    [
        (
            {"description": "other\nfaces"},
            "read from COCO files described as 'other\\nfaces', not from",
        ),
        ({"description": "cats"}, "read from COCO files, not from its official files"),
        ({"description": 7}, "read from COCO files, not from its official files"),
        (None, "read from COCO files, not from its official files"),
    ],
)
def test_a_note_names_the_files_that_replace_the_official_ones(own_files: Path, info: Any, note: str) -> None:
    _save(own_files, "train", {"info": info})
    assert read_dataset("cats", own_files).notes[0].startswith(note)


def test_a_note_warns_of_boxes_that_only_enclose_the_points(own_files: Path) -> None:
    points = {"image_id": 0, "category_id": 1, "keypoints": [3, 4, 2, 13, 9, 2]}
    for box, has_note in (([3, 4, 10, 5], True), ([1, 2, 14, 9], False), (None, False)):
        _save(own_files, "train", {"annotations": [points | ({"bbox": box} if box else {})]})
        notes = read_dataset("cats", own_files).notes
        assert any("only enclose the points" in note for note in notes) == has_note


def test_files_must_have_the_same_points(own_files: Path) -> None:
    _save(own_files, "test", {}, names=("left_eye", "nose"))
    with pytest.raises(InputError, match=r"train\.json and test\.json name different points"):
        read_dataset("cats", own_files)


def test_files_may_only_change_settings_of_images_and_evaluation(own_files: Path) -> None:
    _save(own_files, "train", {"info": {"selfmark": {"images.margin": 0.3}}})
    assert read_dataset("cats", own_files).settings == {"images.margin": 0.3}
    _save(own_files, "train", {"info": {"selfmark": {"keypoints.weights": "/etc/passwd"}}})
    with pytest.raises(InputError, match="may only contain settings of images"):
        read_dataset("cats", own_files)


def test_a_file_with_only_crowds_raises(own_files: Path) -> None:
    annotation = {"image_id": 1, "category_id": 1, "keypoints": [0] * 6, "iscrowd": 1}
    _save(own_files, "train", {"annotations": [annotation]})
    with pytest.raises(InputError, match=r"train\.json annotates no objects"):
        read_dataset("cats", own_files)
