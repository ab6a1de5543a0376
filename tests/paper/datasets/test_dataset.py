"""Test the common form of data sets, and the COCO files that `discover` and `evaluate` read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from selfmark.annotations import build_annotated_objects
from selfmark.errors import InputError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.normalizers import measure_lengths
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.paper.datasets.dataset import Dataset, compute_tight_boxes, files_exist, write_coco_dataset
from selfmark.paper.datasets.dataset_registry import read_dataset
from tests.paper.datasets import face_miniatures

MAKERS: dict[str, Callable[[Path], Path]] = {
    "celeba": face_miniatures.make_celeba,
    "aflw": face_miniatures.make_aflw,
    "ls3d": face_miniatures.make_ls3d,
    "mtfl": face_miniatures.make_mtfl,
    "cub": face_miniatures.make_cub,
}


@pytest.mark.parametrize("name", MAKERS)
def test_written_files_are_read_by_discovery_and_evaluation(name: str, tmp_path: Path) -> None:
    data = read_dataset(name, MAKERS[name](tmp_path / "data"))
    paths = write_coco_dataset(data, tmp_path / "out")
    assert paths == (tmp_path / "out/train.json", tmp_path / "out/test.json")
    assert (tmp_path / "out/fit.json").exists() == (data.fit is not None)
    for split, objects in data.splits.items():
        path = tmp_path / "out" / f"{split}.json"
        refs = list_images([path])
        truth = read_ground_truth(path, refs)
        assert [ref.path for ref in truth.refs] == [data.root / file for file in objects.paths]
        np.testing.assert_array_equal(truth.xy, objects.xy)
        np.testing.assert_array_equal(truth.boxes, objects.boxes)
        ref_boxes = [ref.box or (np.nan,) * 4 for ref in truth.refs]
        np.testing.assert_array_equal(ref_boxes, objects.boxes)
        assert truth.names == data.names
        assert truth.mirror == data.mirror
        assert truth.normalizer == data.normalizer
        assert truth.fields == dict(objects.fields)
        assert truth.notes == ()
        assert (measure_lengths(truth, truth.normalizer, objects.boxes) > 0).all()


def test_hidden_and_unannotated_points_differ(tmp_path: Path) -> None:
    data = read_dataset("aflw", face_miniatures.make_aflw(tmp_path / "data"))
    xy, hidden = data.test.xy.copy(), data.test.hidden.copy()
    xy[0, 1], hidden[0, 2] = np.nan, True
    write_coco_dataset(replace(data, test=replace(data.test, xy=xy, hidden=hidden)), tmp_path)
    annotation = json.loads((tmp_path / "test.json").read_text())["annotations"][0]
    assert annotation["keypoints"][2::3] == [2, 0, 1, 2, 2]
    assert annotation["num_keypoints"] == 4


def test_the_fit_file_of_a_data_set_written_earlier_is_removed(tmp_path: Path) -> None:
    write_coco_dataset(
        read_dataset("celeba", face_miniatures.make_celeba(tmp_path / "celeba")), tmp_path / "out"
    )
    assert (tmp_path / "out/fit.json").exists()
    write_coco_dataset(read_dataset("aflw", face_miniatures.make_aflw(tmp_path / "aflw")), tmp_path / "out")
    assert not (tmp_path / "out/fit.json").exists()


def test_a_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
    data = read_dataset("aflw", face_miniatures.make_aflw(tmp_path / "data"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"):
        write_coco_dataset(data, tmp_path / "file")


def test_files_exist_agrees_with_pathlib(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    files = [tmp_path / name for name in ("a/1.jpg", "a/2.jpg", "b/1.jpg")]
    assert files_exist(files).tolist() == [file.exists() for file in files] == [True, False, False]


def test_tight_boxes_ignore_unannotated_points() -> None:
    xy = np.array([[[4.0, 9.0], [np.nan, np.nan], [10.0, 1.0]]])
    assert compute_tight_boxes(xy).tolist() == [[4.5, 1.5, 6, 8]]


def test_splits_must_have_the_points_of_the_data_set() -> None:
    objects = build_annotated_objects([ImageRef(Path("a"))], ("a", "b"), np.zeros((1, 2, 2)))
    with pytest.raises(ValueError, match="every split must have the points"):
        Dataset("x", Path(), "x", ("a",), (0,), "box", {}, objects, objects)
    single_point = objects.select_points(["a"])
    with pytest.raises(ValueError, match="every split must have the points"):
        Dataset("x", Path(), "x", ("a",), (0,), "box", {}, single_point, single_point, fit=objects)
