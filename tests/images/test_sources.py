"""Test listing images: every type of input, the order of images, and unusable inputs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.run.image_list import refs_from_json, refs_to_json
from tests.conftest import selfmark

TOY_DETECTOR = Path(__file__).parents[1] / "fixtures" / "toy-detector"


def touch(folder: Path, *names: str) -> list[Path]:
    """Create empty files, which is enough because nothing is decoded here."""
    paths = [folder / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def list_names(refs: list[ImageRef], folder: Path) -> list[str]:
    return [ref.name.removeprefix(f"{folder}{os.sep}") for ref in refs]


def test_the_name_of_a_frame_has_its_number() -> None:
    assert ImageRef(Path("a/b.jpg"), box=(0, 0, 1, 1)).name == str(Path("a/b.jpg"))
    assert ImageRef(Path("a/b.mp4"), frame=0).name == f"{Path('a/b.mp4')}#0"


# --- folders, files, patterns ----------------------------------------------------------------------


def test_files_of_a_folder_are_sorted(tmp_path: Path) -> None:
    expected = ["B.PNG", "a.jpg", "c.Jpeg", "deep/er/x.webp", "deep/y.tif", "deep/z.tiff", "e.bmp", "f.gif"]
    expected += ["g.ppm", "h.pgm"]
    touch(tmp_path, *reversed(expected), "notes.txt", "labels.json", "x.heic", "noextension", ".hidden.jpg")
    touch(tmp_path, ".cache/thumb.jpg", "deep/.git/x.png")
    assert list_names(list_images([tmp_path]), tmp_path) == expected
    assert all(ref.frame is None and ref.box is None for ref in list_images([str(tmp_path)]))


def test_a_folder_named_like_an_image_is_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "odd.jpg/a.png")
    assert list_names(list_images([tmp_path]), tmp_path) == [str(Path("odd.jpg/a.png"))]


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/b.jpg", "photos/a.jpg")
    (tmp_path / "photos" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "loop").symlink_to(tmp_path / "photos")
    listed = list_names(list_images([tmp_path / "photos"]), tmp_path / "photos")
    assert listed == ["a.jpg", str(Path("linked/b.jpg"))]


def test_a_hidden_folder_can_be_an_input(tmp_path: Path) -> None:
    touch(tmp_path, ".secret/a.jpg")
    assert len(list_images([tmp_path / ".secret"])) == 1


def test_single_files_keep_their_order(tmp_path: Path) -> None:
    b, a = touch(tmp_path, "b.jpg", "a.JPG")
    assert [ref.path for ref in list_images([b, str(a)])] == [b, a]


def test_patterns_list_the_matching_images(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.png", "x/c.jpg", "x/y/d.jpg", "x/y/e.txt", ".h/f.jpg")
    assert list_names(list_images([f"{tmp_path}/*.jpg"]), tmp_path) == ["a.jpg"]
    assert list_names(list_images([f"{tmp_path}/**/*.jpg"]), tmp_path) == ["a.jpg", "x/c.jpg", "x/y/d.jpg"]
    assert list_names(list_images([tmp_path / "**"]), tmp_path) == ["a.jpg", "b.png", "x/c.jpg", "x/y/d.jpg"]
    assert list_names(list_images([f"{tmp_path}/?"]), tmp_path) == ["x/c.jpg", "x/y/d.jpg"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "a[1].jpg")
    assert [ref.path for ref in list_images([path])] == [path]


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    touch(tmp_path, "a.jpg")
    assert [ref.path for ref in list_images(["~/a.jpg"])] == [tmp_path / "a.jpg"]


def test_repeated_files_are_listed_once(tmp_path: Path) -> None:
    a, b = touch(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "again.jpg").symlink_to(b)
    indirect = tmp_path / "x" / ".." / "b.jpg"
    (tmp_path / "x").mkdir()
    assert [ref.path for ref in list_images([b, indirect, tmp_path, a])] == [b, a]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.jpg", "no file or folder"),
        ("missing", "no file or folder"),
        ("*.jpg", "matches no images"),
        ("*.md", "matches no images"),
        ("readme.md", "'.md' is not an image or video extension"),
        ("noextension", "extension"),
        ("empty", "contains no images"),
    ],
)
def test_unusable_inputs_are_rejected(tmp_path: Path, name: str, message: str) -> None:
    touch(tmp_path, "readme.md", "noextension")
    touch(tmp_path / "empty", ".hidden.jpg", "notes.doc")
    with pytest.raises(InputError, match=message) as caught:
        list_images([tmp_path / name])
    assert str(tmp_path / name) in str(caught.value)


def test_empty_inputs_and_a_frame_step_of_zero_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no images were given"):
        list_images([])
    with pytest.raises(InputError, match="at least 1"):
        list_images(touch(tmp_path, "a.jpg"), every=0)


# --- videos ----------------------------------------------------------------------------------------


def test_every_third_frame_is_listed(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    path = write_video(tmp_path / "Clip.AVI", 10, "MJPG")
    assert [ref.frame for ref in list_images([path])] == list(range(10))
    assert [(ref.path, ref.frame) for ref in list_images([path], every=3)] == [
        (path, frame) for frame in (0, 3, 6, 9)
    ]


def test_videos_in_folders_and_patterns_are_listed(tmp_path: Path, write_video: Callable[..., Path]) -> None:
    write_video(tmp_path / "b.avi", 3, "MJPG")
    touch(tmp_path, "a.jpg", "c.jpg")
    expected = ["a.jpg", "b.avi#0", "b.avi#2", "c.jpg"]
    assert list_names(list_images([tmp_path], every=2), tmp_path) == expected
    assert list_names(list_images([f"{tmp_path}/*"], every=2), tmp_path) == expected


def test_a_broken_video_is_rejected(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "a.mp4")
    with pytest.raises(InputError, match=r"a\.mp4 cannot be read as a video"):
        list_images([path])


# --- text lists ------------------------------------------------------------------------------------


def write_list(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_a_text_list_gives_files_and_boxes(tmp_path: Path) -> None:
    touch(tmp_path, "lists/a.jpg", "lists/sub/b c.png", "up.jpg", "lists/odd,name.jpg", "lists/x,1,2,3,4.jpg")
    text = (
        "\ufeff# my images\n\na.jpg\r\n  sub/b c.png , 1, 2.5,30,4e1 \n../up.jpg,-3,0,7,8\n"
        f"odd,name.jpg\nodd,name.jpg,0,0,5,5\nx,1,2,3,4.jpg\n{tmp_path / 'up.jpg'}\n"
    )
    folder = tmp_path / "lists"
    refs = list_images([write_list(folder / "all.TXT", text)])
    assert refs == [
        ImageRef(folder / "a.jpg"),
        ImageRef(folder / "sub/b c.png", box=(1.0, 2.5, 30.0, 40.0)),
        ImageRef(folder / "../up.jpg", box=(-3.0, 0.0, 7.0, 8.0)),
        ImageRef(folder / "odd,name.jpg"),
        ImageRef(folder / "odd,name.jpg", box=(0.0, 0.0, 5.0, 5.0)),
        ImageRef(folder / "x,1,2,3,4.jpg"),
        ImageRef(tmp_path / "up.jpg"),
    ]


def test_spaces_around_a_name_in_a_list_are_ignored_only_if_no_file_has_them(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", " a.jpg", "b.jpg", " c.jpg,1,2,3,4.jpg", "# d.jpg", "d.jpg ", "e .jpg")
    text = " a.jpg\n a.jpg,1,2,3,4\n  a.jpg\na.jpg ,5,6,7,8\n b.jpg \n c.jpg,1,2,3,4.jpg\n# d.jpg\ne .jpg\n"
    refs = list_images([write_list(tmp_path / "l.txt", text)])
    assert [(ref.path.name, ref.box) for ref in refs] == [
        (" a.jpg", None),
        (" a.jpg", (1, 2, 3, 4)),
        ("a.jpg", None),
        ("a.jpg", (5, 6, 7, 8)),
        ("b.jpg", None),
        (" c.jpg,1,2,3,4.jpg", None),
        ("# d.jpg", None),
        ("e .jpg", None),
    ]


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c"])
def test_only_line_feeds_end_a_line_of_a_list(separator: str, tmp_path: Path) -> None:
    name = f"a{separator}b.jpg"
    touch(tmp_path, name, "c.jpg")
    (tmp_path / "list.txt").write_text(f"{name}\r\nc.jpg", encoding="utf-8", newline="")
    assert list_names(list_images([tmp_path / "list.txt"]), tmp_path) == [name, "c.jpg"]


def test_an_image_whose_name_begins_like_a_comment_is_used(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "#1.jpg", "#2.jpg")
    (tmp_path / "list.txt").write_text("# images\na.jpg\n#1.jpg\n#2.jpg,1,2,3,4\n#3.jpg\n")
    refs = list_images([tmp_path / "list.txt"])
    assert list_names(refs, tmp_path) == ["a.jpg", "#1.jpg", "#2.jpg"]
    assert refs[2].box == (1, 2, 3, 4)


def test_several_boxes_of_one_image_are_each_listed_once(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    refs = list_images([write_list(tmp_path / "l.txt", "a.jpg,0,0,5,5\na.jpg,5,5,5,5\na.jpg,0,0,5.0,5\n")])
    assert [ref.box for ref in refs] == [(0, 0, 5, 5), (5, 5, 5, 5)]


def test_a_box_in_a_list_applies_to_every_frame_of_a_video(
    tmp_path: Path, write_video: Callable[..., Path]
) -> None:
    write_video(tmp_path / "v.avi", 4, "MJPG")
    refs = list_images([write_list(tmp_path / "l.txt", "v.avi,1,2,3,4\n")], every=2)
    assert [(ref.frame, ref.box) for ref in refs] == [(0, (1, 2, 3, 4)), (2, (1, 2, 3, 4))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gone.jpg", "there is no file"),
        ("a.jpg,1,2,3", "there is no file"),
        ("gone.jpg,1,2,3,4", "there is no file"),
        ("a.jpg,1,2,3,four", "four finite numbers"),
        ("a.jpg,1,2,nan,4", "four finite numbers"),
        ("a.jpg,1,inf,3,4", "four finite numbers"),
        ("a.jpg,1,2,3,-4", "four finite numbers"),
        ("b.heic", "'.heic' is not an image or video extension"),
        ("folder", "there is no file"),
    ],
)
def test_unusable_list_entries_are_rejected(tmp_path: Path, line: str, message: str) -> None:
    touch(tmp_path, "a.jpg", "b.heic", "folder/c.jpg")
    path = write_list(tmp_path / "l.txt", f"# first\na.jpg\n{line}\n")
    with pytest.raises(InputError, match=message) as caught:
        list_images([path])
    assert f"{path} line 3" in str(caught.value)


def test_empty_and_binary_lists_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lists no images"):
        list_images([write_list(tmp_path / "l.txt", "# nothing\n\n")])
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not a text file"):
        list_images([tmp_path / "b.txt"])


# --- COCO ------------------------------------------------------------------------------------------


def write_coco(path: Path, images: Any, annotations: Any = ()) -> Path:
    path.write_text(json.dumps({"images": images, "annotations": list(annotations)}))
    return path


def test_each_box_of_a_coco_file_is_listed(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    images = [
        {"id": 7, "file_name": "b.jpg"},
        {"id": "x", "file_name": "a.jpg"},
        {"id": 1, "file_name": "c.jpg"},
    ]
    annotations = [
        {"image_id": 1, "bbox": [1, 2, 3, 4]},
        {"image_id": 7, "bbox": [0, 0, 5.5, 5]},
        {"image_id": 1, "bbox": [5, 6, 7, 8]},
        {"image_id": 1, "keypoints": []},
        {"image_id": "x", "bbox": None},
        {"image_id": "x", "bbox": []},
    ]
    assert list_images([write_coco(tmp_path / "l.JSON", images, annotations)]) == [
        ImageRef(tmp_path / "b.jpg", box=(0.0, 0.0, 5.5, 5.0)),
        ImageRef(tmp_path / "a.jpg"),
        ImageRef(tmp_path / "c.jpg", box=(1.0, 2.0, 3.0, 4.0)),
        ImageRef(tmp_path / "c.jpg", box=(5.0, 6.0, 7.0, 8.0)),
    ]


@pytest.mark.parametrize("folder", ["", "images", "images/train"])
def test_the_folder_of_coco_images_is_found(tmp_path: Path, folder: str) -> None:
    """The first image determines the folder; others may be missing and are reported when they are read."""
    touch(tmp_path / folder, "s/a.jpg")
    touch(tmp_path / "images" / "other", "s/a.jpg")
    path = write_coco(
        tmp_path / "train.json", [{"id": 1, "file_name": "s/a.jpg"}, {"id": 2, "file_name": "gone.jpg"}]
    )
    assert [ref.path for ref in list_images([path])] == [
        tmp_path / folder / "s/a.jpg",
        tmp_path / folder / "gone.jpg",
    ]


def test_folders_of_coco_images_are_tried_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "images/train/a.jpg", "images/a.jpg")
    path = write_coco(tmp_path / "train.json", [{"id": 1, "file_name": "a.jpg"}])
    assert list_images([path])[0].path == tmp_path / "images" / "a.jpg"
    touch(tmp_path, "a.jpg")
    assert list_images([path])[0].path == tmp_path / "a.jpg"


def test_frames_of_a_coco_file_are_listed(tmp_path: Path) -> None:
    """The video is not opened, and `every` does not apply to frames that the file lists."""
    touch(tmp_path, "v.mp4")
    images = [{"id": i, "file_name": "v.mp4", "frame": frame} for i, frame in enumerate((5, 0, 9))]
    refs = list_images(
        [write_coco(tmp_path / "l.json", images, [{"image_id": 1, "bbox": [1, 1, 2, 2]}])], every=4
    )
    assert [(ref.frame, ref.box) for ref in refs] == [(5, None), (0, (1, 1, 2, 2)), (9, None)]


def test_the_frame_number_of_a_still_image_is_ignored(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    assert list_images([write_coco(tmp_path / "l.json", [{"id": 1, "file_name": "a.jpg", "frame": 3}])]) == [
        ImageRef(tmp_path / "a.jpg")
    ]


def test_a_coco_file_without_annotations_lists_whole_images(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg")
    (tmp_path / "l.json").write_text('{"images": [{"id": 1, "file_name": "a.jpg"}]}')
    assert list_images([tmp_path / "l.json"]) == [ImageRef(tmp_path / "a.jpg")]


VALID_IMAGE = {"id": 1, "file_name": "a.jpg"}


@pytest.mark.parametrize(
    ("images", "annotations", "message"),
    [
        ([], [], "lists no images"),
        ({}, [], "needs a list under 'images'"),
        ([VALID_IMAGE, {"id": 2}], [], r"images\[1\] needs a usable 'file_name'"),
        ([{"file_name": "a.jpg"}], [], r"images\[0\] needs a usable 'id'"),
        ([VALID_IMAGE, "a.jpg"], [], r"images\[1\] needs a usable"),
        ([{"id": [1], "file_name": "a.jpg"}], [], r"images\[0\] needs a usable 'id'"),
        ([{"id": 1, "file_name": 3}], [], r"images\[0\] needs a usable 'file_name'"),
        ([VALID_IMAGE, VALID_IMAGE], [], r"images\[1\]: the id 1 is already used"),
        ([VALID_IMAGE], [{"bbox": [0, 0, 1, 1]}], r"annotations\[0\] needs a usable 'image_id'"),
        (
            [VALID_IMAGE],
            [{"image_id": 1}, {"image_id": 9}],
            r"annotations\[1\]: there is no image with the id 9",
        ),
        (
            [VALID_IMAGE],
            [{"image_id": 1, "bbox": [0, 0, 5, -5]}],
            r"annotations\[0\]: 'bbox' must be four finite",
        ),
        ([VALID_IMAGE], [{"image_id": 1, "bbox": [0, float("nan"), 5, 5]}], r"annotations\[0\]: 'bbox' must"),
        ([VALID_IMAGE], [{"image_id": 1, "bbox": [0, 0, float("inf"), 5]}], r"annotations\[0\]: 'bbox' must"),
        ([VALID_IMAGE], [{"image_id": 1, "bbox": [0, 0, 5]}], r"annotations\[0\]: 'bbox' must"),
        ([VALID_IMAGE], [{"image_id": 1, "bbox": ["0", 0, 5, 5]}], r"annotations\[0\]: 'bbox' must"),
        ([VALID_IMAGE], [{"image_id": 1, "bbox": "0 0 5 5"}], r"annotations\[0\]: 'bbox' must"),
        ([{"id": 1, "file_name": "gone.jpg"}], [], "'gone.jpg' is in none of"),
        (
            [VALID_IMAGE, {"id": 2, "file_name": "b.heic"}],
            [],
            r"images\[1\]: 'b.heic' has no image or video ext",
        ),
        (
            [VALID_IMAGE, {"id": 2, "file_name": "v.mp4"}],
            [],
            r"images\[1\]: 'v.mp4' is a video",
        ),
        (
            [VALID_IMAGE, {"id": 2, "file_name": "v.mp4", "frame": -1}],
            [],
            r"images\[1\]: 'v.mp4' is a video",
        ),
        (
            [VALID_IMAGE, {"id": 2, "file_name": "v.mp4", "frame": 1.5}],
            [],
            r"images\[1\]: 'v.mp4' is a video",
        ),
    ],
)
def test_unusable_coco_files_are_rejected(
    tmp_path: Path, images: Any, annotations: Any, message: str
) -> None:
    touch(tmp_path, "a.jpg")
    path = write_coco(tmp_path / "l.json", images, annotations)
    with pytest.raises(InputError, match=message) as caught:
        list_images([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", "null", '{"images": 3}', '{"images": [], "annotations": 3}']
)
def test_broken_json_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "l.json").write_text(text)
    with pytest.raises(InputError, match=r"l\.json (is not|lists no)"):
        list_images([tmp_path / "l.json"])


@pytest.mark.parametrize("box", ["[1, 2, 1" + "0" * 400 + ", 4]", "[1, 2, Infinity, 4]", "[1, 2, NaN, 4]"])
def test_boxes_must_consist_of_finite_floats(tmp_path: Path, box: str) -> None:
    labels = tmp_path / "labels.json"
    labels.write_text(
        '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "bbox": ' + box + "}]}"
    )
    with pytest.raises(InputError, match=r"annotations\[0\]"):
        list_images([labels])


def test_deeply_nested_json_is_rejected(tmp_path: Path) -> None:
    labels = tmp_path / "labels.json"
    for text in ("[" * 200_000, "[" * 51 + "]" * 51):
        labels.write_text(text)
        with pytest.raises(InputError, match="not valid JSON: it is nested too deeply"):
            list_images([labels])


def test_large_tracks_and_frames_are_unchanged_after_writing_and_reading_json() -> None:
    refs = [ImageRef(Path("v.mp4"), 2**53, (0.0, 0.0, 1.0, 1.0), track) for track in (-1, 2**63 - 1)]
    entries = json.loads(json.dumps(refs_to_json(refs)))
    assert refs_from_json(entries) == refs
    for field in ("frame", "track"):
        with pytest.raises(ValueError, match=f"is not a valid value of '{field}'"):
            refs_from_json([{**entries[0], field: 2**63}])


@pytest.mark.parametrize("command", ["check", "predict", "predict --boxes", "map", "discover"])
def test_the_error_for_a_too_large_track_names_the_annotation(
    command: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = next(photos.glob("*.png")).resolve()
    annotation = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 30, 30], "keypoints": [5, 5, 2]}
    content = {
        "images": [{"id": 1, "file_name": str(image)}],
        "annotations": [{**annotation, "id": 1, "track_id": 10**30}],
        "categories": [{"id": 1, "name": "toy", "keypoints": ["a"]}],
    }
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(content))
    arguments: dict[str, list[object]] = {
        "check": ["check", path, "-o", tmp_path / "out"],
        "predict": ["predict", TOY_DETECTOR, path, "-o", tmp_path / "out"],
        "predict --boxes": ["predict", TOY_DETECTOR, image, "--boxes", path, "-o", tmp_path / "out"],
        "map": ["map", shutil.copytree(TOY_DETECTOR, tmp_path / "toy"), "--labels", path],
        "discover": ["discover", path, "-k", 4, "-o", tmp_path / "out"],
    }
    assert selfmark(*arguments[command], *([] if command == "check" else ["--device", "cpu"])) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"selfmark: {path}: annotations[0]: a track must be a whole number")
