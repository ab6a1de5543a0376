"""Test reading label files: their content, the images they belong to, and files that cannot be used."""

from __future__ import annotations

import copy
import json
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation.label_files import find_common_points, read_ground_truth
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images

DATA = Path(__file__).parents[3] / "shared" / "data"  # beside the repository; tests skip without it

POINTS = ["left_eye", "right_eye", "nose"]


def make_valid_content() -> dict[str, Any]:
    """Return three images with one object each; the last point of the second object is not annotated."""
    return {
        "images": [{"id": n, "file_name": f"train/{n}.jpg", "width": 64, "height": 48} for n in (1, 2, 3)],
        "annotations": [
            {
                "id": 10 + n,
                "image_id": n,
                "category_id": 7,
                "keypoints": [10 * n, 20, 2, 30.5, 40.25, 1, *([50, 60, 2] if n != 2 else [0, 0, 0])],
                "bbox": [5, 6, 10 * n, 40],
                "iscrowd": 0,
            }
            for n in (1, 2, 3)
        ],
        "categories": [{"id": 7, "name": "face", "keypoints": POINTS, "flip_idx": [1, 0, 2]}],
    }


def make_refs(*names: str) -> list[ImageRef]:
    return [ImageRef(Path("/data/images", name)) for name in names]


TRAIN = make_refs("train/1.jpg", "train/2.jpg", "train/3.jpg")


def write(folder: Path, content: Any, name: str = "test.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read(folder: Path, content: Any, images: list[ImageRef] | None = None, **more: int) -> AnnotatedObjects:
    return read_ground_truth(write(folder, content), TRAIN if images is None else images, **more)


# --- contents of a file ----------------------------------------------------------------------------


def test_points_boxes_and_names_are_read(tmp_path: Path) -> None:
    truth = read(tmp_path, make_valid_content())
    path = tmp_path / "test.json"
    assert len(truth) == 3
    assert truth.source == path
    assert truth.refs == tuple(TRAIN)
    assert truth.where == tuple(f"{path}: annotations[{n}]" for n in range(3))
    assert truth.names == tuple(POINTS)
    assert truth.mirror == (1, 0, 2)
    assert truth.xy.dtype == np.float64
    assert truth.xy[0].tolist() == [[10, 20], [30.5, 40.25], [50, 60]]
    assert np.isnan(truth.xy[1, 2]).all()
    assert truth.visible.tolist() == [[True] * 3, [True, True, False], [True] * 3]
    assert truth.boxes[2].tolist() == [5, 6, 30, 40]
    assert (truth.normalizer, truth.fields, truth.notes) == ("", {}, ())


def test_min_visibility_excludes_hidden_points(tmp_path: Path) -> None:
    truth = read(tmp_path, make_valid_content(), min_visibility=2)
    assert truth.visible[0].tolist() == [True, False, True]
    assert np.isnan(truth.xy[0, 1]).all()


@pytest.mark.parametrize("min_visibility", [0, 1, 2])
def test_points_with_v_0_are_never_annotated(min_visibility: int, tmp_path: Path) -> None:
    content = make_valid_content()
    content["annotations"][0]["keypoints"] = [0, 0, 0, 30, 40, 0, 50, 60, 2]
    truth = read(tmp_path, content, min_visibility=min_visibility)
    assert truth.visible[0].tolist() == [False, False, True]
    assert np.isnan(truth.xy[0, :2]).all()


def test_fields_come_from_annotations_then_images(tmp_path: Path) -> None:
    content = make_valid_content()
    content["annotations"][0] |= {"pose": 3, "track": [1], "odd": None}
    content["annotations"][1] |= {"pose": 1, "huge": 10**400, "blurred": True}
    content["images"][0] |= {"person": "Ada", "pose": 9, "odd": 0.5, "license": {"id": 1}}
    content["images"][2] |= {"person": "Bob", "pose": 8, "bad": math.nan}
    fields = read(tmp_path, content).fields
    assert fields == {
        "pose": (3, 1, 8),
        "odd": (0.5, None, None),
        "blurred": (None, True, None),
        "person": ("Ada", None, "Bob"),
    }


def test_objects_without_points_and_crowds_are_left_out_and_noted(tmp_path: Path) -> None:
    content = make_valid_content()
    content["annotations"][0] = {"id": 11, "image_id": 1, "iscrowd": 1}
    content["annotations"][2]["keypoints"] = [math.nan, math.inf, 0] * 3
    truth = read(tmp_path, content)
    path = tmp_path / "test.json"
    assert truth.where == (f"{path}: annotations[1]",)
    assert truth.refs == (TRAIN[1],)
    assert truth.notes == (
        f"{path}: 1 annotation was left out (crowd); the first is annotations[0]",
        f"{path}: 1 annotation was left out (no visible point); the first is annotations[2]",
    )


def test_without_categories_points_are_numbered(tmp_path: Path) -> None:
    content = make_valid_content()
    content["categories"] = []
    truth = read(tmp_path, content)
    assert truth.names == ("point_0", "point_1", "point_2")
    assert truth.mirror == ()


def test_ids_boxes_and_category_ids_are_optional(tmp_path: Path) -> None:
    content = make_valid_content()
    for annotation in content["annotations"]:
        for key in ("id", "category_id", "bbox", "iscrowd"):
            del annotation[key]
    content["annotations"][1]["bbox"] = []
    del content["categories"][0]["id"]
    truth = read(tmp_path, content)
    assert np.isnan(truth.boxes).all()
    assert truth.names == tuple(POINTS)


def test_the_category_of_the_annotations_is_used(tmp_path: Path) -> None:
    content = make_valid_content()
    content["categories"][:0] = [{"id": 1, "name": "cup"}, {"id": 2, "name": "dog", "keypoints": ["tail"]}]
    assert read(tmp_path, content).names == tuple(POINTS)


@pytest.mark.parametrize(
    ("declared", "spec"),
    [
        ({"normaliser": "bbox_sqrt_area"}, "bbox"),
        ({"normaliser": "inter_ocular", "normaliser_points": [0, 1]}, "points:left_eye,right_eye"),
        ({"normaliser": "body_length", "normaliser_points": [2, 0]}, "points:nose,left_eye"),
        ({"normaliser": "inter_ocular"}, "inter_ocular"),
        ({"normaliser": "torso"}, "torso"),
        ({"normalizer": "torso"}, "torso"),
        ({"normalizer": "body_length", "normalizer_points": [2, 0]}, "points:nose,left_eye"),
        ({"normalizer": "torso", "normaliser": "box"}, "torso"),
        ({}, ""),
    ],
)
def test_the_declared_normalizer_becomes_a_spec(tmp_path: Path, declared: dict[str, Any], spec: str) -> None:
    content = make_valid_content()
    content["categories"][0] |= declared
    truth = read(tmp_path, content)
    assert (truth.normalizer, truth.notes) == (spec, ())


def test_an_unknown_normalizer_is_ignored_with_a_note(tmp_path: Path) -> None:
    content = make_valid_content()
    content["categories"][0]["normaliser"] = "furlongs"
    truth = read(tmp_path, content)
    assert truth.normalizer == ""
    assert "categories[0]" in truth.notes[0]
    assert "'furlongs'" in truth.notes[0]


# --- choosing objects and points -------------------------------------------------------------------


def test_select_by_index_and_by_mask(tmp_path: Path) -> None:
    content = make_valid_content()
    for number, annotation in enumerate(content["annotations"]):
        annotation["pose"] = number
    truth = read(tmp_path, content)
    chosen = truth.select([2, 0])
    assert chosen.refs == (TRAIN[2], TRAIN[0])
    assert chosen.where == (truth.where[2], truth.where[0])
    assert chosen.fields == {"pose": (2, 0)}
    np.testing.assert_array_equal(chosen.xy, truth.xy[[2, 0]])
    np.testing.assert_array_equal(chosen.boxes, truth.boxes[[2, 0]])
    masked = truth.select(np.array([False, True, False]))
    assert masked.fields == {"pose": (1,)}
    np.testing.assert_array_equal(masked.visible, truth.visible[1:2])
    assert len(truth.select(np.zeros(0, int))) == 0


def test_points_are_reordered_with_their_mirror_partners(tmp_path: Path) -> None:
    truth = read(tmp_path, make_valid_content())
    reordered = truth.select_points(["nose", "right_eye", "left_eye"])
    assert reordered.mirror == (0, 2, 1)
    np.testing.assert_array_equal(reordered.xy, truth.xy[:, ::-1])
    np.testing.assert_array_equal(reordered.visible, truth.visible[:, ::-1])
    assert truth.select_points(["nose", "left_eye"]).mirror == ()  # right_eye is missing
    assert truth.select_points(["nose"]).mirror == (0,)
    with pytest.raises(InputError, match=r"test\.json has no point 'tail'"):
        truth.select_points(["tail"])


def test_common_points_have_the_order_of_the_second_file(tmp_path: Path) -> None:
    first = read(tmp_path, make_valid_content())
    content = make_valid_content()
    content["categories"][0]["keypoints"] = ["nose", "chin", "left_eye"]
    second = read_ground_truth(write(tmp_path, content, "second.json"), TRAIN)
    assert find_common_points(first, second) == ("nose", "left_eye")
    assert find_common_points(second, first) == ("left_eye", "nose")
    content["categories"][0]["keypoints"] = ["a", "b", "c"]
    unrelated = read_ground_truth(write(tmp_path, content, "unrelated.json"), TRAIN)
    with pytest.raises(InputError, match=r"test\.json and .*unrelated\.json"):
        find_common_points(first, unrelated)


# --- matching images -------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "train/", "./train/", "old/machine/train/", "/abs/old/train/"])
@pytest.mark.parametrize("folder", ["images/train", "pics", "a/b/c/train"])
def test_images_are_recognized_by_the_end_of_their_path(tmp_path: Path, prefix: str, folder: str) -> None:
    content = make_valid_content()
    for image in content["images"]:
        image["file_name"] = prefix + Path(image["file_name"]).name
    given_images = [ImageRef(tmp_path / folder / f"{n}.jpg") for n in (3, 1, 2)]
    truth = read(tmp_path, content, given_images)
    assert truth.refs == tuple(given_images[n] for n in (1, 2, 0))
    is_full_match = folder.endswith("train") and prefix in ("train/", "./train/")
    assert bool(truth.notes) == (prefix != "" and not is_full_match)  # a note if folders were ignored


def test_the_folder_decides_between_files_of_the_same_name(tmp_path: Path) -> None:
    refs = [*make_refs("test/1.jpg", "test/2.jpg", "test/3.jpg"), *TRAIN]
    truth = read(tmp_path, make_valid_content(), refs)
    assert truth.refs == tuple(TRAIN)
    assert truth.notes == ()


def test_links_may_rename_folders_and_files(tmp_path: Path) -> None:
    (tmp_path / "store" / "x").mkdir(parents=True)
    for n in (1, 2, 3):
        (tmp_path / "store" / "x" / f"hash{n}").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "linked").symlink_to(tmp_path / "images" / "train")
    (tmp_path / "images" / "train").mkdir()
    for n in (1, 2, 3):
        (tmp_path / "images" / "train" / f"{n}.jpg").symlink_to(tmp_path / "store" / "x" / f"hash{n}")
    given_images = list_images([tmp_path / "images" / "linked"])
    assert len(given_images) == 3
    assert read(tmp_path, make_valid_content(), given_images).refs == tuple(given_images)


def test_a_name_without_a_folder_matches_the_file_in_images_beside_the_labels(tmp_path: Path) -> None:
    content = make_valid_content()
    for image in content["images"]:
        image["file_name"] = Path(image["file_name"]).name
    names = [f"{folder}{n}.jpg" for folder in ("", "thumbs/") for n in (1, 2, 3)]
    given_images = [ImageRef(tmp_path / "images" / name) for name in names]
    (tmp_path / "images" / "thumbs").mkdir(parents=True)
    for ref in given_images:
        ref.path.touch()
    assert read(tmp_path, content, given_images).refs == tuple(given_images[:3])
    elsewhere = [ImageRef(tmp_path / "far" / name) for name in names]
    with pytest.raises(InputError, match=r"images\[0\] '1.jpg' may be .*far/1.jpg or .*far/thumbs/1.jpg"):
        read(tmp_path, content, elsewhere)


def test_an_equal_name_in_another_split_does_not_match(tmp_path: Path) -> None:
    for folder, byte in (("train", b"a"), ("test", b"bb"), ("pics", b"a")):
        (tmp_path / "images" / folder).mkdir(parents=True)
        for n in (1, 2, 3):
            (tmp_path / "images" / folder / f"{n}.jpg").write_bytes(byte)
    with pytest.raises(
        InputError, match=r"images\[0\] 'train/1.jpg' is not among the given images \(3 images\)"
    ):
        read(tmp_path, make_valid_content(), list_images([tmp_path / "images" / "test"]))
    assert len(read(tmp_path, make_valid_content(), list_images([tmp_path / "images" / "pics"]))) == 3


def test_a_missing_image_is_an_error_if_it_is_annotated(tmp_path: Path) -> None:
    content = make_valid_content()
    with pytest.raises(
        InputError, match=r"test\.json: images\[2\] 'train/3.jpg' is not among the given images \(2 images\)"
    ):
        read(tmp_path, content, TRAIN[:2])
    del content["annotations"][2]
    assert read(tmp_path, content, TRAIN[:2]).refs == tuple(TRAIN[:2])
    with pytest.raises(InputError, match=r"given images \(0 images\)"):
        read(tmp_path, content, [])


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("a\0b", r"images\[0\] .* may be .*test/1.jpg or .*train/1.jpg"),
        ("\ud800", r"images\[0\].* is not valid UTF-8"),
        ("x" * 300, r"images\[0\] .* may be .*test/1.jpg or .*train/1.jpg"),
    ],
)
def test_invalid_file_names_are_errors(tmp_path: Path, folder: str, message: str) -> None:
    content = make_valid_content()
    content["images"][0]["file_name"] = f"{folder}/1.jpg"
    with pytest.raises(InputError, match=message):
        read(tmp_path, content, [*TRAIN, *make_refs("test/1.jpg")])


def test_two_names_cannot_match_one_file(tmp_path: Path) -> None:
    content = make_valid_content()
    content["images"][1]["file_name"] = "test/1.jpg"
    with pytest.raises(
        InputError, match=r"images\[1\] 'test/1.jpg' and .*images\[0\] 'train/1.jpg' both match"
    ):
        read(tmp_path, content)


def test_labels_match_the_frames_of_a_video(tmp_path: Path) -> None:
    content = make_valid_content()
    for image, frame in zip(content["images"], (4, 0, 2), strict=True):
        image |= {"file_name": "fly.mp4", "frame": frame}
    frames = [ImageRef(Path("/data/fly.mp4"), frame) for frame in range(0, 6, 2)]
    assert read(tmp_path, content, frames).refs == (frames[2], frames[0], frames[1])
    content["images"][0]["frame"] = 3
    with pytest.raises(InputError, match=r"images\[0\]: frame 3 of 'fly.mp4' is not one of the given frames"):
        read(tmp_path, content, frames)
    for wrong in (None, "3", True, 2.0):
        content["images"][0]["frame"] = wrong
        with pytest.raises(InputError, match=r"images\[0\]: 'fly.mp4' is a video"):
            read(tmp_path, content, frames)


def test_many_files_with_one_name_are_matched_quickly(tmp_path: Path) -> None:
    """Matching takes seconds; comparing all files with the same name would take minutes."""
    names = [f"{n}/img.jpg" for n in range(20_000)]
    content = {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(names)],
        "annotations": [{"image_id": n, "keypoints": [1, 2, 2]} for n in range(len(names))],
    }
    given_images = [ImageRef(Path("/data", name)) for name in reversed(names)]
    path = write(tmp_path, content)
    start = process_time()
    truth = read_ground_truth(path, given_images)
    assert process_time() - start < 10
    assert truth.refs == tuple(reversed(given_images))


# --- matching objects ------------------------------------------------------------------------------


def make_two_objects() -> dict[str, Any]:
    content = make_valid_content()
    content["annotations"][1] |= {"image_id": 1, "bbox": [100, 6, 20, 40]}
    del content["annotations"][2]
    return content


def make_refs_with_boxes(*boxes: tuple[float, float, float, float]) -> list[ImageRef]:
    return [ImageRef(TRAIN[0].path, box=box) for box in boxes]


def test_objects_in_one_image_are_distinguished_by_their_boxes(tmp_path: Path) -> None:
    given_images = make_refs_with_boxes((102, 6, 20, 40), (5, 6, 10, 30))
    assert read(tmp_path, make_two_objects(), given_images).refs == (given_images[1], given_images[0])


def test_a_coco_file_can_be_given_as_the_images(tmp_path: Path) -> None:
    content = make_two_objects()
    content["annotations"][1]["bbox"] = [9, 9, 0, 0]  # a box without area occurs in real files
    (tmp_path / "train").mkdir()
    for n in (1, 2, 3):
        (tmp_path / "train" / f"{n}.jpg").touch()
    path = write(tmp_path, content)
    truth = read_ground_truth(path, list_images([path]))
    assert [ref.box for ref in truth.refs] == [(5, 6, 10, 40), (9, 9, 0, 0)]


@pytest.mark.parametrize(
    ("given_images", "message"),
    [
        (
            TRAIN[:1],
            r"annotations\[1\] and .*annotations\[0\] annotate one image .* boxes.*COCO file",
        ),
        (make_refs_with_boxes((5, 6, 10, 40)), r"annotations\[1\]: its 'bbox' overlaps too little"),
        (
            make_refs_with_boxes((5, 6, 10, 40), (111, 6, 20, 40)),
            r"annotations\[1\]: its 'bbox' overlaps too little",
        ),
    ],
)
def test_objects_that_cannot_be_distinguished_are_errors(
    tmp_path: Path, given_images: list[ImageRef], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, make_two_objects(), given_images)


def test_an_object_annotated_twice_is_an_error(tmp_path: Path) -> None:
    content = make_two_objects()
    content["annotations"][1]["bbox"] = [5, 6, 10, 38]
    with pytest.raises(InputError, match=r"annotations\[1\] and .*annotations\[0\] annotate the same object"):
        read(tmp_path, content, make_refs_with_boxes((5, 6, 10, 40), (100, 6, 20, 40)))


def test_an_annotation_without_a_box_matches_a_single_object(tmp_path: Path) -> None:
    content = make_two_objects()
    del content["annotations"][0]["bbox"]
    with pytest.raises(InputError, match=r"annotations\[0\] needs a 'bbox'"):
        read(tmp_path, content, make_refs_with_boxes((5, 6, 10, 40), (100, 6, 20, 40)))
    del content["annotations"][1]
    one_object = make_refs_with_boxes((5, 6, 10, 40))
    assert read(tmp_path, content, one_object).refs == tuple(one_object)


# --- invalid files ---------------------------------------------------------------------------------


def set_value(*keys_and_value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets one value in the content of a COCO file.

    The arguments are the keys and indices that lead to the value, followed by the new value.
    """

    def change(content: Any) -> None:
        *keys, last, value = keys_and_value
        for key in keys:
            content = content[key]
        content[last] = value

    return change


def set_keypoint(index: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return set_value("annotations", 1, "keypoints", index, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_value("images", 5), "'images'"),
        (set_value("images", 1, 5), r"images\[1\]"),
        (set_value("images", 1, "id", 1), r"images\[1\]: the id 1 is already used by .*images\[0\]"),
        (set_value("images", 1, "id", [1]), r"images\[1\]"),
        (set_value("images", 1, "file_name", 3), r"images\[1\]"),
        (set_value("images", 1, "file_name", ""), r"images\[1\] '' is not among"),
        (set_value("annotations", {}), "'annotations'"),
        (set_value("annotations", []), "annotates no objects"),
        (set_value("annotations", 1, None), r"annotations\[1\]"),
        (
            set_value("annotations", 1, "id", 11),
            r"annotations\[1\]: the id 11 is already .*annotations\[0\]",
        ),
        (set_value("annotations", 1, "id", {}), r"annotations\[1\]"),
        (set_value("annotations", 1, "image_id", 99), r"annotations\[1\]: there is no image with the id 99"),
        (set_value("annotations", 1, "iscrowd", [1]), r"annotations\[1\]: 'iscrowd'"),
        (set_value("annotations", 1, "category_id", 8), r"annotations\[1\]: no category .* id 8"),
        (set_value("annotations", 1, "category_id", [7]), r"annotations\[1\]: no category"),
        (set_value("annotations", 1, "keypoints", None), r"annotations\[1\]: 'keypoints' .* 3 points"),
        (set_value("annotations", 1, "keypoints", "no"), r"annotations\[1\]: 'keypoints' .* 3 points"),
        (
            set_value("annotations", 1, "keypoints", [1, 2, 2]),
            r"annotations\[1\]: .* 3 points, not 3 numbers",
        ),
        (set_keypoint(0, "1"), r"annotations\[1\]: 'keypoints' must contain only numbers"),
        (set_keypoint(0, True), r"annotations\[1\]: 'keypoints' must contain only numbers"),
        (set_keypoint(6, None), r"annotations\[1\]: 'keypoints' must contain only numbers"),
        (set_keypoint(0, 10**400), r"annotations\[1\]: 'keypoints'"),
        (set_keypoint(0, math.nan), r"annotations\[1\]: point 'left_eye' has no usable coordinates"),
        (set_keypoint(4, -math.inf), r"annotations\[1\]: point 'right_eye' has no usable coordinates"),
        (set_keypoint(4, 10**15), r"annotations\[1\]: point 'right_eye' has no usable coordinates"),
        (set_keypoint(2, 3), r"annotations\[1\]: point 'left_eye' has a visibility v other than"),
        (set_keypoint(2, math.nan), r"annotations\[1\]: point 'left_eye' has a visibility v other than"),
        (set_keypoint(2, 0.5), r"annotations\[1\]: point 'left_eye' has a visibility v other than"),
        (set_value("annotations", 1, "bbox", [1, 2, 3]), r"annotations\[1\]: 'bbox'"),
        (set_value("annotations", 1, "bbox", [1, 2, -3, 4]), r"annotations\[1\]: 'bbox'"),
        (set_value("annotations", 1, "bbox", [1, math.nan, 3, 4]), r"annotations\[1\]: 'bbox'"),
        (set_value("annotations", 1, "bbox", [10**400, 2, 3, 4]), r"annotations\[1\]: 'bbox'"),
        (set_value("annotations", 1, "bbox", {"x": 1}), r"annotations\[1\]: 'bbox'"),
        (set_value("categories", 7), "'categories'"),
        (set_value("categories", 0, "face"), r"categories\[0\]"),
        (set_value("categories", 0, "keypoints", "eyes"), r"categories\[0\]: 'keypoints'"),
        (set_value("categories", 0, "keypoints", [1, 2, 3]), r"categories\[0\]: 'keypoints'"),
        (
            set_value("categories", 0, "keypoints", ["a", "b", "a"]),
            r"categories\[0\]: two points are called 'a'",
        ),
        (
            set_value("categories", 0, "keypoints", ["a", "b\x1b", "c"]),
            r"categories\[0\]: 'b\\x1b' cannot be the name of a point",
        ),
        (set_value("categories", 0, "flip_idx", [1, 0, 0]), r"categories\[0\]: 'flip_idx'"),
        (set_value("categories", 0, "flip_idx", [1, 0]), r"categories\[0\]: 'flip_idx'"),
        (set_value("categories", 0, "flip_idx", ["a", 0, 1]), r"categories\[0\]: 'flip_idx'"),
        (set_value("categories", 0, "normalizer", ["box"]), r"categories\[0\]: 'normalizer'"),
        (set_value("categories", 0, "normaliser", ["box"]), r"categories\[0\]: 'normaliser'"),
        (set_value("categories", 0, "normaliser_points", [0, 3]), r"categories\[0\]: 'normaliser_points'"),
        (set_value("categories", 0, "normalizer_points", [0, 3]), r"categories\[0\]: 'normalizer_points'"),
        (set_value("categories", 0, "normaliser_points", [1, 1]), r"categories\[0\]: 'normaliser_points'"),
        (set_value("categories", 0, "normaliser_points", [0, -1]), r"categories\[0\]: 'normaliser_points'"),
    ],
)
def test_invalid_entries_are_errors(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = make_valid_content()
    change(content)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, content)
    assert str(tmp_path / "test.json") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[1, 2]", "not a task"),
        ("{}", "annotates no objects"),
        ("[" * 200_000, "nested too deeply"),
        ('{"images": ' + "[" * 200_000, "nested too deeply"),
        ('{"images": [{"id": ' + "9" * 5000 + "}]}", "not valid JSON"),
    ],
)
def test_files_that_are_not_label_files_are_errors(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)
    with pytest.raises(InputError, match="cannot read"):
        read_ground_truth(tmp_path / "absent.json", TRAIN)


def test_two_categories_cannot_be_mixed(tmp_path: Path) -> None:
    content = make_valid_content()
    content["categories"].append({"id": 8, "name": "dog", "keypoints": ["a", "b", "c"]})
    content["annotations"][2]["category_id"] = 8
    with pytest.raises(InputError, match=r"annotations\[2\] has a different category"):
        read(tmp_path, content)
    del content["annotations"][2]["category_id"]
    with pytest.raises(InputError, match=r"annotations\[2\]: no category"):
        read(tmp_path, content)


def test_annotations_without_any_visible_point_are_an_error(tmp_path: Path) -> None:
    content = make_valid_content()
    for annotation in content["annotations"]:
        annotation["keypoints"][2::3] = [0, 0, 0]
    with pytest.raises(InputError, match="no annotation has a visible point"):
        read(tmp_path, content)


def list_key_paths(content: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of keys to every value inside a JSON value."""
    inner: Any = ()
    if isinstance(content, dict):
        inner = content.items()
    elif isinstance(content, list):
        inner = enumerate(content)
    paths = [(*before, key) for key, _ in inner]
    for key, value in inner:
        paths += list_key_paths(value, (*before, key))
    return paths


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 12),
        st.sampled_from([10**20, 10**400, -1, 1e308, math.nan, math.inf]),
        st.sampled_from(["", "a", "/", "..", "left_eye", "train/1.jpg", "\ud800", "a\0b.jpg", "x" * 300]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)
VALID_CONTENT = make_valid_content()  # the next two lines add optional entries
VALID_CONTENT["categories"][0] |= {"normaliser": "inter_ocular", "normaliser_points": [0, 1]}
VALID_CONTENT["annotations"][0]["pose"] = 3


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(list_key_paths(VALID_CONTENT)), JUNK, st.booleans()), min_size=1, max_size=4
    )
)
def test_a_damaged_file_is_read_or_raises_an_input_error(
    tmp_path: Path, changes: list[tuple[tuple[Any, ...], Any, bool]]
) -> None:
    content = copy.deepcopy(VALID_CONTENT)
    for keys, junk, remove in changes:
        target: Any = content
        try:
            for key in keys[:-1]:
                target = target[key]
            if remove:
                del target[keys[-1]]
            else:
                target[keys[-1]] = junk
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change removed this value
    try:
        truth = read(tmp_path, content)
    except InputError:
        return
    assert np.isfinite(truth.xy[truth.visible]).all()
    assert np.isnan(truth.xy[~truth.visible]).all()
    assert truth.visible.any(axis=1).all()
    assert len(set(truth.refs)) == len(truth) >= 1


# --- real label files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "images", "points", "normalizer", "fields"),
    [
        ("faces-yt68", 759, 68, "bbox", {"yaw_ratio", "yaw_bucket", "source", "person", "padded"}),
        ("faces-mtfl-aflw", 2995, 5, "points:left_eye,right_eye", {"pose"}),
        ("mouse-openfield", 24, 4, "bbox", {"source"}),
        ("birds-cub", 4660, 15, "bbox", {"cub_id", "class_id", "class_name", "seabird", "padded"}),
    ],
)
def test_real_label_files_are_read_completely(
    tmp_path: Path, name: str, images: int, points: int, normalizer: str, fields: set[str]
) -> None:
    archive = DATA / f"{name}.zip"
    if not archive.is_file():
        pytest.skip(f"{os.path.relpath(archive)} is missing")
    with zipfile.ZipFile(archive) as opened:
        path = Path(opened.extract("test.json", tmp_path))
        image_names = [entry for entry in opened.namelist() if entry.endswith(".jpg")]
    truth = read_ground_truth(path, [ImageRef(tmp_path / entry) for entry in image_names])
    content = json.loads(path.read_text())
    assert truth.xy.shape == (images, points, 2)
    assert truth.normalizer == normalizer
    assert set(truth.fields) == fields
    assert truth.mirror == tuple(content["categories"][0]["flip_idx"])
    path_by_id = {image["id"]: f"images/{image['file_name']}" for image in content["images"]}
    for row, annotation in enumerate(content["annotations"]):
        assert truth.refs[row].path == tmp_path / path_by_id[annotation["image_id"]]
        assert truth.visible[row].sum() == annotation["num_keypoints"]
    assert truth.xy[5, 0].tolist() == content["annotations"][5]["keypoints"][:2] or not truth.visible[5, 0]
