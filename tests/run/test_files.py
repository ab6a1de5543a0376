"""Atomic writes of files and folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfmark.run.files import atomic_folder, atomic_write, write_json


def test_a_temporary_file_can_keep_the_suffix(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "clip.mp4") as temporary:
        assert temporary.name == "clip.mp4.part"
    with atomic_write(tmp_path / "clip.mp4", keep_suffix=True) as temporary:
        assert temporary.name == "clip.part.mp4"
        temporary.write_text("new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("clip.mp4", "new")]


def test_concurrent_writers_do_not_mix_their_content(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    with atomic_write(path, unique=True) as first, atomic_write(path, unique=True) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first", "the last writer to finish wins"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("options", [{}, {"keep_suffix": True}, {"unique": True}])
def test_an_error_leaves_the_old_file_unchanged(options: dict[str, bool], tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("old")

    def write_half() -> None:
        with atomic_write(path, **options) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("points.csv", "old")]


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    leftover = tmp_path / "frames.part"
    leftover.mkdir()
    (leftover / "old.png").touch()
    with atomic_folder(tmp_path / "frames") as temporary:
        assert list(temporary.iterdir()) == []
        (temporary / "0.png").touch()
        assert not (tmp_path / "frames").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["frames", "0.png"]


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    def write_half() -> None:
        with atomic_folder(tmp_path / "frames") as temporary:
            (temporary / "0.png").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    values = {"a": float("nan"), "b": [1, (float("inf"), -float("inf"), 0.5)], "c": {"d": None}}

    def refuse(name: str) -> None:
        raise AssertionError(name)

    write_json(values, tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert content == {"a": None, "b": [1, [None, None, 0.5]], "c": {"d": None}}
