"""Exclusive locks on folders."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selfmark.errors import InputError
from selfmark.run.files import open_for_append
from selfmark.run.guarded_files import open_folder, open_to_read


class FolderLocked(InputError):
    """Another process holds the lock of a folder."""


@contextmanager
def exclusive(folder: Path, wait: bool = False, lock_file: bool = True) -> Iterator[None]:
    """Hold the exclusive lock of an existing folder inside the context.

    The operating system also releases the lock when the process is killed.

    Args:
        folder: the folder to lock.
        wait: wait until the current holder releases the lock instead of raising an error.
        lock_file: lock a file .lock in the folder, which works on network drives; False locks the folder
            itself and leaves no file behind.

    Raises:
        FolderLocked: if another process holds the lock and `wait` is False.
    """
    with _open_lock_file(folder) if lock_file else open_folder(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise FolderLocked(f"another process is working on {folder}") from error
        yield


def is_locked(folder: Path) -> bool:
    """Return True if a process holds the lock file of a folder, which may be read-only.

    Where the lock file cannot be read, nothing is known about it, and the answer is False.
    """
    try:
        with open_to_read(folder / ".lock") as handle:
            # A shared lock needs no permission to write. It fails while another process holds its lock.
            fcntl.flock(handle.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def _open_lock_file(folder: Path) -> Iterator[int]:
    with open_for_append(folder / ".lock") as handle:
        yield handle.fileno()
