"""Write HDF5 files in a child process, and read them back.

When the disk is full, the HDF5 library may crash the process that writes. It may also report success and
leave a file that cannot be read.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfmark.errors import InputError, require_package

# First word of what the child sends, before the message of an InputError or the traceback of an unexpected
# error. An OSError is sent as its message alone.
_ERROR, _UNEXPECTED = "error:", "unexpected:"
_DISK_FULL = os.strerror(errno.ENOSPC)
_MIN_FREE_BYTES = 1 << 16  # with less free space than this, a failure is reported as a full disk
_MAX_SILENT_SECONDS = 300.0  # a child is killed if it has neither computed nor written for this long


def save_hdf5(path: Path, save: Callable[[Path], None]) -> None:
    """Write an HDF5 file in a child process, and check that it can be read.

    Args:
        path: File to write.
        save: Function that writes the file at a given path.

    Raises:
        InputError: `save` raised an InputError.
        OSError: The file cannot be written or read back.
        RuntimeError: `save` raised any other error.
    """
    receiver, sender = os.pipe()
    sys.stderr.flush()
    child = _fork()
    if child == 0:
        _run_child(lambda: save(path), sender)
    os.close(sender)
    was_stopped = _kill_if_silent(child, receiver, path)
    with open(receiver, encoding="utf-8", errors="replace") as pipe:
        message = pipe.read()
    _, status = os.waitpid(child, 0)
    is_write_error = bool(_find_write_error(message, path))
    if message.startswith(_ERROR) and not is_write_error:
        raise InputError(message.removeprefix(_ERROR))
    if message.startswith(_UNEXPECTED) and not is_write_error:
        raise RuntimeError(message.removeprefix(_UNEXPECTED))
    if status:
        raise OSError(0, _describe_failure(message, status, path, was_stopped))
    _read_back(path)


def _fork() -> int:
    """Fork this process; the child never frees objects of the parent.

    Some objects wait for their threads when they are freed, such as a video decoder that was left to the
    garbage collector. A child has none of the parent's threads, so it would wait forever.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    with warnings.catch_warnings():
        # Python warns that a child inherits the locks of threads. This child only calls `save` and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        gc.freeze()
    if is_enabled:
        gc.enable()
    return child


def _kill_if_silent(child: int, receiver: int, path: Path) -> bool:
    """Wait until the child sends something or exits; kill it if it neither computes nor writes any more.

    A child may inherit a lock that another thread of the parent held. The child would then wait forever.

    Returns:
        True if the child was killed.
    """
    last_state, changed_at = None, time.monotonic()
    while not select.select([receiver], [], [], min(1.0, _MAX_SILENT_SECONDS))[0]:
        state = (path.stat().st_size if path.exists() else -1, _read_cpu_time(child))
        if state != last_state:
            last_state, changed_at = state, time.monotonic()
        elif time.monotonic() - changed_at > _MAX_SILENT_SECONDS:
            os.kill(child, signal.SIGKILL)
            return True
    return False


def _read_cpu_time(process: int) -> int:
    """Return how long a process has computed, in clock ticks; 0 if the system does not tell."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0
    fields = status.rpartition(")")[2].split()  # the name before the bracket may contain spaces
    return int(fields[11]) + int(fields[12])


def _run_child(save: Callable[[], None], sender: int) -> None:
    """Run `save`, send its error to the parent, and exit without the parent's exit handlers."""
    code = 1
    try:
        # Hide the messages of HDF5 and its wrappers: the parent receives the same errors.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        save()
        code = 0
    except InputError as error:
        os.write(sender, f"{_ERROR}{error}".encode())
    except OSError as error:
        os.write(sender, str(error.strerror or error).encode())
    except BaseException:
        os.write(sender, f"{_UNEXPECTED}{traceback.format_exc()}".encode())
    finally:
        os._exit(code)


def _find_write_error(message: str, path: Path) -> str:
    """Return why the operating system could not write, or "" if the cause was another one.

    The cause is a full disk, or an error number that the message of HDF5 contains.
    """
    disk = os.statvfs(path.parent)
    if _DISK_FULL in message or disk.f_bavail * disk.f_frsize < _MIN_FREE_BYTES:
        return _DISK_FULL
    # Such an error may arrive as an error of any type, e.g. if h5py fails to close the file.
    numbers = re.findall(r"errno = (\d+)", message)
    return os.strerror(int(numbers[-1])) if numbers else ""


def _describe_failure(message: str, status: int, path: Path, was_stopped: bool) -> str:
    if write_error := _find_write_error(message, path):
        return write_error
    if was_stopped:  # The callers add the name of the file to the message.
        return f"writing made no progress for {_MAX_SILENT_SECONDS:g} seconds and was stopped"
    if os.WIFSIGNALED(status):
        return f"the HDF5 library crashed ({signal.Signals(os.WTERMSIG(status)).name})"
    return message.splitlines()[0] if message else "the HDF5 library failed"


def _read_back(path: Path) -> None:
    """Raise an OSError if the last element of any data set in the file cannot be read."""
    h5py: Any = require_package("h5py", "h5py")

    def read_last(_: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.size:
            item[tuple(-1 for _ in item.shape)]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(read_last)
    except (OSError, RuntimeError, KeyError) as error:
        reason = _find_write_error("", path) or "HDF5 cannot read it back"
        raise OSError(0, reason) from error
