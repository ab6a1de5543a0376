"""Test atomic writes of files and folders."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from selfmark.errors import DiskError, InputError
from selfmark.run import files
from selfmark.run.files import atomic_folder, atomic_open, atomic_write, write_json
from selfmark.run.output_folder import output_folder


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


def test_temporary_files_of_killed_processes_are_removed_but_not_of_running_ones(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    killed, running = tmp_path / f"clip.{child.pid}.part.mp4", tmp_path / f"clip.{os.getppid()}.part.mp4"
    other_part = tmp_path / f"clips.{child.pid}.part.mp4"
    for path in (killed, running, other_part):
        path.touch()
    with atomic_write(tmp_path / "clip.mp4", keep_suffix=True):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "clip.mp4", running, other_part])


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


def test_a_writer_never_writes_into_the_file_of_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writer replaces the temporary file just before the first one opens it by path to sync it."""
    path, second, open_file = (
        tmp_path / "landmarks.csv",
        atomic_open(tmp_path / "landmarks.csv"),
        files.open_file,
    )
    handles = []

    def start_second_writer(*arguments: Any) -> int:
        if not handles:
            monkeypatch.setattr(files, "open_file", open_file)
            handles.append(second.__enter__())
        return open_file(*arguments)

    monkeypatch.setattr(files, "open_file", start_second_writer)

    def write_first() -> None:
        with atomic_open(path) as first:
            first.write("the first file")

    with pytest.raises(InputError, match="another process is writing"):
        write_first()
    handles[0].write("second")
    second.__exit__(None, None, None)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("landmarks.csv", "second")]


@pytest.mark.parametrize("finished_first", [0, 1])
def test_concurrent_writers_of_a_folder_do_not_mix_their_files(finished_first: int, tmp_path: Path) -> None:
    writers = [atomic_folder(tmp_path / "frames") for _ in range(2)]
    folders = [writer.__enter__() for writer in writers]
    for number, folder in enumerate(folders):
        (folder / "0.png").write_text(str(number))
        (folder / f"{number}.txt").touch()
    writers[finished_first].__exit__(None, None, None)
    with pytest.raises(InputError, match=r"/frames exists already, perhaps because another process"):
        writers[1 - finished_first].__exit__(None, None, None)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0.png", f"{finished_first}.txt", "frames"]
    assert (tmp_path / "frames" / "0.png").read_text() == str(finished_first)


def test_only_folders_of_killed_writers_are_removed(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from selfmark.run.files import atomic_folder
with atomic_folder(Path(sys.argv[1])) as temporary:
    (temporary / "0.png").touch()
    print(temporary, flush=True)
    time.sleep(60)
"""
    arguments = [sys.executable, "-c", code, str(tmp_path / "frames")]
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout is not None
        leftover = Path(process.stdout.readline().strip())
        os.kill(process.pid, signal.SIGSTOP)  # It still runs, but does nothing for now.
        with atomic_folder(tmp_path / "frames") as temporary:
            assert (leftover / "0.png").exists()
            assert temporary != leftover
        (tmp_path / "frames").rmdir()
    assert leftover.is_dir()
    assert not (tmp_path / "frames").exists()
    similar = [
        tmp_path / ".frames2.0123abcd.part",
        tmp_path / "frames.part",
        tmp_path / "frames.0123abcd.part",
    ]
    for folder in similar:
        folder.mkdir()
    with atomic_folder(tmp_path / "frames"):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([*similar, tmp_path / "frames"])


def test_a_new_folder_that_is_taken_for_a_leftover_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes the new folder twice: right before it is opened, and before it is locked."""
    open_subfolder, flock, removed = files.open_subfolder, files.fcntl.flock, []

    def remove_before_opening(name: str, folder: int, path: Path) -> int:
        if not removed:
            removed.append(path)
            path.rmdir()
        return open_subfolder(name, folder, path)

    def remove_before_locking(descriptor: int, operation: int) -> None:
        if len(removed) == 1:
            (folder,) = tmp_path.iterdir()
            removed.append(folder)
            folder.rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(files, "open_subfolder", remove_before_opening)
    monkeypatch.setattr(files.fcntl, "flock", remove_before_locking)
    with atomic_folder(tmp_path / "frames") as temporary:
        (temporary / "0.png").touch()
    assert len(removed) == 2
    assert [path.name for path in tmp_path.rglob("*")] == ["frames", "0.png"]


def test_errors_name_the_folder_that_the_user_knows(tmp_path: Path) -> None:
    def fail(kind: str) -> None:
        with atomic_folder(tmp_path / "frames") as temporary:
            if kind == "disk":
                raise OSError(errno.ENOSPC, "No space left on device", str(temporary / "0.png"))
            if kind == "input":
                raise InputError(f"{temporary / '0.png'} is damaged")
            temporary.rmdir()
            (temporary / "0.png").write_text("0")

    for kind in ("disk", "input", "removed"):
        with pytest.raises((OSError, InputError)) as caught:
            fail(kind)
        assert str(tmp_path / "frames" / "0.png") in str(caught.value)
        assert ".part" not in str(caught.value)


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


@pytest.mark.parametrize("name", ["_sync_file", "create_file"])
def test_the_error_of_a_full_disk_names_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *_: object) -> None:
        # The error of the system names the file only if opening the file failed.
        names = [path.name] if name == "create_file" else []
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *names)

    monkeypatch.setattr(files, name, fail)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_json({}, tmp_path / "compare.json")
    assert caught.value.filename == str(tmp_path / "compare.json")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    leftover = tmp_path / ".frames.0123abcd.part"
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


def _replace_folder(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.mkdir()


def _write_opened(path: Path) -> None:
    with atomic_open(path) as handle:
        _replace_folder(path.parent)
        handle.write("new")


def _write_by_path(path: Path) -> None:
    with atomic_write(path, keep_suffix=True) as temporary:
        _replace_folder(path.parent)
        temporary.write_text("new")


@pytest.mark.parametrize("write", [_write_opened, _write_by_path])
def test_a_write_fails_if_the_folder_was_replaced_meanwhile(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old.txt").touch()
    with pytest.raises(DiskError, match="out was replaced by another folder"):
        write(folder / "landmarks.txt")
    assert [path.name for path in tmp_path.rglob("*.*")] == ["old.txt"]


def test_results_fail_if_their_folder_was_replaced_between_two_files(tmp_path: Path) -> None:
    def write_results() -> None:
        with output_folder(tmp_path / "out"):
            write_json([], tmp_path / "out" / "landmarks.json")
            _replace_folder(tmp_path / "out")
            write_json({}, tmp_path / "out" / "predictions.json")

    with pytest.raises(DiskError, match="out was replaced by another folder"):
        write_results()
