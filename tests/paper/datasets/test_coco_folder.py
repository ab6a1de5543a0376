"""Data sets that were written as COCO files are read back as they were, and taken from anyone."""

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
from selfmark.paper.datasets.dataset import write_coco
from selfmark.paper.datasets.registry import read_dataset
from tests.paper.datasets import body_miniatures, face_miniatures

MAKERS: dict[str, Callable[[Path], Path]] = {
    "celeba": face_miniatures.make_celeba,  # with a split of its own to fit on
    "ls3d": face_miniatures.make_ls3d,  # with a field
    "cub": face_miniatures.make_cub,  # with points that are not annotated
    "human36m": body_miniatures.make_human36m,  # frames of videos
    "pennaction": body_miniatures.make_pennaction,  # with settings, points out of sight, stills of films
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_written_is_read_back(name: str, tmp_path: Path) -> None:
    data = read_dataset(name, MAKERS[name](tmp_path / "official"))
    write_coco(data, tmp_path / "written")
    again = read_dataset(name, tmp_path / "written")
    assert again.names == data.names
    assert again.mirror == data.mirror
    assert again.normalizer == data.normalizer
    assert again.category == data.category
    assert dict(again.settings) == dict(data.settings)
    assert again.splits.keys() == data.splits.keys()
    for split, objects in data.splits.items():
        found = again.splits[split]
        assert [again.root / file for file in found.paths] == [
            (data.root / file).resolve() for file in objects.paths
        ]
        for field in ("boxes", "xy", "hidden"):
            np.testing.assert_array_equal(getattr(found, field), getattr(objects, field))
        assert dict(found.fields) == dict(objects.fields)
        assert found.frames == objects.frames
        assert [ref.clip for ref in found.refs] == [ref.clip for ref in objects.refs]
    assert "not from its official files" in " ".join(again.notes)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Two files as anyone might have made them: relative names, a crowd, no word on mirrors or lengths."""
    for split in ("train", "test"):
        (tmp_path / "images" / split).mkdir(parents=True)
        for index in range(2):
            cv2.imwrite(str(tmp_path / "images" / split / f"{index}.png"), np.zeros((20, 30, 3), np.uint8))
        _save(tmp_path, split, {})
    return tmp_path


def _save(folder: Path, split: str, more: dict[str, Any], names: tuple[str, ...] = ("left_eye", "x")) -> None:
    content = {
        "images": [{"id": index, "file_name": f"{index}.png"} for index in range(2)],
        "annotations": [
            {"image_id": 0, "category_id": 1, "keypoints": [3, 4, 2, 0, 0, 0], "bbox": [1, 2, 5, 6]},
            {"image_id": 1, "category_id": 1, "keypoints": [5, 6, 1, 7, 8, 2], "iscrowd": 0, "sex": "f"},
            {"image_id": 1, "category_id": 1, "keypoints": [0, 0, 0, 0, 0, 0], "iscrowd": 1},
        ],
        "categories": [{"id": 1, "name": "cat", "keypoints": list(names)}],
        **more,
    }
    (folder / f"{split}.json").write_text(json.dumps(content))


def test_files_of_others(mine: Path) -> None:
    data = coco_folder.read_coco_folder(
        "cats", mine
    )  # the first object has one point only, so nothing is measured on it
    assert data.test.paths == (Path("images/test/0.png"), Path("images/test/1.png"))
    np.testing.assert_array_equal(data.train.xy, [[[3, 4], [np.nan, np.nan]], [[5, 6], [7, 8]]])
    np.testing.assert_array_equal(data.train.boxes, [[1, 2, 5, 6], [np.nan] * 4])
    np.testing.assert_array_equal(data.train.hidden, [[False, False], [True, False]])
    assert data.train.fields == {"sex": ("", "f")}
    assert data.normalizer == "box"
    assert dict(data.settings) == {}


@pytest.mark.parametrize(
    ("info", "said"),
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
def test_data_in_the_place_of_others_is_named(mine: Path, info: Any, said: str) -> None:
    _save(mine, "train", {"info": info})
    assert read_dataset("cats", mine).notes[0].startswith(said)


def test_boxes_that_reach_from_point_to_point_are_pointed_out(mine: Path) -> None:
    points = {"image_id": 0, "category_id": 1, "keypoints": [3, 4, 2, 13, 9, 2]}
    for box, said in (([3, 4, 10, 5], True), ([1, 2, 14, 9], False), (None, False)):
        _save(mine, "train", {"annotations": [points | ({"bbox": box} if box else {})]})
        assert any("only enclose the points" in note for note in read_dataset("cats", mine).notes) == said


def test_points_of_the_files_must_be_the_same(mine: Path) -> None:
    _save(mine, "test", {}, names=("left_eye", "nose"))
    with pytest.raises(InputError, match=r"train\.json and test\.json name different points"):
        read_dataset("cats", mine)


def test_settings_may_only_say_how_objects_are_cut_out(mine: Path) -> None:
    _save(mine, "train", {"info": {"selfmark": {"images.margin": 0.3}}})
    assert read_dataset("cats", mine).settings == {"images.margin": 0.3}
    _save(mine, "train", {"info": {"selfmark": {"keypoints.weights": "/etc/passwd"}}})
    with pytest.raises(InputError, match="may only contain settings of images"):
        read_dataset("cats", mine)


def test_crowds_alone_are_nothing(mine: Path) -> None:
    annotation = {"image_id": 1, "category_id": 1, "keypoints": [0] * 6, "iscrowd": 1}
    _save(mine, "train", {"annotations": [annotation]})
    with pytest.raises(InputError, match=r"train\.json annotates no objects"):
        read_dataset("cats", mine)
