"""Test the commands `selfmark datasets list`, `check` and `write`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from selfmark.paper.datasets.dataset_registry import DATASETS, DatasetInfo, read_dataset
from selfmark.paper.datasets.layout_check import LayoutLine, check_layout, check_sample
from tests.conftest import selfmark
from tests.paper.datasets import face_miniatures
from tests.paper.datasets.body_miniatures import make_bbcpose, make_cats, make_human36m
from tests.paper.datasets.test_body_readers import MAKERS as BODY_MAKERS
from tests.paper.datasets.test_dataset import MAKERS as FACE_MAKERS


def _read_table_rows(text: str) -> list[list[str]]:
    """Return the words of each line of a printed table, without the vertical bars between columns."""
    return [[word for word in line.split() if word not in "│┃|"] for line in text.splitlines()]


def test_list_shows_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert selfmark("datasets", "list") == 0
    text = capsys.readouterr().out
    for name, data in DATASETS.items():
        assert f"{name:<11}{data.title}" in text
        assert data.source in text
        assert "http" in data.source


def test_check_shows_existing_files_and_expected_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root = face_miniatures.make_aflw(tmp_path / "aflw_release-2")
    (root / "output/image00001_50001.jpg").unlink()
    assert selfmark("datasets", "check", "aflw", tmp_path) == 0
    output = capsys.readouterr()
    rows = _read_table_rows(output.out)
    assert ["aflw_test_images.txt", "aflw_test_images.txt"] in rows
    assert ["train", "4", "10112"] in rows
    assert ["test", "3", "2991"] in rows
    note = "1 object of the train split was left out because of missing images; the first missing image is "
    assert note + "output/image00001_50001.jpg" in output.err


@pytest.mark.parametrize(
    ("line", "existing"),
    [
        ("a.txt or b.txt", ("b.txt",)),
        ("1/1.jpg to 3/ (or 1.mp4 to 3.mp4)", ("1/1.jpg", "3/")),
        ("S1/*.cdf, and likewise for S5 and S6", ("S1/*.cdf",)),
        ("boxes.csv (optional)", ()),
    ],
)
def test_paths_are_found_in_the_sentences_of_a_layout(
    tmp_path: Path, line: str, existing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("b.txt", "1/1.jpg", "3/1.jpg", "S1/x.cdf", "S5/x.cdf"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setitem(DATASETS, "one", DatasetInfo("One", "one", "https://one", (line,)))
    assert check_layout("one", tmp_path) == [LayoutLine(line, existing)]


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_can_be_checked_and_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = (FACE_MAKERS | BODY_MAKERS)[name](tmp_path / "data")
    for line in check_layout(name, root):
        assert line.existing or "optional" in line.expected, line
    assert selfmark("datasets", "check", name, root) == 0
    assert selfmark("datasets", "write", name, root, "-o", tmp_path / "out") == 0
    output = capsys.readouterr().out
    for split, objects in read_dataset(name, root).splits.items():
        content = json.loads((tmp_path / "out" / f"{split}.json").read_text())
        assert len(content["annotations"]) == len(objects)
        assert f"{split}.json: {len(objects)} object" in output


def test_check_of_an_unusable_data_set_ends_with_a_one_sentence_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root = face_miniatures.make_celeba(tmp_path)
    (root / "MAFL/testing.txt").unlink()
    assert selfmark("datasets", "check", "celeba", root) == 2
    output = capsys.readouterr()
    rows = _read_table_rows(output.out)
    assert ["MAFL/training.txt", "MAFL/training.txt"] in rows
    assert ["MAFL/testing.txt", "-"] in rows
    assert DATASETS["celeba"].source in output.out
    assert output.err.count("\n") == 1
    assert "contains no 'MAFL/testing.txt'" in output.err


def test_check_warns_of_lists_that_do_not_fit_the_images(tmp_path: Path) -> None:
    """If the list of the in-the-wild images is used with the aligned images, most points lie outside them."""
    root = face_miniatures.make_celeba(tmp_path)
    assert check_sample(read_dataset("celeba", root)) == []
    path = root / "Anno/list_landmarks_align_celeba.txt"
    lines = path.read_text().splitlines()
    wild_lines = [
        " ".join([line.split()[0], *(f"{6 * int(word)}" for word in line.split()[1:])]) for line in lines[2:]
    ]
    face_miniatures.write_lines(path, lines[:2] + wild_lines)
    problems = check_sample(read_dataset("celeba", root))
    assert len(problems) == 3
    assert "30 of 30 points in a sample of the train split lie outside" in problems[0]
    (root / "Img/img_align_celeba/000007.jpg").write_bytes(b"no image")
    assert any(
        "cannot be opened; the first is" in problem for problem in check_sample(read_dataset("celeba", root))
    )


@pytest.mark.parametrize("name", DATASETS)
def test_hidden_files_are_ignored(name: str, tmp_path: Path) -> None:
    """Files like ._1.jpg, which macOS adds to folders and archives, are ignored."""
    root = (FACE_MAKERS | BODY_MAKERS)[name](tmp_path)
    before = read_dataset(name, root)
    for path in [path for path in root.rglob("*") if path.is_file() and path.suffix != ".json"]:
        path.with_name(f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
    after = read_dataset(name, root)
    assert {split: part.paths for split, part in after.splits.items()} == {
        split: part.paths for split, part in before.splits.items()
    }
    assert after.notes == before.notes


def _flatten_celeba(root: Path) -> None:
    """Move all lists and the folder of images to the root, as on some mirrors."""
    for folder in ("Anno", "Img", "Eval"):
        for path in (root / folder).iterdir():
            path.rename(root / path.name)
    for part in ("training", "testing"):
        (root / "MAFL" / f"{part}.txt").rename(root / f"mafl_{part}.txt")


def _move_into(root: Path, inner: str, *names: str) -> None:
    (root / inner).mkdir(parents=True)
    for name in names:
        (root / name).rename(root / inner / name)


@pytest.mark.parametrize(
    ("name", "make", "existing"),
    [
        ("cats", lambda root: make_cats(root, archives=True), "CAT_DATASET_01/CAT_00/00000001_000.jpg"),
        ("celeba", lambda root: _flatten_celeba(face_miniatures.make_celeba(root)), "mafl_training.txt"),
        (
            "human36m",
            lambda root: _move_into(
                make_human36m(root), "training/subjects", "S1", "S5", "S6", "S7", "S8", "S9", "S11"
            ),
            "training/subjects/S1/Videos/*.mp4",
        ),
        (
            "bbcpose",
            lambda root: (
                _move_into(
                    make_bbcpose(root), "bbcpose_data_1.0", *map(str, range(1, 11)), *map(str, range(16, 21))
                ),
                _move_into(root, "bbcpose_extbbcpose_code_1.0", "code"),
            ),
            "bbcpose_extbbcpose_code_1.0/code/bbcpose.mat",
        ),
        (
            "ls3d",
            lambda root: (face_miniatures.make_ls3d(root) / "LS3D-W-balanced-20-03-2017/new_dataset").rename(
                root / "new_dataset"
            ),
            "new_dataset/",
        ),
    ],
)
def test_check_finds_files_in_alternative_folders(
    name: str, make: Callable[[Path], object], existing: str, tmp_path: Path
) -> None:
    """Archives and mirrors use different folders."""
    make(tmp_path)
    assert len(read_dataset(name, tmp_path).train)
    lines = check_layout(name, tmp_path)
    assert all(line.existing or "optional" in line.expected for line in lines), lines
    assert existing in [path for line in lines for path in line.existing]


def test_check_of_a_missing_folder_shows_the_layout_before_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selfmark("datasets", "check", "mtfl", tmp_path / "nowhere") == 2
    output = capsys.readouterr()
    assert "lfw_5590/" in output.out
    assert "source: https://mmlab.ie.cuhk.edu.hk" in output.out
    assert "nowhere is not a folder; give the folder with the files of MTFL" in output.err


def test_write_writes_all_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = face_miniatures.make_celeba(tmp_path / "celeba")
    boxes = [f"{number:06d}.jpg,30,60,110,120" for number in range(1, 9)]
    face_miniatures.write_lines(tmp_path / "boxes.csv", ["image,x,y,w,h", *boxes])
    values = ",".join(f"{50.5 + value // 2}" for value in range(136))
    points = [f"{number:06d}.jpg," + values for number in range(1, 9)]
    header = "image," + ",".join(f"x{number},y{number}" for number in range(68))
    face_miniatures.write_lines(tmp_path / "points.csv", [header, *points])
    out = tmp_path / "out"
    options = ("-o", out, "--boxes", tmp_path / "boxes.csv", "--points", tmp_path / "points.csv")
    assert selfmark("datasets", "write", "celeba", root, *options) == 0
    output = capsys.readouterr()
    assert f"{out}/fit.json: 3 objects, 68 points" in output.out
    for split, count in (("train", 6), ("fit", 3), ("test", 2)):
        content = json.loads((out / f"{split}.json").read_text())
        assert len(content["annotations"]) == count
        assert content["annotations"][0]["bbox"] == [30, 60, 110, 120]
        assert content["annotations"][0]["keypoints"][:3] == [50.5, 50.5, 2]
        assert Path(content["images"][0]["file_name"]).is_file()


def test_boxes_and_find_faces_cannot_be_combined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("-o", tmp_path / "out", "--boxes", tmp_path / "boxes.csv", "--find-faces")
    assert selfmark("datasets", "write", "celeba", tmp_path, *options) == 2
    assert "give one of them" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["check", "write"])
def test_an_unknown_data_set_ends_with_an_error_message(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("-o", tmp_path / "out") if command == "write" else ()
    assert selfmark("datasets", command, "imagenet", tmp_path, *options) == 2
    assert "there is no data set 'imagenet'. The data sets are celeba" in capsys.readouterr().err
