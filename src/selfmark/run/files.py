"""Atomic file writes, appending without following links, JSON, and the on-disk format version."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from selfmark._version import __version__
from selfmark.errors import InputError

FORMAT = 1  # version of run folders and models; increased if older versions of selfmark cannot read them

_UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # from file systems that cannot sync folders


@contextmanager
def atomic_write(
    path: Path, previous: Path | None = None, *, keep_suffix: bool = False, unique: bool = False
) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path` when the block ends without an error.

    The file is synced before it is renamed. If the process is killed, the disk is full or an error occurs,
    the old file stays unchanged.

    Args:
        path: File to write.
        previous: Keep the old file under this name. If the process is killed between the two renames, only
            this file exists.
        keep_suffix: Give the temporary file the suffix of `path`, for libraries that depend on it.
        unique: Use a random temporary name, for files that several processes may write at the same time. If
            the process is killed, the temporary file stays behind.
    """
    temporary = _temporary_path(path, keep_suffix, unique)
    try:
        # Remove the leftover of a killed process, and never write through a link that someone put there.
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


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that is renamed to `path` when the block ends without an error.

    An error removes the temporary folder; the next call removes one left behind by a killed process. `path`
    must not exist, or it must be an empty folder.
    """
    temporary = _temporary_path(path)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_path(path: Path, keep_suffix: bool = False, unique: bool = False) -> Path:
    part = f"{secrets.token_hex(4)}.part" if unique else "part"
    return path.with_name(f"{path.stem}.{part}{path.suffix}" if keep_suffix else f"{path.name}.{part}")


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
    """Open a text file for appending; refuse to follow a symbolic link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o666), "a", encoding="utf-8")


def write_json(value: Any, path: Path) -> None:
    """Write a value as JSON, atomically."""
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8") as handle:
        json.dump(value, handle, indent=1)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: if the file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error


def require_run(folder: Path) -> None:
    """Raise if a folder is not a run folder, or if a newer version of selfmark wrote it."""
    path = folder / "run.json"
    if not path.exists():
        raise InputError(f"{folder} is not a run folder")
    require_format(read_json(path), path)


def require_format(values: Any, path: Path) -> None:
    """Raise if a file was written by a newer version of selfmark, or not by selfmark.

    Args:
        values: content of the file.
        path: the file, for the error message.
    """
    version = values.get("format") if isinstance(values, dict) else None
    if not isinstance(version, int):
        raise InputError(f"{path} was not written by selfmark")
    if version > FORMAT:
        raise InputError(
            f"{path} was written by a newer version of selfmark ({values.get('selfmark', 'unknown')}) than "
            f"this one ({__version__}): upgrade with 'pip install -U selfmark'"
        )
