"""Atomic file writes, appending without following links, JSON, and the on-disk format version."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from selfmark._version import __version__
from selfmark.errors import InputError

FORMAT = 1  # of run folders and models; raised when an older selfmark could not read them

_UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # some file systems sync files but not folders


@contextmanager
def atomic_write(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """An empty file under a temporary name; at the end it is synced and takes the place of `path`.

    A kill, a full disk or an error at any moment leaves what was there. Given `previous`, what was at `path`
    is kept there: after a kill between the two renames the newest is the one under that name.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        # Left over from a kill; or a link put there, through which nothing may be written.
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        _sync(temporary)
        if previous is not None:
            with suppress(FileNotFoundError):
                os.replace(path, previous)
        os.replace(temporary, path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCABLE:
            raise
    finally:
        os.close(descriptor)


def open_for_append(path: Path) -> TextIO:
    """Open a file for appending, but not one elsewhere that a link leads to."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o666), "a", encoding="utf-8")


def write_json(value: Any, path: Path) -> None:
    """Write JSON, whole or not at all."""
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as handle:
        json.dump(value, handle, indent=1)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error


def require_format(values: Any, path: Path) -> None:
    """Refuse what a newer selfmark wrote, and what no selfmark wrote."""
    written = values.get("format") if isinstance(values, dict) else None
    if not isinstance(written, int):
        raise InputError(f"{path} was not written by selfmark")
    if written > FORMAT:
        raise InputError(
            f"{path} was made by a newer selfmark ({values.get('selfmark', 'version unknown')}); "
            f"this is {__version__}: upgrade with 'pip install -U selfmark'"
        )
