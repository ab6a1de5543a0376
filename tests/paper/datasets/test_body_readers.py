"""Test the readers of bodies, cats and COCO, on miniatures of the official layouts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from selfmark.config import Config, override
from selfmark.errors import InputError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.images.crop import compute_crop_regions
from selfmark.images.sources import list_images
from selfmark.images.video import read_frames
from selfmark.paper.datasets.dataset import Dataset, write_coco_dataset
from selfmark.paper.datasets.dataset_registry import DATASETS, read_dataset
from tests.paper.datasets import body_miniatures
from tests.paper.datasets.body_miniatures import (
    make_bbcpose,
    make_cats,
    make_coco,
    make_human36m,
    make_lsp,
    make_lspet,
    make_pennaction,
    read_frame_number,
    write_image,
)

MAKERS: dict[str, Callable[[Path], Path]] = {
    "bbcpose": make_bbcpose,
    "human36m": make_human36m,
    "human36m32": make_human36m,
    "pennaction": make_pennaction,
    "cats": make_cats,
    "lsp": make_lsp,
    "lspet": make_lspet,
    "coco": make_coco,
}


def _get_point(data: Dataset, split: str, row: int, name: str) -> list[float]:
    return getattr(data, split).xy[row, data.names.index(name)].tolist()


def _find_row(data: Dataset, split: str, file: str, frame: int | None = None) -> int:
    objects = getattr(data, split)
    keys = list(zip(map(str, objects.paths), objects.frames, strict=True))
    return keys.index((file, frame))


# --- all readers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_written_files_are_read_by_discovery_and_evaluation(name: str, tmp_path: Path) -> None:
    data = read_dataset(name, MAKERS[name](tmp_path / "data"))
    paths = write_coco_dataset(data, tmp_path / "coco")
    for path, split in zip(paths, (data.train, data.test), strict=True):
        truth = read_ground_truth(path, list_images([path]))
        assert [ref.path for ref in truth.refs] == [data.root.resolve() / file for file in split.paths]
        assert truth.frames == split.frames
        assert [ref.box for ref in truth.refs] == [tuple(box) for box in split.boxes.tolist()]
        np.testing.assert_array_equal(truth.xy, split.xy)
        assert (truth.names, truth.mirror, truth.normalizer) == (data.names, data.mirror, data.normalizer)
        assert set(split.fields) <= set(truth.fields)
        visible = read_ground_truth(path, list_images([path]), min_visibility=2).visible
        np.testing.assert_array_equal(visible, np.isfinite(split.xy[..., 0]) & ~split.hidden)


@pytest.mark.parametrize("name", MAKERS)
def test_left_and_right_are_mirror_partners(name: str, tmp_path: Path) -> None:
    data = read_dataset(name, MAKERS[name](tmp_path / "data"))
    for index, partner in enumerate(data.mirror):
        point = data.names[index]
        side, _, part = point.partition("_")
        opposite = {"left": f"right_{part}", "right": f"left_{part}"}
        assert data.names[partner] == opposite.get(side, point)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("bbcpose", "code/bbcpose.mat"),
        ("human36m", "S1"),
        ("pennaction", "labels"),
        ("cats", "CAT_00"),
        ("lsp", "joints.mat"),
        ("lspet", "joints.mat"),
        ("coco", "annotations/person_keypoints_train2017.json"),
    ],
)
def test_the_message_names_the_missing_file(name: str, missing: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^{tmp_path} does not have the layout of .* no '{missing}'"):
        read_dataset(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bbcpose", "code/bbcpose.mat"),
        ("human36m", "S5/MyPoseFeatures/D2_Positions/Discussion 2.54138969.cdf"),
        ("human36m", "S1/MySegmentsMat/ground_truth_bb/Directions.54138969.mat"),
        ("pennaction", "Penn_Action/labels/0009.mat"),
        ("cats", "CAT_00/00000001_000.jpg.cat"),
        ("lsp", "joints.mat"),
        ("lspet", "lspet_dataset/joints.mat"),
        ("coco", "annotations/person_keypoints_val2017.json"),
    ],
)
@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_the_message_names_the_damaged_file(name: str, file: str, damage: str, tmp_path: Path) -> None:
    path = MAKERS[name](tmp_path) / file
    content = path.read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, 2000, np.uint8).tobytes()
    path.write_bytes({"cut": content[: len(content) // 3], "noise": noise, "empty": b""}[damage])
    with pytest.raises(InputError) as caught:
        read_dataset(name, tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MAKERS)
def test_the_registry_has_source_and_layout(name: str) -> None:
    info = DATASETS[name]
    assert info.module == {"coco": "coco2017"}.get(name, name)
    assert info.source.startswith("http")
    assert info.layout


def test_bodies_are_cropped_by_their_height(tmp_path: Path) -> None:
    """The paper's s = c * H / 200 gives a square of side c * H around the center of the box."""
    for name, scale in (("bbcpose", 1.1), ("human36m", 1.1), ("pennaction", 1.35)):
        data = read_dataset(name, MAKERS[name](tmp_path / name))
        images = override(Config(), data.settings).images
        x, y, w, h = data.test.boxes[0]
        side = scale * h
        region = compute_crop_regions([[96, 80]], data.test.boxes[:1], images)[0]
        np.testing.assert_allclose(region, [x + w / 2 - side / 2, y + h / 2 - side / 2, side, side])


# --- BBCPose ---------------------------------------------------------------------------------------


def test_bbcpose_has_every_tenth_frame_and_the_hand_marked_frames(tmp_path: Path) -> None:
    data = read_dataset("bbcpose", make_bbcpose(tmp_path))
    expected = [f"{video}/{frame}.jpg" for video in range(1, 11) for frame in (101, 111, 121)]
    expected.remove("3/111.jpg")
    assert [str(file) for file in data.train.paths] == expected
    expected = [f"{video}/{frame}.jpg" for video in range(16, 20) for frame in (7, 9, 12)] + ["20/7.jpg"]
    assert [str(file) for file in data.test.paths] == expected
    assert data.train.fields["video"][:3] == ("1", "1", "1")
    assert tuple(ref.clip for ref in data.train.refs[:4]) == (("1", 100), ("1", 110), ("1", 120), ("2", 100))
    assert "they are missing: 1" in data.notes[0]


def test_bbcpose_joints_are_converted_from_1_based_pixels(tmp_path: Path) -> None:
    data = read_dataset("bbcpose", make_bbcpose(tmp_path))
    # Video 1, frame 101: the head is at 48.5, 17.01 (1-based); the signer's right wrist is 20 to the left.
    assert _get_point(data, "train", 0, "head") == pytest.approx([47.5, 16.01])
    assert _get_point(data, "train", 0, "right_wrist") == pytest.approx([27.5, 60.01])
    assert _get_point(data, "train", 0, "left_shoulder") == pytest.approx([57.5, 30.01])
    row = _find_row(data, "test", "20/7.jpg")
    assert _get_point(data, "test", row, "left_elbow") == pytest.approx([48 + 16 + 10 - 1, 45.07 - 1])


def test_bbcpose_boxes_are_made_from_the_joints_if_there_are_no_detections(tmp_path: Path) -> None:
    data = read_dataset("bbcpose", make_bbcpose(tmp_path))
    # The joints span 40 x 44 pixels; the margin is 0.3 times the longer side. Boxes are measured from the
    # edge of the first pixel, half a pixel before its center.
    margin = 0.3 * 44
    expected = [27.5 + 0.5 - margin, 16.01 + 0.5 - margin, 40 + 2 * margin, 44 + 2 * margin]
    assert data.train.boxes[0].tolist() == pytest.approx(expected)
    assert "not by a detector as in the paper, because there is no boxes.json" in data.notes[1]
    assert data.notes[1].endswith(": 42")


def test_bbcpose_uses_the_largest_detected_box(tmp_path: Path) -> None:
    rows = ["1/101.jpg,1,2,30,40", "1/101.jpg,3,4,50,60", "1/101.jpg,0,0,9,9", "16/7.jpg,5,6,20,30"]
    (make_bbcpose(tmp_path) / "boxes.csv").write_text("\n".join(["image,x,y,w,h", *rows]))
    data = read_dataset("bbcpose", tmp_path)
    assert data.train.boxes[0].tolist() == [3, 4, 50, 60]
    assert data.test.boxes[0].tolist() == [5, 6, 20, 30]
    assert np.isfinite(data.train.boxes).all()
    assert data.notes[1].endswith("boxes.csv does not contain them: 40")


def test_bbcpose_frames_can_come_from_videos(tmp_path: Path) -> None:
    make_bbcpose(tmp_path, as_videos=True)
    (tmp_path / "boxes.csv").write_text("image,frame,x,y,w,h\n3.mp4,110,1,2,30,40\n3.mp4,111,0,0,90,90\n")
    data = read_dataset("bbcpose", tmp_path)
    assert (len(data.train), len(data.test)) == (30, 13)
    row = _find_row(data, "train", "3.mp4", 110)  # BBCPose counts from 1 and calls this frame 111.
    assert data.train.boxes[row].tolist() == [1, 2, 30, 40]
    path = write_coco_dataset(data, tmp_path / "coco")[1]
    ref = read_ground_truth(path, list_images([path])).refs[1]
    assert (ref.path.name, ref.frame) == ("16.mp4", 8)
    [(_, pixels)] = read_frames(ref.path, [ref.frame])
    assert read_frame_number(pixels) == 8


# --- Human3.6M -------------------------------------------------------------------------------------


def test_human36m_has_the_subjects_and_frames_of_the_paper(tmp_path: Path) -> None:
    data = read_dataset("human36m", make_human36m(tmp_path))
    assert set(data.train.fields["subject"]) == {"S1", "S5", "S6", "S7", "S8", "S9"}
    assert list(data.train.frames) == [0, 50, 100] * 7
    assert [str(file) for file in data.test.paths] == ["S11/Videos/Greeting 2.60457274.mp4"] * 2
    assert list(data.test.frames) == [0, 100]
    assert {"Directions", "Discussion", "Posing", "Waiting", "Greeting", "Walking"} == set(
        data.train.fields["activity"]
    )
    assert not any("Dog" in str(file) for file in data.train.paths)
    assert data.test.fields["camera"] == ("60457274", "60457274")
    assert "no joints: S11/Directions.54138969" in data.notes[0]


def test_human36m_joints_have_their_names_and_mirror_partners(tmp_path: Path) -> None:
    data = read_dataset("human36m", make_human36m(tmp_path))
    # Joint j of frame f is at (10 + 2 j + seed, 5 + 2 j + f / 50); the first video's seed is 0.
    for name, joint in (("head", 15), ("left_shoulder", 17), ("right_shoulder", 25), ("right_hip", 1)):
        assert _get_point(data, "train", 0, name) == [10 + 2 * joint, 5 + 2 * joint]
        assert _get_point(data, "train", 2, name) == [10 + 2 * joint, 5 + 2 * joint + 2]
    for name, joint in (("left_wrist", 19), ("right_elbow", 26), ("left_knee", 7), ("right_ankle", 3)):
        assert _get_point(data, "train", 0, name) == [10 + 2 * joint, 5 + 2 * joint]
    all_joints = read_dataset("human36m32", tmp_path)
    assert all_joints.train.xy[2].tolist() == [[10 + 2 * j, 5 + 2 * j + 2] for j in range(32)]
    np.testing.assert_array_equal(all_joints.train.boxes, data.train.boxes)
    # The authors' program swaps these pairs of joints, except for the last pair: the collars, 16 and 24.
    pairs = {1: 6, 2: 7, 3: 8, 4: 9, 5: 10, 17: 25, 18: 26, 19: 27, 20: 28, 21: 29, 22: 30, 23: 31, 16: 24}
    assert {a: b for a, b in enumerate(all_joints.mirror) if a != b} == pairs | {
        b: a for a, b in pairs.items()
    }
    # The left shoulder is on the left of the image, so the person faces away.
    assert set(data.train.fields["facing"]) == {"away"}


def test_human36m_boxes_come_from_the_masks(tmp_path: Path) -> None:
    data = read_dataset("human36m", make_human36m(tmp_path))
    # The mask is 1 in rows 10 to 59 and columns 20 to 49.
    assert data.train.boxes[0].tolist() == [20, 10, 30, 50]
    # Frame 100 has no mask and the mask of frame 50 is empty, so their boxes enclose all 32 joints, which
    # span 62 x 62 pixels, with a margin of a tenth.
    margin = 6.2
    box = [10 + 0.5 - margin, 5 + 0.5 - margin, 62 + 2 * margin, 62 + 2 * margin]
    assert data.train.boxes[1].tolist() == pytest.approx([box[0], box[1] + 1, *box[2:]])
    assert data.train.boxes[2].tolist() == pytest.approx([box[0], box[1] + 2, *box[2:]])
    assert data.notes[1].endswith("22 of 23")


def test_human36m_frame_numbers_match_the_video(tmp_path: Path) -> None:
    data = read_dataset("human36m", make_human36m(tmp_path / "data"))
    path = write_coco_dataset(data, tmp_path / "coco")[0]
    refs = read_ground_truth(path, list_images([path])).refs[:3]
    for ref, frame in zip(refs, (0, 50, 100), strict=True):
        [(number, pixels)] = read_frames(ref.path, [ref.frame or 0])
        assert number == read_frame_number(pixels) == frame


def test_human36m_is_found_in_the_folders_of_the_authors_program(tmp_path: Path) -> None:
    make_human36m(tmp_path / "training" / "subjects")
    data = read_dataset("human36m", tmp_path)
    assert str(data.train.paths[0]) == "training/subjects/S1/Videos/Directions.54138969.mp4"


def test_human36m_needs_every_subject(tmp_path: Path) -> None:
    (make_human36m(tmp_path) / "S8").rename(tmp_path / "S2")
    with pytest.raises(InputError, match="no 'S8/Videos'"):
        read_dataset("human36m", tmp_path)


def test_human36m_without_cdflib_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_human36m(tmp_path)
    monkeypatch.setitem(sys.modules, "cdflib", None)
    with pytest.raises(InputError, match=r"pip install 'selfmark\[datasets\]'"):
        read_dataset("human36m", tmp_path)


# --- Penn Action -----------------------------------------------------------------------------------


def test_pennaction_tests_on_the_first_five_videos_of_each_used_action(tmp_path: Path) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    # Seven videos of each of seven actions, in order; bowling (0015 to 0021) is not used. The first five
    # videos of each action are for testing.
    used = [number for number in range(1, 50) if not 15 <= number <= 21]
    test = {f"{number:04d}" for number in used if (number - 1) % 7 < 5}
    assert set(data.test.fields["video"]) == test
    assert set(data.train.fields["video"]) == {f"{number:04d}" for number in used} - test
    assert (len(data.train), len(data.test)) == (24, 60)
    assert str(data.test.paths[0]) == "frames/0001/000001.jpg"
    assert data.test.fields["viewpoint"][0] == "front"
    assert data.notes == (
        "labeled frames left out because they are missing: 1",
        "frames left out because they have no label: 1",
        "boxes computed from the joints because the label has no box: 3",
    )


def test_pennaction_joints_and_boxes_are_converted_from_1_based_pixels(tmp_path: Path) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    row = _find_row(data, "test", "frames/0001/000002.jpg")
    assert _get_point(data, "test", row, "head") == [19, 10]
    assert _get_point(data, "test", row, "right_ankle") == [20 + 36 - 1, 10 + 48 + 1 - 1]
    # The 1-based corners 15, 5 and 76, 70 are the pixel centers 14, 4 and 75, 69. Boxes are measured from
    # the edge of the first pixel, half a pixel before its center.
    assert data.test.boxes[row].tolist() == [14.5, 4.5, 61, 65]


def test_pennaction_missing_boxes_are_made_from_the_joints(tmp_path: Path) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    assert data.test.boxes[_find_row(data, "test", "frames/0003/000001.jpg")].tolist() == [14.5, 4.5, 60, 65]
    margin = 0.15 * 48
    expected = [19 + 0.5 - margin, 10 + 0.5 - margin, 36 + 2 * margin, 48 + 2 * margin]
    for file in ("frames/0003/000002.jpg", "frames/0004/000002.jpg"):
        assert data.test.boxes[_find_row(data, "test", file)].tolist() == pytest.approx(expected)


def test_pennaction_hidden_joints_have_coordinates_but_joints_outside_the_image_do_not(
    tmp_path: Path,
) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    # In the labels, joint 12 is at (1, 1) in the first frame and at (0.75, 0.75) in the second.
    for file in ("frames/0005/000001.jpg", "frames/0005/000002.jpg"):
        row = _find_row(data, "test", file)
        assert np.flatnonzero(data.test.hidden[row]).tolist() == [3]
        assert np.flatnonzero(np.isnan(data.test.xy[row, :, 0])).tolist() == [12]


def test_objects_without_a_normalizer_are_left_out_with_a_note(tmp_path: Path) -> None:
    """Test one visible joint with a box, one without a box, and two joints at the same height."""
    root = make_pennaction(tmp_path)
    for number, joints, has_boxes in (("0001", [4], True), ("0006", [4], False), ("0007", [3, 4], True)):
        path = root / "Penn_Action" / "labels" / f"{number}.mat"
        label = body_miniatures.make_penn_label("baseball_pitch", 2)
        outside = np.setdiff1d(np.arange(13), joints)
        label["visibility"][0, outside], label["x"][0, outside], label["y"][0, outside] = 0, 1, 1
        label["y"][0, joints] = 40
        label["bbox"] = label["bbox"] if has_boxes else np.zeros((0, 0))
        scipy.io.savemat(path, label)
    data = read_dataset("pennaction", root)
    assert (len(data.train), len(data.test)) == (22, 59)
    train, test = data.notes[-2:]
    assert train.startswith("2 objects of the train split were left out because 'box', by which errors are")
    assert train.endswith("is zero or unknown; the first is in frames/0006/000001.jpg")
    assert test.startswith("1 object of the test split was left out")


def test_pennaction_labels_of_another_shape_raise(tmp_path: Path) -> None:
    path = make_pennaction(tmp_path) / "Penn_Action" / "labels" / "0001.mat"
    scipy.io.savemat(path, body_miniatures.make_penn_label("baseball_pitch", 3, y=np.zeros((3, 12))))
    with pytest.raises(InputError, match=r"0001.mat: 'y' must be 3 x 13 numbers, not 3 x 12"):
        read_dataset("pennaction", tmp_path)
    scipy.io.savemat(path, {"x": np.zeros((3, 13))})
    with pytest.raises(InputError, match=r"0001.mat has no variable 'action'"):
        read_dataset("pennaction", tmp_path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x00" * 400)
    with pytest.raises(InputError, match="MATLAB's format 7"):
        read_dataset("pennaction", tmp_path)


# --- CAT -------------------------------------------------------------------------------------------


def test_cats_have_seven_points_and_a_box_around_all_nine_points(tmp_path: Path) -> None:
    data = read_dataset("cats", make_cats(tmp_path))
    expected = {
        "left_eye": [175, 160],
        "right_eye": [239, 162],
        "mouth": [199, 199],
        "left_ear_outer": [149, 121],
        "left_ear_inner": [166, 93],
        "right_ear_inner": [281, 101],
        "right_ear_outer": [296, 133],
    }
    assert {name: _get_point(data, "train", 0, name) for name in data.names} == expected
    # The tips of the ears at 137, 78 and 312, 96 extend the box.
    assert data.train.boxes[0].tolist() == [137.5, 78.5, 312 - 137, 199 - 78]


def test_cats_have_the_split_of_zhang_et_al_if_their_lists_exist(tmp_path: Path) -> None:
    data = read_dataset("cats", make_cats(tmp_path, lists=True))
    train = ["00000001_000", "00000001_001", "00000001_002", "00000002_003", "00000002_004"]
    assert [str(file) for file in data.train.paths] == [f"CAT_00/{name}.jpg" for name in train]
    assert [str(file) for file in data.test.paths] == ["CAT_06/00001400_000.jpg"]
    note = "listed images left out because the image is missing, or its points are missing or wrong: 2"
    assert note in data.notes


def test_without_lists_every_seventh_cat_is_for_testing(tmp_path: Path) -> None:
    data = read_dataset("cats", make_cats(tmp_path))
    # There are 14 cats with points. The test split has the 7th and the 14th, whose eyes do not coincide.
    assert [file.name for file in data.test.paths] == ["00000003_006.jpg", "00001400_000.jpg"]
    assert len(data.train) == 11
    assert "every 7th image is used for testing" in data.notes[0]
    assert "images left out because their points are missing or wrong: 2" in data.notes
    assert "images left out because both eyes are at the same point: 1" in data.notes


def test_points_that_the_corrigendum_of_cats_moves_to_another_image_are_not_used(tmp_path: Path) -> None:
    """The points in the file of 00000003_019 belong to 00000003_015."""
    make_cats(tmp_path)
    names = {
        file.name
        for split in ("train", "test")
        for file in getattr(read_dataset("cats", tmp_path), split).paths
    }
    assert not {"00000003_015.jpg", "00000003_019.jpg"} & names
    (tmp_path / "CAT_00" / "00000003_015.jpg.cat").write_text(body_miniatures.FIRST_CAT)
    data = read_dataset("cats", tmp_path)
    names = {file.name for split in (data.train, data.test) for file in split.paths}
    assert "00000003_015.jpg" in names
    assert "00000003_019.jpg" not in names


def test_cats_are_found_in_the_folders_of_the_archives(tmp_path: Path) -> None:
    flat_layout = read_dataset("cats", make_cats(tmp_path / "a"))
    archives = read_dataset("cats", make_cats(tmp_path / "b", archives=True))
    assert [file.name for file in flat_layout.train.paths] == [file.name for file in archives.train.paths]
    assert str(archives.test.paths[-1]) == "CAT_DATASET_02/CAT_06/00001400_000.jpg"


def test_a_cat_without_nine_finite_points_raises(tmp_path: Path) -> None:
    file = make_cats(tmp_path) / "CAT_04" / "00001000_001.jpg.cat"
    file.write_text("8 " + " ".join(["5"] * 16))
    with pytest.raises(InputError, match=r"00001000_001.jpg.cat must contain the number 9"):
        read_dataset("cats", tmp_path)
    # A number of 400 digits is too large for a float.
    file.write_text(body_miniatures.FIRST_CAT.replace("175", "1" * 400))
    with pytest.raises(InputError, match=r"00001000_001.jpg.cat must contain the number 9"):
        read_dataset("cats", tmp_path)


# --- Leeds Sports Pose -----------------------------------------------------------------------------


def test_lsp_marks_hidden_joints(tmp_path: Path) -> None:
    data = read_dataset("lsp", make_lsp(tmp_path))
    assert [file.name for file in data.train.paths] == ["im0001.jpg", "im0002.jpg", "im1000.jpg"]
    assert [file.name for file in data.test.paths] == ["im1001.jpg", "im2000.jpg"]
    assert np.argwhere(data.train.hidden).tolist() == [[1, 5]]
    assert _get_point(data, "train", 1, "left_ankle") == pytest.approx([10 + 4 * 5, 5 + 3 * 5 + 0.002])
    assert _get_point(data, "test", 1, "head") == pytest.approx([10 + 4 * 13, 5 + 3 * 13 + 2.0])
    assert data.test.boxes[1].tolist() == pytest.approx([10.5, 7.5, 52, 39])


def test_lspet_marks_visible_joints(tmp_path: Path) -> None:
    data = read_dataset("lspet", make_lspet(tmp_path))
    assert [file.name for file in data.train.paths] == ["im00001.jpg", "im00002.jpg", "im09000.jpg"]
    assert [file.name for file in data.test.paths] == ["im09001.jpg"]
    assert np.argwhere(np.isnan(data.train.xy[..., 0])).tolist() == [[1, 5]]
    assert not data.train.hidden.any()
    assert _get_point(data, "test", 0, "right_knee") == pytest.approx([14, 8 + 9.001])


def test_lsp_cannot_be_read_as_lspet(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'joints' must be 14 x 3 x N numbers, not 3 x 14 x 2000"):
        read_dataset("lspet", make_lsp(tmp_path))


# --- COCO ------------------------------------------------------------------------------------------


def test_coco_keeps_objects_with_enough_points(tmp_path: Path) -> None:
    data = read_dataset("coco", make_coco(tmp_path))
    assert [str(file) for file in data.train.paths] == ["train2017/000000000009.jpg"] * 2 + [
        "train2017/000000000010.jpg"
    ] * 2
    assert [str(file) for file in data.test.paths[:1]] == ["val2017/000000000139.jpg"]
    assert np.isfinite(data.test.xy[..., 0]).sum(axis=1).tolist() == [17, 16, 15, 14]
    assert _get_point(data, "test", 1, "left_eye") == [10 + 2 + 20, 8]
    assert data.test.boxes[1].tolist() == [28, 3, 40.5, 60.25]
    assert np.flatnonzero(data.test.hidden[0]).tolist() == [1]
    assert data.notes[:3] == (
        "person_keypoints_train2017.json: crowds left out: 1",
        "person_keypoints_train2017.json: objects with too few annotated points left out: 1",
        "person_keypoints_train2017.json: objects whose image is missing left out: 1",
    )


def test_coco_of_another_category_with_images_in_another_folder_is_read(tmp_path: Path) -> None:
    names = ["nose", "left_paw", "right_paw", "tail"]
    category = {"id": 7, "name": "dog", "keypoints": names, "flip_idx": [0, 2, 1, 3]}
    for kind in ("train", "val"):
        write_image(tmp_path / "images" / "park" / f"{kind}.png")
        keypoints = [1, 2, 2, 3, 4, 1, 0, 0, 0, 7, 8, 2]
        labels = {"bbox": [1, 1, 9, 9], "keypoints": keypoints, "category_id": 7}
        annotation = {"id": 1, "image_id": "a", **labels}
        content = {"images": [{"id": "a", "file_name": f"park/{kind}.png"}], "annotations": [annotation]}
        (tmp_path / f"{kind}.json").write_text(json.dumps(content | {"categories": [category]}))
    data = read_dataset("coco", tmp_path)
    assert (data.category, data.names, data.mirror) == ("dog", tuple(names), (0, 2, 1, 3))
    assert str(data.test.paths[0]) == "images/park/val.png"
    np.testing.assert_array_equal(data.train.xy[0], [[1, 2], [3, 4], [np.nan, np.nan], [7, 8]])


def test_coco_message_lists_the_searched_folders(tmp_path: Path) -> None:
    (make_coco(tmp_path) / "val2017").rename(tmp_path / "pictures")
    with pytest.raises(
        InputError, match=r"val2017.json: '000000000139.jpg' was not found in any of .*/val2017, "
    ):
        read_dataset("coco", tmp_path)
