"""Test the COCO reader: the values it returns, and checks that run only when a value is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.coco import CocoAnnotation, CocoCategory, CocoFile, CocoImage, read_coco, read_keypoints


def write_and_read(
    folder: Path,
    images: list[Any] | None = None,
    annotations: list[Any] | None = None,
    categories: list[Any] | None = None,
) -> CocoFile:
    """Write a COCO file, by default with one image, and read it."""
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}] if images is None else images,
        "annotations": annotations or [],
        "categories": categories or [],
    }
    path = folder / "labels.json"
    path.write_text(json.dumps(content))
    return read_coco(path)


def make_image(file_name: str, **values: Any) -> CocoImage:
    return CocoImage("labels.json: images[0]", 1, file_name, values)


def make_annotation(**values: Any) -> CocoAnnotation:
    return CocoAnnotation("labels.json: annotations[0]", 1, values)


def make_category(**values: Any) -> CocoCategory:
    return CocoCategory("labels.json: categories[0]", values)


def test_entries_store_their_location(tmp_path: Path) -> None:
    file = write_and_read(tmp_path, annotations=[{"image_id": 1}, {"image_id": 1, "iscrowd": 1}])
    assert [entry.where for entry in file.annotations] == [
        f"{tmp_path / 'labels.json'}: annotations[{number}]" for number in (0, 1)
    ]
    assert file.image_of(file.annotations[1]) is file.images[0]
    assert file.single_objects() == [file.annotations[0]]
    assert file.info == {}


@pytest.mark.parametrize("where", ["names", "keys", "fields"])
def test_texts_with_invalid_unicode_are_refused(where: str, tmp_path: Path) -> None:
    """Such texts cannot be written to a file: writing a map or a table would fail only after all the work."""
    category = {"id": 1, "name": "cat", "keypoints": ["\ud800" if where == "names" else "nose"]}
    values = {"\udfff" if where == "keys" else "pose": "x\udc00" if where == "fields" else "side"}
    locations = {
        "names": r"categories\[0\].keypoints\[0\] '.ud800'",
        "keys": r"a key of images\[0\] '.udfff'",
        "fields": r"images\[0\].pose 'x.udc00'",
    }
    with pytest.raises(InputError, match=f"labels.json: {locations[where]} is not valid UTF-8") as caught:
        write_and_read(tmp_path, [{"id": 1, "file_name": "a.jpg"} | values], categories=[category])
    assert "\n" not in str(caught.value)


def test_characters_beyond_16_bits_are_allowed(tmp_path: Path) -> None:
    # The module json writes this character as two escape sequences.
    file = write_and_read(tmp_path, categories=[{"id": 1, "name": "\U0001f431"}])
    assert "\\ud83d" in (tmp_path / "labels.json").read_text()
    assert file.category([]).name == "\U0001f431"


def test_repeated_ids_are_errors_only_where_ids_are_checked(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 1, "file_name": "b.jpg"}]
    file = write_and_read(tmp_path, images, [{"image_id": 1}])
    assert file.image_of(file.annotations[0]).file_name == "b.jpg"
    for check in (file.check_image_ids, file.check_ids):
        with pytest.raises(InputError, match=r"images\[1\]: the id 1 is already used by .*images\[0\]"):
            check()


def test_a_missing_image_is_an_error_only_where_ids_are_checked(tmp_path: Path) -> None:
    file = write_and_read(tmp_path, annotations=[{"image_id": 7}])
    file.check_image_ids()
    with pytest.raises(InputError, match=r"annotations\[0\]: there is no image with the id 7"):
        file.check_ids()


@pytest.mark.parametrize(
    ("entry", "ref"),
    [
        (make_image("a/b.jpg", frame=3), ImageRef(Path("a/b.jpg"))),
        (make_image("v.mp4", frame=3), ImageRef(Path("v.mp4"), 3)),
        (make_image("v.mp4", frame=-1), ImageRef(Path("v.mp4"))),
        (make_image("v.mp4"), ImageRef(Path("v.mp4"))),
        (make_image("7.jpg", video_id="x", frame_id=6), ImageRef(Path("7.jpg"), clip=("x", 6))),
    ],
)
def test_references_have_only_valid_frame_numbers(entry: CocoImage, ref: ImageRef) -> None:
    assert entry.ref() == ref


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"video_id": 3},
        {"video_id": True, "frame_id": 6},
        {"video_id": 3, "frame_id": True},
        {"video_id": 3, "frame_id": -1},
        {"video_id": 3, "frame_id": 2**31},
        {"video_id": 3, "frame_id": 1.0},
    ],
)
def test_invalid_clip_frames_are_ignored(values: dict[str, Any]) -> None:
    assert make_image("7.jpg", **values).clip_frame() is None
    # Only still images can be frames of a clip.
    assert make_image("v.mp4", video_id=3, frame_id=6).clip_frame() is None


def test_boxes_are_optional() -> None:
    assert make_annotation(bbox=[1, 2, 3, 0]).box() == (1.0, 2.0, 3.0, 0.0)
    assert make_annotation(bbox=[]).box() is None
    assert make_annotation(bbox=None).box() is None
    with pytest.raises(InputError, match="'bbox' must be four finite numbers"):
        make_annotation(bbox=[1, 2, 3, 1e10]).box()


@pytest.mark.parametrize(
    ("values", "track"),
    [
        ({}, None),
        ({"track_id": 4, "track": 5}, 4),
        ({"track": 5}, 5),
        ({"attributes": {"object_id": 6}}, 6),
        ({"attributes": {"track_id": 7, "object_id": 6}}, 7),
        ({"attributes": [1]}, None),
    ],
)
def test_tracks_are_found_under_the_keys_of_several_tools(values: dict[str, Any], track: int | None) -> None:
    assert make_annotation(**values).track() == track


@pytest.mark.parametrize("track", ["4", True, 1.0])
def test_a_track_is_a_whole_number(track: Any) -> None:
    with pytest.raises(InputError, match="a track must be a whole number"):
        make_annotation(track_id=track).track()


@pytest.mark.parametrize("key", ["track_id", "track"])
@pytest.mark.parametrize("track", [2**63, -(2**63) - 1, 10**30])
def test_a_track_fits_into_64_bits(key: str, track: int) -> None:
    with pytest.raises(InputError, match=r"^labels.json: annotations\[0\]: a track must be .* 64 bits"):
        make_annotation(**{key: track}).track()
    assert make_annotation(**{key: 2**63 - 1}).track() == 2**63 - 1


def test_ids_and_frame_numbers_fit_into_64_bits(tmp_path: Path) -> None:
    huge = 10**30
    with pytest.raises(InputError, match=r"images\[0\] needs a usable 'id', not 10{30}$"):
        write_and_read(tmp_path, [{"id": huge, "file_name": "a.jpg"}], [])
    with pytest.raises(InputError, match=r"annotations\[0\] needs a usable 'image_id', not 10{30}$"):
        write_and_read(tmp_path, annotations=[{"image_id": huge}])
    file = write_and_read(tmp_path, annotations=[{"image_id": 1, "id": huge}])
    with pytest.raises(
        InputError, match=r"annotations\[0\] needs an 'id' that is a string or a whole number"
    ):
        file.check_ids()
    categories = [{"id": huge, "name": "cat", "keypoints": ["nose"]}]
    file = write_and_read(tmp_path, annotations=[{"image_id": 1, "category_id": huge}], categories=categories)
    with pytest.raises(InputError, match=r"categories\[0\] needs an 'id' that is a string or a whole number"):
        file.category(file.annotations)
    with pytest.raises(InputError, match="it needs a 'frame' number that counts from 0, not 10"):
        make_image("v.mp4", frame=huge).frame()


def test_skeletons_are_converted_to_count_from_zero() -> None:
    assert make_category(skeleton=[[1, 2], [3, 1]]).skeleton(3) == ((0, 1), (2, 0))
    assert make_category().skeleton(3) == ()
    for skeleton in ([[0, 1]], [[1, 4]], [[1]], [[True, 1]], "12"):
        with pytest.raises(InputError, match="'skeleton' must"):
            make_category(skeleton=skeleton).skeleton(3)


@pytest.mark.parametrize("spelling", ["normalizer", "normaliser"])
def test_any_normalizer_name_is_accepted(spelling: str) -> None:
    declared = make_category(**{spelling: "furlongs", f"{spelling}_points": [2, 0]}).normalizer(3)
    assert (declared.name, declared.points) == ("furlongs", (2, 0))
    assert make_category().normalizer(3) == ("", None)


def test_keypoints_are_finite_where_they_are_annotated() -> None:
    points = read_keypoints([make_annotation(keypoints=[1, 2, 2, float("nan"), 0, 0])], ["a", "b"])
    np.testing.assert_array_equal(points, [[[1, 2, 2], [np.nan, 0, 0]]])
    with pytest.raises(InputError, match="point 'b' has no usable coordinates"):
        read_keypoints([make_annotation(keypoints=[1, 2, 2, float("nan"), 0, 1])], ["a", "b"])


def test_the_image_folder_is_the_first_that_has_the_image(tmp_path: Path) -> None:
    file = write_and_read(tmp_path)
    with pytest.raises(InputError, match=r"'a\.jpg' is in none of"):
        file.image_folder(file.images[0])
    # These folders are in reverse order of search, so each newly added image is found first.
    for folder in (tmp_path / "images" / "labels", tmp_path / "images", tmp_path):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.jpg").touch()
        assert file.image_folder(file.images[0]) == folder


def test_fields_exclude_standard_coco_keys(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.jpg", "person": "Ada", "pose": 9}]
    file = write_and_read(
        tmp_path, images, [{"image_id": 1, "pose": 3, "area": 5}, {"image_id": 1, "blurred": True}]
    )
    assert file.fields(file.annotations) == {
        "pose": (3, 9),
        "blurred": (None, True),
        "person": ("Ada", "Ada"),
    }
