"""Atomic writes of files and folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from selfmark.errors import InputError
from selfmark.run.files import atomic_folder, atomic_open, atomic_write, write_json


def test_a_temporary_file_can_keep_the_suffix(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "clip.mp4") as temporary:
        assert temporary.name == "clip.mp4.part"
    with atomic_write(tmp_path / "clip.mp4", keep_suffix=True) as temporary:
        assert temporary.name == f"clip.{os.getpid()}.part.mp4"
        temporary.write_text("new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("clip.mp4", "new")]


def test_concurrent_writers_do_not_mix_their_content(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    with atomic_write(path, unique=True) as first, atomic_write(path, unique=True) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first", "the last writer to finish wins"
    assert list(tmp_path.iterdir()) == [path]


def test_files_of_killed_processes_are_removed_but_not_those_of_running_ones(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    killed, running = tmp_path / f"clip.{child.pid}.part.mp4", tmp_path / f"clip.{os.getppid()}.part.mp4"
    other = tmp_path / f"clips.{child.pid}.part.mp4"
    for path in (killed, running, other):
        path.touch()
    with atomic_write(tmp_path / "clip.mp4", keep_suffix=True):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "clip.mp4", running, other])


def test_a_library_may_replace_the_temporary_file(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "clip.mp4", keep_suffix=True) as temporary:
        temporary.unlink()
        temporary.write_text("new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("clip.mp4", "new")]


def test_the_first_of_two_concurrent_writers_fails_instead_of_publishing_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "landmarks.csv"

    def write_twice() -> None:
        with atomic_open(path) as first:
            first.write("first")
            with atomic_open(path) as second:
                second.write("second")
        pytest.fail("the first writer reported success")

    with pytest.raises(InputError, match="another process is writing"):
        write_twice()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("landmarks.csv", "second")]


def test_a_failed_writer_leaves_the_temporary_file_of_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "landmarks.csv"
    first = atomic_open(path)
    first.__enter__()
    with atomic_open(path) as second:
        assert not first.__exit__(RuntimeError, RuntimeError(), None)
        second.write("second")
    assert path.read_text() == "second"


def test_the_first_of_two_processes_that_write_a_folder_fails(tmp_path: Path) -> None:
    first = atomic_folder(tmp_path / "frames")
    first.__enter__()
    second = atomic_folder(tmp_path / "frames")
    (second.__enter__() / "0.png").touch()
    with pytest.raises(InputError, match="another process is writing"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert [path.name for path in tmp_path.rglob("*")] == ["frames", "0.png"]


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
