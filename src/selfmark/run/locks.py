"""Exclusive locks on folders."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from selfmark.errors import InputError
from selfmark.run.files import open_for_append


def lock_folder(folder: Path) -> TextIO:
    """Lock a folder for this process; the lock is released when the returned file is closed.

    Raises:
        InputError: if another process holds the lock.
    """
    handle = open_for_append(folder / ".lock")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise InputError(f"another process is working on {folder}") from error
    return handle
