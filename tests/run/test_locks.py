"""Test locks on folders: they exclude other processes and are released when the holder ends."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from selfmark.run.locks import FolderLocked, exclusive

_CONTEXT = multiprocessing.get_context("fork")


def _hold(folder: Path, seconds: float, ready_pipe: Connection) -> None:
    with exclusive(folder):
        ready_pipe.send(True)
        time.sleep(seconds)


@pytest.fixture
def ready_pipe() -> tuple[Connection, Connection]:
    return _CONTEXT.Pipe(duplex=False)


def test_a_folder_cannot_be_locked_twice(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(FolderLocked, match=f"another process is working on {tmp_path}"):
        exclusive(tmp_path).__enter__()
    with exclusive(tmp_path):
        pass


def test_locking_the_folder_itself_leaves_no_file(tmp_path: Path) -> None:
    with exclusive(tmp_path, lock_file=False), pytest.raises(FolderLocked):
        exclusive(tmp_path, lock_file=False).__enter__()
    assert not list(tmp_path.iterdir())


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyError), exclusive(tmp_path):
        raise KeyError
    with exclusive(tmp_path):
        pass


def test_waiting_ends_when_the_holder_is_done(
    tmp_path: Path, ready_pipe: tuple[Connection, Connection]
) -> None:
    holder = _CONTEXT.Process(target=_hold, args=(tmp_path, 0.8, ready_pipe[1]))
    holder.start()
    assert ready_pipe[0].recv()
    with pytest.raises(FolderLocked), exclusive(tmp_path):
        pass
    before = time.monotonic()
    with exclusive(tmp_path, wait=True):
        waited = time.monotonic() - before
    holder.join()
    assert waited > 0.1


def test_killing_the_holder_releases_the_lock(
    tmp_path: Path, ready_pipe: tuple[Connection, Connection]
) -> None:
    holder = _CONTEXT.Process(target=_hold, args=(tmp_path, 60, ready_pipe[1]))
    holder.start()
    assert ready_pipe[0].recv()
    holder.kill()
    holder.join()
    with exclusive(tmp_path):
        pass


def test_a_missing_folder_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), exclusive(tmp_path / "missing"):
        pass
