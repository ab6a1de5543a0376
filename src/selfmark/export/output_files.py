"""Choose the paths of exported files, write the files atomically, and check folders before an export."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from selfmark.errors import InputError, report_write_errors
from selfmark.run.files import atomic_open, atomic_write
from selfmark.run.guarded_files import make_folder, remove_folder
from selfmark.run.locks import FolderLocked, exclusive

STILL_IMAGES = "images"  # name of the file for all still images


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Write an output file atomically; yield the temporary path, which ends with the suffix of `path`.

    This is for libraries that need a path; use `open_output` otherwise.

    Raises:
        InputError: The file cannot be written.
    """
    with report_write_errors(path), atomic_write(path, keep_suffix=True) as temporary:
        yield temporary


@contextmanager
def open_output(
    path: Path, mode: str = "w", newline: str | None = None, verify: Callable[[Path], None] | None = None
) -> Iterator[Any]:
    """Write an output file atomically; yield the open file.

    Args:
        path: File to write.
        mode: "w" for text in UTF-8, "wb" for bytes.
        newline: As in `open`.
        verify: Raises if the finished file cannot be read back.

    Raises:
        InputError: The file cannot be written.
    """
    with report_write_errors(path), atomic_open(path, mode, newline=newline, verify=verify) as handle:
        yield handle


def choose_output_paths(sources: Sequence[Path | None]) -> dict[Path | None, Path]:
    """Return a relative output path without suffix for each video, and for all still images (None).

    The path of a video is relative to the folder that contains all videos. A video keeps its suffix if two
    outputs would otherwise have the same name.

    >>> paths = choose_output_paths([Path("a/day.mp4"), Path("b/day.mp4"), Path("b/day.avi"), None])
    >>> [path.as_posix() for path in paths.values()]
    ['a/day', 'b/day.mp4', 'b/day.avi', 'images']
    """
    absolute = {video: Path(os.path.abspath(video)) for video in sources if video is not None}
    common = os.path.commonpath([path.parent for path in absolute.values()]) if absolute else ""
    relative = {video: path.relative_to(common) for video, path in absolute.items()}
    uses = Counter(path.with_suffix("") for path in relative.values())
    if None in sources:
        uses[Path(STILL_IMAGES)] += 1
    paths: dict[Path | None, Path] = {
        video: path if uses[path.with_suffix("")] > 1 else path.with_suffix("")
        for video, path in relative.items()
    }
    return paths | ({None: Path(STILL_IMAGES)} if None in sources else {})


@contextmanager
def spool_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for rows that may not fit into memory; it is deleted at the end.

    Several processes may export to `folder`; each gets its own folder. Each call also deletes the
    folders that processes left in `folder` when they were killed.
    """
    for leftover in folder.glob(".rows.*part"):
        if leftover.is_symlink():
            continue
        with suppress(FolderLocked, OSError), exclusive(leftover):
            remove_folder(leftover)
    spool = folder / f".rows.{secrets.token_hex(4)}.part"
    try:
        make_folder(spool)
        with ExitStack() as lock:
            with suppress(OSError):  # raised by file systems without locks
                lock.enter_context(exclusive(spool))
            yield spool
    finally:
        remove_folder(spool)


def require_writable(folder: Path) -> None:
    """Raise if a folder cannot be written to; call it before predictions, which may take hours."""
    with report_write_errors(f"to {folder}"), tempfile.TemporaryFile(dir=folder):
        pass


def require_absent(folder: Path) -> None:
    """Raise if a folder exists: the user may have edited its files since an earlier export."""
    if folder.exists():
        raise InputError(f"{folder} already exists; remove it or choose another output folder with -o")


def require_unique_names(names: Iterable[str], target: str) -> None:
    """Raise if two landmarks share a name, for formats that identify landmarks by name."""
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(
            f"{count} landmarks are called '{name}', but {target} needs unique names; rename them"
        )
