"""Write files atomically, append to and read files of a run folder, and check its format version."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from selfmark._version import __version__
from selfmark.errors import InputError, UnsafeFile
from selfmark.run.guarded_files import (
    MAX_TEXT_BYTES,
    VIEWS_FILE,
    create_file,
    open_file,
    open_folder,
    open_subfolder,
    open_to_read,
    read_bytes,
    remove_file,
    remove_folder,
    require_same_folder,
    sync,
)
from selfmark.run.json_schema import is_list_of, is_number, is_object, parse_json, require_fields

FORMAT = 1  # version of run folders and models; increased by changes that older versions cannot read

_MAX_VIEWS = 100
_VIEW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # the name of a view is the name of its folder

_TEMPORARY_FOLDER = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part", re.DOTALL)  # see `atomic_folder`


# --- atomic writes -----------------------------------------------------------------------------------


@contextmanager
def atomic_write(
    path: Path,
    previous: Path | None = None,
    *,
    keep_suffix: bool = False,
    unique: bool = False,
    verify: Callable[[Path], None] | None = None,
) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `path` when the block ends without an error.

    The file is synced before it is renamed. If the process is killed, the disk is full or an error occurs,
    the old file stays unchanged. Use `atomic_open` unless a library needs the path of the file.

    Of two processes that write `path` at the same time, the second one removes the temporary file of the
    first one. The second process succeeds, and the first one fails. With `keep_suffix` or `unique`, both
    succeed, and the last one to finish wins.

    Args:
        path: File to write.
        previous: Keep the old file under this name, in the same folder. If the process is killed between the
            two renames, only this file exists.
        keep_suffix: Give the temporary file the suffix of `path`, for libraries that depend on it. Its name
            contains the number of the process, and files of processes that have ended are removed.
        unique: Use a random temporary name, for files that several processes may write at the same time. If
            the process is killed, the temporary file stays behind.
        verify: Called with the temporary file before it is renamed; raises if it cannot be read back.

    Raises:
        InputError: Another process has written the file at the same time.
        OSError: The file cannot be written; the error names `path`.
    """
    with _create_temporary_file(path, previous, keep_suffix, unique, verify) as (temporary, _):
        yield temporary


@contextmanager
def _create_temporary_file(
    path: Path,
    previous: Path | None,
    keep_suffix: bool,
    unique: bool,
    verify: Callable[[Path], None] | None,
) -> Iterator[tuple[Path, int]]:
    """Yield the path and the descriptor of the temporary file of `atomic_write`."""
    temporary = _temporary_path(path, keep_suffix, unique)
    with (
        _name_file(path, temporary),
        _create_named_temporary(path, temporary, previous, keep_suffix, verify) as created,
    ):
        yield temporary, created


@contextmanager
def _name_file(path: Path, temporary: Path) -> Iterator[None]:
    """Name `path` in errors that name no file (as on a full disk) or the temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, temporary.name, str(temporary)):
            raise
        # Raise a new error: libraries have subclasses of OSError whose file name cannot be changed.
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _create_named_temporary(
    path: Path,
    temporary: Path,
    previous: Path | None,
    keep_suffix: bool,
    verify: Callable[[Path], None] | None,
) -> Iterator[int]:
    """Create the temporary file, yield its descriptor, and rename the file when the block ends."""
    # `create_file` first removes what a killed process left behind, or a link that someone put there. The
    # file stays open, so that no other file gets its inode number.
    with open_folder(path.parent) as folder, create_file(temporary) as created:

        def is_own() -> bool:
            # With `keep_suffix`, the name contains the number of this process, so no other process uses it.
            # The file is not compared then, because some libraries replace the file that they get.
            return keep_suffix or _is_same_entry(temporary.name, created.fileno(), folder)

        try:
            if keep_suffix:
                _remove_leftovers(path, folder)
            yield created.fileno()
            _require_own(is_own(), temporary)
            _sync_file(temporary, folder)
            if verify is not None:
                verify(temporary)
            _require_own(is_own(), temporary)
            require_same_folder(path.parent, folder)
            if previous is not None:
                with suppress(FileNotFoundError):
                    os.replace(path.name, previous.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            sync(folder)
            require_same_folder(path.parent, folder)
        except BaseException:
            if is_own():
                with suppress(OSError):
                    os.unlink(temporary.name, dir_fd=folder)
            if keep_suffix:  # A library that got the path has written to the folder that is there now.
                with suppress(OSError, UnsafeFile):
                    remove_file(temporary)
            raise


def _is_same_entry(name: str, descriptor: int, folder: int) -> bool:
    """Return True if an entry of a folder is the file or folder that is open as `descriptor`."""
    try:
        entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(entry, os.fstat(descriptor))


def _require_own(is_own: bool, temporary: Path) -> None:
    """Raise if a temporary file or folder was replaced by another process."""
    if not is_own:
        raise InputError(
            f"another process is writing to {temporary.parent} at the same time: wait until it is done, then "
            "repeat the command"
        )


def _temporary_path(path: Path, keep_suffix: bool = False, unique: bool = False) -> Path:
    if keep_suffix:
        return path.with_name(f"{path.stem}.{os.getpid()}.part{path.suffix}")
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part" if unique else f"{path.name}.part")


def _remove_leftovers(path: Path, folder: int) -> None:
    """Remove temporary files of `path`, see `keep_suffix`, that processes left when they were killed."""
    name = re.compile(rf"{re.escape(path.stem)}\.(\d{{1,9}})\.part{re.escape(path.suffix)}")
    for entry in os.listdir(folder):
        if (match := name.fullmatch(entry)) and not _is_running(int(match[1])):
            with suppress(OSError):
                os.unlink(entry, dir_fd=folder)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    return True


def _sync_file(path: Path, folder: int) -> None:
    descriptor = open_file(path, folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_open(
    path: Path,
    mode: str = "w",
    previous: Path | None = None,
    *,
    newline: str | None = None,
    errors: str = "strict",
    unique: bool = False,
    verify: Callable[[Path], None] | None = None,
) -> Iterator[Any]:
    """Yield an open file that replaces `path` when the block ends without an error; see `atomic_write`.

    Args:
        path: File to write.
        mode: "w" for text in UTF-8, "wb" for bytes.
        previous: Keep the old file under this name.
        newline: As in `open`.
        errors: What to do with text that UTF-8 cannot encode, as in `open`.
        unique: Use a random temporary name.
        verify: Raises if the file cannot be read back.
    """
    options: dict[str, Any] = {}
    if "b" not in mode:
        options = {"encoding": "utf-8", "newline": newline, "errors": errors}
    # The file is not opened by its path: there may already be a file of another process.
    with (
        _create_temporary_file(path, previous, False, unique, verify) as (_, created),
        open(os.dup(created), mode, **options) as handle,
    ):
        yield handle


def write_text(text: str, path: Path, errors: str = "strict") -> None:
    """Write a text file in UTF-8, atomically."""
    with atomic_open(path, errors=errors) as handle:
        handle.write(text)


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file, atomically."""
    with atomic_open(path, "wb") as handle:
        handle.write(content)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that is renamed to `path` when the block ends without an error.

    `path` must not exist, or it must be an empty folder. The new files are synced before the folder is
    renamed. Of two processes that write `path` at the same time, each has its own temporary folder. The first
    one to finish succeeds, and the other one fails.

    An error removes the temporary folder. If the process is killed, the folder stays until the next call for
    `path`, which removes temporary folders that no process has locked. On file systems without locks, they
    are never removed. Errors inside the block name `path` instead of the temporary folder.

    Raises:
        InputError: `path` is a folder with files, perhaps because another process has written it meanwhile.
    """
    with open_folder(path.parent) as folder:
        _remove_leftover_folders(path, folder)
        temporary, created = _create_locked_folder(path, folder)
        try:
            yield temporary
            _sync_tree(temporary)
            _require_own(_is_same_entry(temporary.name, created, folder), temporary)
            _rename_folder(temporary, path, folder)
            sync(folder)
        except (OSError, InputError) as error:
            _name_final_path(error, temporary, path)
            raise
        finally:
            if _is_same_entry(temporary.name, created, folder):
                shutil.rmtree(temporary.name, ignore_errors=True, dir_fd=folder)
            os.close(created)


def _create_locked_folder(path: Path, folder: int) -> tuple[Path, int]:
    """Create a temporary folder for `path` and lock it; return its path and its descriptor."""
    while True:
        # The name begins with a dot, unlike those of detectors and of most other folders. So a temporary
        # folder is not mistaken for one of them, and none of them is deleted as a leftover.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        os.mkdir(temporary.name, dir_fd=folder)
        with suppress(FileNotFoundError):
            created = open_subfolder(temporary.name, folder, temporary)
            with suppress(OSError):  # raised by file systems without locks
                fcntl.flock(created, fcntl.LOCK_EX)
            # Until it is locked, another process may take the folder for a leftover and delete it.
            if _is_same_entry(temporary.name, created, folder):
                return temporary, created
            os.close(created)


def _remove_leftover_folders(path: Path, folder: int) -> None:
    """Remove the temporary folders of `path` that no process has locked."""
    for entry in os.listdir(folder):
        if entry.startswith(".") and entry.endswith(".part") and strip_temporary(entry) == path.name:
            leftover = path.with_name(entry)
            with suppress(OSError, InputError), open_folder(leftover) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_folder(leftover)


def _rename_folder(temporary: Path, path: Path, folder: int) -> None:
    try:
        os.replace(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise InputError(
            f"{path} exists already, perhaps because another process has written it in the meantime: use it, "
            "or remove it and repeat the command"
        ) from error


def _name_final_path(error: OSError | InputError, temporary: Path, path: Path) -> None:
    """Replace the name of the temporary folder in an error by the name that the user knows."""

    def rename(value: Any) -> Any:
        return value.replace(temporary.name, path.name) if isinstance(value, str) else value

    error.args = tuple(map(rename, error.args))
    if isinstance(error, OSError):
        for name in ("filename", "filename2"):
            if isinstance(value := getattr(error, name), str) and temporary.name in value:
                setattr(error, name, rename(value))


def strip_temporary(name: str) -> str:
    """Return the final name of a temporary file or folder; any other name is returned as it is.

    >>> [strip_temporary(name) for name in ("run.json.part", ".start.0123abcd.part", "run.json")]
    ['run.json', 'start', 'run.json']
    """
    match = _TEMPORARY_FOLDER.fullmatch(name)
    return match[1] if match else name.removesuffix(".part")


def _sync_tree(root: Path) -> None:
    """Sync all files and folders below a folder; links need no sync of their own."""
    for _, _, names, folder in os.fwalk(root, topdown=False):
        for name in names:
            if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                _sync_file(Path(name), folder)
        sync(folder)


# --- appending and reading ---------------------------------------------------------------------------


def open_for_append(path: Path) -> TextIO:
    """Open a text file for appending; refuse links and anything that is not a regular file.

    A file with several names (hard links) is first replaced by a copy, so that the file under its other names
    does not change.
    """
    with open_folder(path.parent) as folder:
        with suppress(FileNotFoundError):
            if os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_nlink > 1:
                _replace_by_copy(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        return open(open_file(path, folder, flags), "a", encoding="utf-8")


def _replace_by_copy(path: Path) -> None:
    with open_to_read(path) as source, atomic_open(path, "wb") as handle:
        shutil.copyfileobj(source, handle)


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Read a text file in UTF-8.

    Args:
        path: the file.
        max_bytes: size limit.

    Raises:
        InputError: if the file cannot be read, is too large or is not text.
    """
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8") from error


def write_json(value: Any, path: Path) -> None:
    """Write a value as JSON, atomically; see `to_json`."""
    write_text(to_json(value, indent=1), path)


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text; NaN and infinity, which JSON does not have, become null.

    >>> to_json({"error": float("nan"), "points": (1.5, float("inf"))})
    '{"error": null, "points": [1.5, null]}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_replace_non_finite(value), indent=indent, allow_nan=False)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        max_bytes: size limit.

    Raises:
        InputError: if the file cannot be read or is not JSON.
    """
    text = read_text(path, max_bytes)
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error


def require_folder(folder: Path) -> None:
    """Raise if a folder does not exist."""
    if not folder.exists():
        raise InputError(f"{folder} does not exist; check the path of the run folder")


def require_run(folder: Path) -> None:
    """Raise if a folder is not a run folder, or if a newer version of selfmark wrote it."""
    path = folder / "run.json"
    if not path.exists():
        if runs := view_folders(folder):
            listed = ", ".join(map(str, runs))
            raise InputError(f"{folder} has a run for each view; this command takes one of them: {listed}")
        require_folder(folder)
        raise InputError(f"{folder} is not a run folder")
    require_format(read_json(path), path)


def is_view_name(value: Any) -> bool:
    """Return True for a valid name of a view, which is also the name of its folder.

    It has at most 64 letters, digits, - and _, and starts with a letter or a digit.

    >>> is_view_name("top"), is_view_name("../top"), is_view_name("")
    (True, False, False)
    """
    return isinstance(value, str) and _VIEW_NAME.fullmatch(value) is not None


def read_view_list(folder: Path) -> list[dict[str, Any]]:
    """Read name and box of each view from the views.json of a folder; empty if it has no such file."""
    path = folder / VIEWS_FILE
    if not os.path.lexists(path):
        return []
    values = read_json(path)
    require_format(values, path)
    try:
        require_fields(values, {"views": is_list_of(_is_view)})
        if not 2 <= len(values["views"]) <= _MAX_VIEWS:
            raise ValueError(f"it has {len(values['views'])} views, not 2 to {_MAX_VIEWS}")
    except ValueError as error:
        raise InputError(f"{path} is not a valid list of views: {error}") from error
    views: list[dict[str, Any]] = values["views"]
    return views


def view_folders(folder: Path) -> list[Path]:
    """Return the run folder of each view that views.json lists; empty if there is no such file."""
    return [folder / str(view["name"]) for view in read_view_list(folder)]


def whole_run(folder: Path) -> Path:
    """Return the run that a folder belongs to: for the folder of one view, the run with all views."""
    is_view = any(view.resolve() == folder.resolve() for view in view_folders(folder.parent))
    return folder.parent if is_view else folder


def _is_view(value: Any) -> bool:
    has_fields = is_object({"name": is_view_name, "box": is_list_of(is_number)})
    return has_fields(value) and len(value["box"]) == 4


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
