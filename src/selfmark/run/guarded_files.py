"""Open, create and delete the files of a run folder without following links or blocking on a named pipe.

A run folder may come from a stranger. A file such as run.json or model.json marks a folder of a run, of a
model or of several runs. Two rules hold below the outermost marked folder: no component of a path may be a
link, and only regular files are read or appended to. The folders above belong to the user, so they may be
links. Folders are opened one component at a time, each relative to its parent.

Commands also create folders below the output folder that the user names, such as `drawn`. These may not be
links either; see `make_folders`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from selfmark.errors import DiskError, InputError, UnsafeFile

FileState = tuple[int, int, int, int]
"""State of a file, see `get_file_state`."""

MAX_UNCHECKED_BYTES = 1 << 26  # larger files are refused if they consist mostly of holes
MAX_TEXT_BYTES = 1 << 29  # size limit of JSON, YAML and log files; a million images need a quarter of it

VIEWS_FILE = "views.json"
"""Marks a folder that is not a run itself but contains one run per view of an object."""
COMPARISON_FILE = "comparison.json"
"""Marks a folder that contains one run per method of a comparison."""

# Files that only run folders, model folders and folders of several runs contain.
_MARKERS = ("run.json", "model.json", VIEWS_FILE, COMPARISON_FILE)
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for another process.
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # errors of file systems that cannot sync folders


# --- folders -----------------------------------------------------------------------------------------


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """Yield the file descriptor of an open folder.

    Raises:
        UnsafeFile: if a component below the run folder is a link.
        OSError: if the folder does not exist or cannot be opened.
    """
    root, names = _split_at_root(folder)
    descriptor = os.open(root, _FOLDER_FLAGS)
    try:
        for depth, name in enumerate(names, start=1):
            deeper = open_subfolder(name, descriptor, root.joinpath(*names[:depth]))
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def require_same_folder(path: Path, folder: int) -> None:
    """Raise if the folder at a path is no longer the one that is open as the descriptor `folder`.

    Raises:
        DiskError: if the folder was replaced by another one.
        OSError: if there is no folder any more.
    """
    if not os.path.samestat(os.stat(path), os.fstat(folder)):
        raise DiskError(f"{path} was replaced by another folder while files were written: repeat the command")


def _split_at_root(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the outermost run or model folder among a folder and its parents, and the names below it.

    If there is no run or model folder, return the folder itself and no names, so that nothing is checked.
    """
    root, names_below_root = folder, tuple[str, ...]()
    names = tuple[str, ...]()
    while True:
        if _has_marker(folder):
            root, names_below_root = folder, names
        if folder.name in ("", ".."):  # pathlib's parent of "a/.." is "a", not the real parent.
            return root, names_below_root
        folder, names = folder.parent, (folder.name, *names)


def _is_inside_run(path: Path) -> bool:
    root, _ = _split_at_root(path.parent)
    return _has_marker(root)


def _has_marker(folder: Path) -> bool:
    return any(os.path.lexists(folder / marker) for marker in _MARKERS)


def open_subfolder(name: str, folder: int, path: Path) -> int:
    """Open a folder that is not a link and return its descriptor.

    Args:
        name: its name.
        folder: descriptor of its parent.
        path: the whole path, for messages.

    Raises:
        UnsafeFile: if it is a link.
        OSError: if it does not exist or cannot be opened.
    """
    try:
        return os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        _require_no_link(name, folder, path)
        raise


def _require_no_link(name: str, folder: int, path: Path) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise build_link_error(path)


def build_link_error(path: Path) -> UnsafeFile:
    """Return the error for a link inside a run folder or an output folder."""
    return UnsafeFile(
        f"{path} is a link, and selfmark does not follow links inside a run folder or an output folder: "
        "replace it with what it points to"
    )


def make_folder(folder: Path) -> None:
    """Create a folder if it does not exist yet; its parent must exist."""
    with open_folder(folder.parent) as parent:
        _make_subfolder(folder.name, parent, folder)


def make_folders(folder: Path, below: Path | None = None) -> None:
    """Create a folder and its missing parents.

    Args:
        folder: the folder.
        below: an output folder that contains it; no component below this folder may be a link.

    Raises:
        UnsafeFile: if a component below the run folder or below `below` is a link.
    """
    root, names = _split_at_root(folder)
    if below is not None and not names:
        root, names = below, folder.relative_to(below).parts
    missing = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for path in missing:
        with open_folder(path.parent) as parent:
            sync(parent)
    for depth in range(len(names)):
        make_folder(root.joinpath(*names[: depth + 1]))


def require_no_links(folder: Path, below: Path) -> None:
    """Raise if a component of a folder below the output folder `below` is a link; it need not exist.

    Commands that compute for minutes call it first; `make_folders` repeats the check when it is too late.
    """
    path = below
    for name in folder.relative_to(below).parts:
        path /= name
        if path.is_symlink():
            raise build_link_error(path)


def _make_subfolder(name: str, parent: int, path: Path) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        os.close(open_subfolder(name, parent, path))
    else:
        sync(parent)  # Otherwise, a power failure could lose the new folder and its files.


def remove_folder(folder: Path) -> None:
    """Delete a folder and its content, if it exists; leave files that cannot be deleted, without an error.

    Raises:
        UnsafeFile: if the folder is not a folder, or a component of its path below the run folder is a link.
    """
    with suppress(FileNotFoundError), open_folder(folder.parent) as parent:
        _require_no_link(folder.name, parent, folder)
        if not stat.S_ISDIR(os.stat(folder.name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise UnsafeFile(f"{folder} is not a folder: remove it")  # rmtree would wait for a named pipe
        shutil.rmtree(folder.name, ignore_errors=True, dir_fd=parent)


def remove_empty_folder(folder: Path) -> None:
    """Delete a folder if it is empty; otherwise, or if it cannot be deleted, leave it."""
    with suppress(OSError), open_folder(folder.parent) as parent:
        os.rmdir(folder.name, dir_fd=parent)


# --- files -------------------------------------------------------------------------------------------


def open_file(path: Path, folder: int, flags: int) -> int:
    """Open or create a regular file and return its descriptor.

    Args:
        path: the file; only its name is used to open it, the whole path is for messages.
        folder: descriptor of its folder, from `open_folder`.
        flags: such as `os.O_RDONLY`; see `os.open`.

    Raises:
        UnsafeFile: if the file is a link, a named pipe, a device or anything else that is not a regular file.
        OSError: if the file cannot be opened.
    """
    try:
        descriptor = os.open(path.name, flags | _FILE_FLAGS, 0o666, dir_fd=folder)
    except OSError as error:
        _require_no_link(path.name, folder, path)
        if error.errno == errno.ENXIO:  # a socket, or a named pipe that nobody reads
            raise UnsafeFile(f"{path} is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFile(f"{path} is not a regular file")
    return descriptor


@contextmanager
def open_to_read(path: Path, max_bytes: int | None = None) -> Iterator[BufferedReader]:
    """Open a regular file for reading; see `open_file` for further errors.

    Args:
        path: the file.
        max_bytes: size limit of a file that is read as a whole; None for no limit.

    Raises:
        InputError: if the file is larger than `max_bytes`, or large and mostly holes.
    """
    if not _is_inside_run(path):
        path = Path(os.path.realpath(path))  # Outside run folders, links are followed.
    with open_folder(path.parent) as folder:
        descriptor = open_file(path, folder, os.O_RDONLY)
    with open(descriptor, "rb") as handle:
        size = os.fstat(descriptor).st_size
        if max_bytes is not None and size > max_bytes:
            raise InputError(f"{path} is too large: {size:,} bytes, at most {max_bytes:,} are read")
        if max_bytes is not None and has_mostly_holes(handle.fileno()):
            raise InputError(f"{path} is damaged: most of its {size:,} bytes were never written")
        yield handle


def has_mostly_holes(descriptor: int) -> bool:
    """Return True if an open file is large and more than half of it was never written.

    Such a sparse file takes hardly any space on the disk, but as much memory as its size when it is read.
    Reading continues at the start of the file. If the file system does not tell, there are no holes.
    """
    size = os.fstat(descriptor).st_size
    if size <= MAX_UNCHECKED_BYTES:
        return False
    written, end = 0, 0
    try:
        while 2 * written < size:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            written += end - start
    except OSError as error:
        return error.errno == errno.ENXIO  # There is no data behind `end`.
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return False


def read_bytes(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Read a regular file of limited size; see `open_to_read` for the errors."""
    with open_to_read(path, max_bytes) as handle:
        return handle.read(os.fstat(handle.fileno()).st_size)


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file, as hexadecimal digits; see `open_to_read` for the errors."""
    with open_to_read(path, physical_memory()) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_file_state(path: Path) -> FileState | None:
    """Return the state of a file, which changes with its content; None if there is no such file."""
    try:
        return get_file_state(os.stat(path))
    except (OSError, ValueError):
        return None


def get_file_state(status: os.stat_result) -> FileState:
    """Return size, modification time, change time (both in nanoseconds) and inode number of a file.

    What is cached for a file is valid while all four stay the same. A program that replaces a file can set
    its modification time, and programs that unpack archives do, but not its change time.
    """
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def physical_memory() -> int:
    """Return the physical memory of the computer in bytes.

    It is the size limit of files, such as ONNX models, that may be larger than `MAX_TEXT_BYTES`.
    """
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def create_file(path: Path) -> BinaryIO:
    """Create an empty file for reading and writing; delete an existing file first.

    A process that has the deleted file open, or mapped into memory, can continue to read it.
    """
    with open_folder(path.parent) as folder:
        with suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        return open(open_file(path, folder, os.O_RDWR | os.O_CREAT | os.O_EXCL), "r+b")


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file to a new file, which replaces an existing one."""
    with open_to_read(source) as original, create_file(target) as copy:
        shutil.copyfileobj(original, copy)


def allocate(handle: BinaryIO, num_bytes: int) -> None:
    """Give a file this size and reserve its space on the disk.

    If the space were not reserved, writing to the file through a memory map would kill the process
    (SIGBUS) when the disk is full.
    """
    handle.truncate(num_bytes)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle.fileno(), 0, num_bytes)


def remove_file(path: Path) -> None:
    """Delete a file, if it exists; if it is a link, delete only the link."""
    with suppress(FileNotFoundError), open_folder(path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)


def sync(descriptor: int) -> None:
    """Flush a file or a folder to the disk, if the file system supports it."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
