"""Readers of bodies, cats and COCO on miniatures of the official layouts."""

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
from selfmark.images.crop import crop_regions
from selfmark.images.sources import list_images
from selfmark.images.video import read_frames
from selfmark.paper.datasets.dataset import Dataset, write_coco
from selfmark.paper.datasets.registry import DATASETS, read_dataset
from tests.paper.datasets import body_miniatures
from tests.paper.datasets.body_miniatures import (
    make_bbcpose,
    make_cats,
    make_coco,
    make_human36m,
    make_lsp,
    make_lspet,
    make_pennaction,
    number_of,
    picture,
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


def _point(data: Dataset, split: str, row: int, name: str) -> list[float]:
    return getattr(data, split).xy[row, data.names.index(name)].tolist()


def _row(data: Dataset, split: str, file: str, frame: int | None = None) -> int:
    objects = getattr(data, split)
    keys = list(zip(map(str, objects.paths), objects.frames, strict=True))
    return keys.index((file, frame))


# --- what holds of all -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_written_is_what_discover_and_evaluate_read(name: str, tmp_path: Path) -> None:
    data = read_dataset(name, MAKERS[name](tmp_path / "data"))
    paths = write_coco(data, tmp_path / "coco")
    for path, split in zip(paths, (data.train, data.test), strict=True):
        truth = read_ground_truth(path, list_images([path]))
        assert [ref.path for ref in truth.refs] == [data.root.resolve() / file for file in split.paths]
        assert truth.frames == split.frames
        assert [ref.box for ref in truth.refs] == [tuple(box) for box in split.boxes.tolist()]
        np.testing.assert_array_equal(truth.xy, split.xy)
        assert (truth.names, truth.mirror, truth.normalizer) == (data.names, data.mirror, data.normalizer)
        assert set(split.fields) <= set(truth.fields)
        seen = read_ground_truth(path, list_images([path]), min_visibility=2).visible
        np.testing.assert_array_equal(seen, np.isfinite(split.xy[..., 0]) & ~split.hidden)


@pytest.mark.parametrize("name", MAKERS)
def test_left_and_right_are_each_others_mirror_partners(name: str, tmp_path: Path) -> None:
    data = read_dataset(name, MAKERS[name](tmp_path / "data"))
    for index, partner in enumerate(data.mirror):
        word = data.names[index]
        other = {"left": "right", "right": "left"}.get(word.split("_")[0])
        assert data.names[partner] == (word if other is None else other + word[word.index("_") :])


@pytest.mark.parametrize(
    ("name", "looked_for"),
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
def test_another_layout_is_told_which_file_was_looked_for(name: str, looked_for: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^{tmp_path} is not laid out as .* no '{looked_for}'"):
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
def test_a_broken_file_is_named_in_one_sentence(name: str, file: str, damage: str, tmp_path: Path) -> None:
    path = MAKERS[name](tmp_path) / file
    whole = path.read_bytes()
    noise = np.random.default_rng(0).integers(0, 256, 2000, np.uint8).tobytes()
    path.write_bytes({"cut": whole[: len(whole) // 3], "noise": noise, "empty": b""}[damage])
    with pytest.raises(InputError) as refusal:
        read_dataset(name, tmp_path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", MAKERS)
def test_registered_with_its_source_and_layout(name: str) -> None:
    known = DATASETS[name]
    assert known.module == {"coco": "coco2017"}.get(name, name)
    assert known.source.startswith("http")
    assert known.layout


def test_the_paper_crops_bodies_by_their_height(tmp_path: Path) -> None:
    """s = c * H / 200 of the paper, so a square of side c * H about the middle of the box."""
    for name, scale in (("bbcpose", 1.1), ("human36m", 1.1), ("pennaction", 1.35)):
        data = read_dataset(name, MAKERS[name](tmp_path / name))
        images = override(Config(), data.settings).images
        x, y, w, h = data.test.boxes[0]
        side = scale * h
        region = crop_regions([[96, 80]], data.test.boxes[:1], images)[0]
        np.testing.assert_allclose(region, [x + w / 2 - side / 2, y + h / 2 - side / 2, side, side])


# --- BBCPose ---------------------------------------------------------------------------------------


def test_bbcpose_takes_a_frame_in_ten_and_the_frames_marked_by_hand(tmp_path: Path) -> None:
    data = read_dataset("bbcpose", make_bbcpose(tmp_path))
    expected = [f"{video}/{frame}.jpg" for video in range(1, 11) for frame in (101, 111, 121)]
    expected.remove("3/111.jpg")
    assert [str(file) for file in data.train.paths] == expected
    marked = [f"{video}/{frame}.jpg" for video in range(16, 20) for frame in (7, 9, 12)] + ["20/7.jpg"]
    assert [str(file) for file in data.test.paths] == marked
    assert data.train.fields["video"][:3] == ("1", "1", "1")
    assert tuple(ref.clip for ref in data.train.refs[:4]) == (("1", 100), ("1", 110), ("1", 120), ("2", 100))
    assert "they are not there: 1" in data.notes[0]


def test_bbcpose_joints_are_counted_from_one(tmp_path: Path) -> None:
    data = read_dataset("bbcpose", make_bbcpose(tmp_path))
    # Video 1, frame 101: the head is at 48.5, 17.01 from 1; the signer's right wrist 20 to the left of it.
    assert _point(data, "train", 0, "head") == pytest.approx([47.5, 16.01])
    assert _point(data, "train", 0, "right_wrist") == pytest.approx([27.5, 60.01])
    assert _point(data, "train", 0, "left_shoulder") == pytest.approx([57.5, 30.01])
    row = _row(data, "test", "20/7.jpg")
    assert _point(data, "test", row, "left_elbow") == pytest.approx([48 + 16 + 10 - 1, 45.07 - 1])


def test_bbcpose_without_detections_has_boxes_around_the_joints(tmp_path: Path) -> None:
    data = read_dataset("bbcpose", make_bbcpose(tmp_path))
    # Wrists 40 apart, 44 from head to wrist: 0.3 * 44 more on each side; edges are half a pixel before.
    more = 0.3 * 44
    expected = [27.5 + 0.5 - more, 16.01 + 0.5 - more, 40 + 2 * more, 44 + 2 * more]
    assert data.train.boxes[0].tolist() == pytest.approx(expected)
    assert "not by a detector as in the paper, because there is no boxes.json" in data.notes[1]
    assert data.notes[1].endswith(": 42")


def test_bbcpose_takes_the_largest_box_a_detector_gives(tmp_path: Path) -> None:
    rows = ["1/101.jpg,1,2,30,40", "1/101.jpg,3,4,50,60", "1/101.jpg,0,0,9,9", "16/7.jpg,5,6,20,30"]
    (make_bbcpose(tmp_path) / "boxes.csv").write_text("\n".join(["image,x,y,w,h", *rows]))
    data = read_dataset("bbcpose", tmp_path)
    assert data.train.boxes[0].tolist() == [3, 4, 50, 60]
    assert data.test.boxes[0].tolist() == [5, 6, 20, 30]
    assert np.isfinite(data.train.boxes).all()
    assert data.notes[1].endswith("boxes.csv does not have them: 40")


def test_bbcpose_as_films_gives_frames_that_can_be_paired_in_time(tmp_path: Path) -> None:
    make_bbcpose(tmp_path, films=True)
    (tmp_path / "boxes.csv").write_text("image,frame,x,y,w,h\n3.mp4,110,1,2,30,40\n3.mp4,111,0,0,90,90\n")
    data = read_dataset("bbcpose", tmp_path)
    assert (len(data.train), len(data.test)) == (30, 13)
    row = _row(data, "train", "3.mp4", 110)  # frame 111, counted from 1
    assert data.train.boxes[row].tolist() == [1, 2, 30, 40]
    path = write_coco(data, tmp_path / "coco")[1]
    ref = read_ground_truth(path, list_images([path])).refs[1]
    assert (ref.path.name, ref.frame) == ("16.mp4", 8)
    [(_, pixels)] = read_frames(ref.path, [ref.frame])
    assert number_of(pixels) == 8


# --- Human3.6M -------------------------------------------------------------------------------------


def test_human36m_takes_one_frame_in_fifty_of_six_subjects_and_in_a_hundred_of_one(tmp_path: Path) -> None:
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


def test_human36m_joints_are_those_of_motion_capture(tmp_path: Path) -> None:
    data = read_dataset("human36m", make_human36m(tmp_path))
    # Joint j of frame f lies at (10 + 2 j + seed, 5 + 2 j + f / 50); the first video's seed is 0.
    for name, joint in (("head", 15), ("left_shoulder", 17), ("right_shoulder", 25), ("right_hip", 1)):
        assert _point(data, "train", 0, name) == [10 + 2 * joint, 5 + 2 * joint]
        assert _point(data, "train", 2, name) == [10 + 2 * joint, 5 + 2 * joint + 2]
    for name, joint in (("left_wrist", 19), ("right_elbow", 26), ("left_knee", 7), ("right_ankle", 3)):
        assert _point(data, "train", 0, name) == [10 + 2 * joint, 5 + 2 * joint]
    everything = read_dataset("human36m32", tmp_path)
    assert everything.train.xy[2].tolist() == [[10 + 2 * j, 5 + 2 * j + 2] for j in range(32)]
    np.testing.assert_array_equal(everything.train.boxes, data.train.boxes)
    # The pairs of joints that the authors' program exchanges, and the collars.
    pairs = {1: 6, 2: 7, 3: 8, 4: 9, 5: 10, 17: 25, 18: 26, 19: 27, 20: 28, 21: 29, 22: 30, 23: 31, 16: 24}
    assert {a: b for a, b in enumerate(everything.mirror) if a != b} == pairs | {
        b: a for a, b in pairs.items()
    }
    # The left shoulder is on the left of the picture here, so the back is seen.
    assert set(data.train.fields["facing"]) == {"away"}


def test_human36m_boxes_are_those_of_the_masks(tmp_path: Path) -> None:
    data = read_dataset("human36m", make_human36m(tmp_path))
    # Ones in rows 10 to 59 and columns 20 to 49.
    assert data.train.boxes[0].tolist() == [20, 10, 30, 50]
    # No mask is left for frame 100, and that of frame 50 is empty: all 32 joints, 62 wide and high.
    more = 6.2
    around = [10 + 0.5 - more, 5 + 0.5 - more, 62 + 2 * more, 62 + 2 * more]
    assert data.train.boxes[1].tolist() == pytest.approx([around[0], around[1] + 1, *around[2:]])
    assert data.train.boxes[2].tolist() == pytest.approx([around[0], around[1] + 2, *around[2:]])
    assert data.notes[1].endswith("22 of 23")


def test_human36m_frames_decode_to_the_frames_of_their_joints(tmp_path: Path) -> None:
    data = read_dataset("human36m", make_human36m(tmp_path / "data"))
    path = write_coco(data, tmp_path / "coco")[0]
    refs = read_ground_truth(path, list_images([path])).refs[:3]
    for ref, frame in zip(refs, (0, 50, 100), strict=True):
        [(number, pixels)] = read_frames(ref.path, [ref.frame or 0])
        assert number == number_of(pixels) == frame


def test_human36m_below_the_folders_of_the_authors_program(tmp_path: Path) -> None:
    make_human36m(tmp_path / "training" / "subjects")
    data = read_dataset("human36m", tmp_path)
    assert str(data.train.paths[0]) == "training/subjects/S1/Videos/Directions.54138969.mp4"


def test_human36m_needs_every_subject(tmp_path: Path) -> None:
    (make_human36m(tmp_path) / "S8").rename(tmp_path / "S2")
    with pytest.raises(InputError, match="no 'S8/Videos'"):
        read_dataset("human36m", tmp_path)


def test_human36m_says_how_to_install_what_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_human36m(tmp_path)
    monkeypatch.setitem(sys.modules, "cdflib", None)
    with pytest.raises(InputError, match=r"pip install 'selfmark\[datasets\]'"):
        read_dataset("human36m", tmp_path)


# --- Penn Action -----------------------------------------------------------------------------------


def test_pennaction_tests_on_the_first_five_videos_of_six_actions(tmp_path: Path) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    # Seven videos of each of seven actions, in order; bowling (0015 to 0021) is not among the six.
    wanted = [number for number in range(1, 50) if not 15 <= number <= 21]
    test = {f"{number:04d}" for number in wanted if (number - 1) % 7 < 5}
    assert set(data.test.fields["video"]) == test
    assert set(data.train.fields["video"]) == {f"{number:04d}" for number in wanted} - test
    assert (len(data.train), len(data.test)) == (24, 60)
    assert str(data.test.paths[0]) == "frames/0001/000001.jpg"
    assert data.test.fields["viewpoint"][0] == "front"
    assert data.notes == (
        "labeled frames left out, because they are not there: 1",
        "frames left out, because they have no label: 1",
        "boxes made around the joints, because there are none: 3",
    )


def test_pennaction_joints_and_boxes_are_counted_from_one(tmp_path: Path) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    row = _row(data, "test", "frames/0001/000002.jpg")
    assert _point(data, "test", row, "head") == [19, 10]
    assert _point(data, "test", row, "right_ankle") == [20 + 36 - 1, 10 + 48 + 1 - 1]
    # From 15, 5 to 76, 70 counted from 1: centers 14, 4 to 75, 69, and edges half a pixel before.
    assert data.test.boxes[row].tolist() == [14.5, 4.5, 61, 65]


def test_pennaction_boxes_that_are_missing_are_made_around_the_joints(tmp_path: Path) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    assert data.test.boxes[_row(data, "test", "frames/0003/000001.jpg")].tolist() == [14.5, 4.5, 60, 65]
    more = 0.15 * 48
    expected = [19 + 0.5 - more, 10 + 0.5 - more, 36 + 2 * more, 48 + 2 * more]
    for file in ("frames/0003/000002.jpg", "frames/0004/000002.jpg"):
        assert data.test.boxes[_row(data, "test", file)].tolist() == pytest.approx(expected)


def test_pennaction_hidden_joints_have_places_unless_they_are_outside(tmp_path: Path) -> None:
    data = read_dataset("pennaction", make_pennaction(tmp_path))
    for file in ("frames/0005/000001.jpg", "frames/0005/000002.jpg"):  # at (1, 1) and (0.75, 0.75)
        row = _row(data, "test", file)
        assert np.flatnonzero(data.test.hidden[row]).tolist() == [3]
        assert np.flatnonzero(np.isnan(data.test.xy[row, :, 0])).tolist() == [12]


def test_frames_whose_joints_give_no_box_with_an_area_are_left_out_and_counted(tmp_path: Path) -> None:
    """A single joint in sight, once with a box of its own and once without; two joints in one row."""
    root = make_pennaction(tmp_path)
    for number, joints, boxes in (("0001", [4], True), ("0006", [4], False), ("0007", [3, 4], True)):
        path = root / "Penn_Action" / "labels" / f"{number}.mat"
        label = body_miniatures.penn_label("baseball_pitch", 2)
        away = np.setdiff1d(np.arange(13), joints)
        label["visibility"][0, away], label["x"][0, away], label["y"][0, away] = 0, 1, 1
        label["y"][0, joints] = 40
        label["bbox"] = label["bbox"] if boxes else np.zeros((0, 0))
        scipy.io.savemat(path, label)
    data = read_dataset("pennaction", root)
    assert (len(data.train), len(data.test)) == (22, 59)
    train, test = data.notes[-2:]
    assert train.startswith("2 images of the train split were left out, because 'box', which errors are")
    assert train.endswith("has no length in them, the first is frames/0006/000001.jpg")
    assert test.startswith("1 images of the test split were left out")


def test_pennaction_labels_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = make_pennaction(tmp_path) / "Penn_Action" / "labels" / "0001.mat"
    scipy.io.savemat(path, body_miniatures.penn_label("baseball_pitch", 3, y=np.zeros((3, 12))))
    with pytest.raises(InputError, match=r"0001.mat: 'y' must be 3 x 13 numbers, and is 3 x 12"):
        read_dataset("pennaction", tmp_path)
    scipy.io.savemat(path, {"x": np.zeros((3, 13))})
    with pytest.raises(InputError, match=r"0001.mat has no variable 'action'"):
        read_dataset("pennaction", tmp_path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x00" * 400)
    with pytest.raises(InputError, match=r"version 7.3"):
        read_dataset("pennaction", tmp_path)


# --- CAT -------------------------------------------------------------------------------------------


def test_cats_have_seven_points_without_the_tips_of_the_ears(tmp_path: Path) -> None:
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
    assert {name: _point(data, "train", 0, name) for name in data.names} == expected
    # The box is around all nine: the tips at 137, 78 and 312, 96 are the highest and the widest.
    assert data.train.boxes[0].tolist() == [137.5, 78.5, 312 - 137, 199 - 78]


def test_cats_are_split_as_zhang_et_al_do_where_their_lists_are(tmp_path: Path) -> None:
    data = read_dataset("cats", make_cats(tmp_path, lists=True))
    train = ["00000001_000", "00000001_001", "00000001_002", "00000002_003", "00000002_004"]
    assert [str(file) for file in data.train.paths] == [f"CAT_00/{name}.jpg" for name in train]
    assert [str(file) for file in data.test.paths] == ["CAT_06/00001400_000.jpg"]
    assert "listed images left out, because they are not there or have no points: 2" in data.notes


def test_cats_without_lists_test_on_every_seventh(tmp_path: Path) -> None:
    data = read_dataset("cats", make_cats(tmp_path))
    # Of 14 cats with points of their own the 7th and the 14th; the one whose eyes coincide trains.
    assert [file.name for file in data.test.paths] == ["00000003_006.jpg", "00001400_000.jpg"]
    assert len(data.train) == 11
    assert "every 7th image is for testing" in data.notes[0]
    assert "images left out, because they have no points of their own: 2" in data.notes
    assert "images left out, because both eyes lie in one place: 1" in data.notes


def test_cats_follow_the_corrigendum(tmp_path: Path) -> None:
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


def test_cats_as_the_two_archives_unpack(tmp_path: Path) -> None:
    one, other = (
        read_dataset("cats", make_cats(tmp_path / "a")),
        read_dataset("cats", make_cats(tmp_path / "b", archives=True)),
    )
    assert [file.name for file in one.train.paths] == [file.name for file in other.train.paths]
    assert str(other.test.paths[-1]) == "CAT_DATASET_02/CAT_06/00001400_000.jpg"


def test_a_cat_with_eight_points_is_refused(tmp_path: Path) -> None:
    file = make_cats(tmp_path) / "CAT_04" / "00001000_001.jpg.cat"
    file.write_text("8 " + " ".join(["5"] * 16))
    with pytest.raises(InputError, match=r"00001000_001.jpg.cat must hold the number 9"):
        read_dataset("cats", tmp_path)
    file.write_text(body_miniatures.FIRST_CAT.replace("175", "1" * 400))
    with pytest.raises(InputError, match=r"00001000_001.jpg.cat must hold the number 9"):
        read_dataset("cats", tmp_path)


# --- Leeds Sports Pose -----------------------------------------------------------------------------


def test_lsp_says_where_joints_are_hidden(tmp_path: Path) -> None:
    data = read_dataset("lsp", make_lsp(tmp_path))
    assert [file.name for file in data.train.paths] == ["im0001.jpg", "im0002.jpg", "im1000.jpg"]
    assert [file.name for file in data.test.paths] == ["im1001.jpg", "im2000.jpg"]
    assert np.argwhere(data.train.hidden).tolist() == [[1, 5]]
    assert _point(data, "train", 1, "left_ankle") == pytest.approx([10 + 4 * 5, 5 + 3 * 5 + 0.002])
    assert _point(data, "test", 1, "head") == pytest.approx([10 + 4 * 13, 5 + 3 * 13 + 2.0])
    assert data.test.boxes[1].tolist() == pytest.approx([10.5, 7.5, 52, 39])


def test_lspet_says_where_joints_are_seen(tmp_path: Path) -> None:
    data = read_dataset("lspet", make_lspet(tmp_path))
    assert [file.name for file in data.train.paths] == ["im00001.jpg", "im00002.jpg", "im09000.jpg"]
    assert [file.name for file in data.test.paths] == ["im09001.jpg"]
    assert np.argwhere(np.isnan(data.train.xy[..., 0])).tolist() == [[1, 5]]
    assert not data.train.hidden.any()
    assert _point(data, "test", 0, "right_knee") == pytest.approx([14, 8 + 9.001])


def test_lsp_and_lspet_are_not_taken_for_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'joints' must be 14 x 3 x N numbers, and is 3 x 14 x 2000"):
        read_dataset("lspet", make_lsp(tmp_path))


# --- COCO ------------------------------------------------------------------------------------------


def test_coco_keeps_objects_with_enough_points(tmp_path: Path) -> None:
    data = read_dataset("coco", make_coco(tmp_path))
    assert [str(file) for file in data.train.paths] == ["train2017/000000000009.jpg"] * 2 + [
        "train2017/000000000010.jpg"
    ] * 2
    assert [str(file) for file in data.test.paths[:1]] == ["val2017/000000000139.jpg"]
    assert np.isfinite(data.test.xy[..., 0]).sum(axis=1).tolist() == [17, 16, 15, 14]
    assert _point(data, "test", 1, "left_eye") == [10 + 2 + 20, 8]
    assert data.test.boxes[1].tolist() == [28, 3, 40.5, 60.25]
    assert np.flatnonzero(data.test.hidden[0]).tolist() == [1]
    assert data.notes[:3] == (
        "person_keypoints_train2017.json: crowds left out: 1",
        "person_keypoints_train2017.json: objects with too few annotated points left out: 1",
        "person_keypoints_train2017.json: objects whose image is missing left out: 1",
    )


def test_coco_of_any_category_and_with_images_elsewhere(tmp_path: Path) -> None:
    names = ["nose", "left_paw", "right_paw", "tail"]
    category = {"id": 7, "name": "dog", "keypoints": names, "flip_idx": [0, 2, 1, 3]}
    for kind in ("train", "val"):
        picture(tmp_path / "images" / "park" / f"{kind}.png")
        keypoints = [1, 2, 2, 3, 4, 1, 0, 0, 0, 7, 8, 2]
        box = {"bbox": [1, 1, 9, 9], "keypoints": keypoints, "category_id": 7}
        annotation = {"id": 1, "image_id": "a", **box}
        content = {"images": [{"id": "a", "file_name": f"park/{kind}.png"}], "annotations": [annotation]}
        (tmp_path / f"{kind}.json").write_text(json.dumps(content | {"categories": [category]}))
    data = read_dataset("coco", tmp_path)
    assert (data.category, data.names, data.mirror) == ("dog", tuple(names), (0, 2, 1, 3))
    assert str(data.test.paths[0]) == "images/park/val.png"
    np.testing.assert_array_equal(data.train.xy[0], [[1, 2], [3, 4], [np.nan, np.nan], [7, 8]])


def test_coco_says_where_it_looked_for_images(tmp_path: Path) -> None:
    (make_coco(tmp_path) / "val2017").rename(tmp_path / "pictures")
    with pytest.raises(InputError, match=r"val2017.json: '000000000139.jpg' is in none of .*/val2017, "):
        read_dataset("coco", tmp_path)
