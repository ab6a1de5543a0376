"""Lock folders exclusively."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from selfmark.errors import InputError, UnsafeFile
from selfmark.run.files import open_for_append
from selfmark.run.guarded_files import open_folder, open_to_read

_ATTEMPTS = 5  # number of attempts to acquire a lock
_PAUSE = 0.05  # seconds between two attempts


class FolderLocked(InputError):
    """Another process holds the lock of a folder."""


@contextmanager
def exclusive(folder: Path, wait: bool = False, lock_file: bool = True) -> Iterator[int]:
    """Hold the exclusive lock of an existing folder inside the context.

    The operating system also releases the lock when the process is killed.

    Args:
        folder: the folder to lock.
        wait: wait until the current holder releases the lock instead of raising an error.
        lock_file: lock a file .lock in the folder, which works on network drives; False locks the folder
            itself and leaves no file behind.

    Yields:
        The descriptor of the locked file or folder; see `was_replaced`.

    Raises:
        FolderLocked: if another process holds the lock and `wait` is False.
    """
    with _open_lock_file(folder) if lock_file else open_folder(folder) as descriptor:
        if wait:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        elif not _try_lock(descriptor):
            raise FolderLocked(f"another process is working on {folder}")
        yield descriptor


@contextmanager
def exclusive_if_possible(folder: Path) -> Iterator[None]:
    """Wait for the lock of a folder itself, and hold it inside the context.

    On file systems that cannot lock folders, such as some network drives, nothing is locked.
    """
    with ExitStack() as lock:
        with suppress(OSError):
            lock.enter_context(exclusive(folder, wait=True, lock_file=False))
        yield


def was_replaced(folder: Path, descriptor: int) -> bool:
    """Return True if the lock file in a folder is not the one that `exclusive` locked.

    The lock does not prevent anybody from renaming the folder and putting another folder in its place.
    """
    try:
        current = (folder / ".lock").lstat()
    except OSError:
        return False  # Writing to the folder will report what is wrong.
    return not os.path.samestat(current, os.fstat(descriptor))


def is_locked(folder: Path) -> bool:
    """Return True if a process holds the lock file of a folder; the folder may be read-only.

    Return False if the lock file cannot be read, because nothing is known about the lock then.
    """
    try:
        with open_to_read(folder / ".lock") as handle:
            # A shared lock needs no permission to write. It fails while another process holds the exclusive
            # lock.
            fcntl.flock(handle.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, UnsafeFile):
        return False
    return False


def _try_lock(descriptor: int) -> bool:
    """Lock a file; return True if this succeeds.

    Several attempts are made, because `is_locked` in another process holds the lock for a moment.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


@contextmanager
def _open_lock_file(folder: Path) -> Iterator[int]:
    with open_for_append(folder / ".lock") as handle:
        yield handle.fileno()
