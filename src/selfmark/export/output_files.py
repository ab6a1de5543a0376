"""Choose the paths of exported files, write the files atomically, and check folders before an export."""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from selfmark.errors import InputError, report_write_errors
from selfmark.run.files import atomic_open, atomic_write, strip_temporary
from selfmark.run.guarded_files import make_folder, remove_folder
from selfmark.run.locks import FolderLocked, exclusive

Source = TypeVar("Source", bound=Hashable)

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
        verify: Function that raises an error if the finished file cannot be read back.

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
    relative = find_relative_paths([video for video in sources if video is not None])
    names: dict[Path | None, list[Path]] = {
        video: [path.with_suffix(""), path] for video, path in relative.items()
    }
    if None in sources:
        names[None] = [Path(STILL_IMAGES)]
    return choose_unique_paths(names)


def find_relative_paths(files: Iterable[Path]) -> dict[Path, Path]:
    """Return the path of each file relative to the innermost folder that contains all of them."""
    absolute_paths = {file: Path(os.path.abspath(file)) for file in files}
    common_folder = (
        os.path.commonpath([path.parent for path in absolute_paths.values()]) if absolute_paths else ""
    )
    return {file: path.relative_to(common_folder) for file, path in absolute_paths.items()}


def choose_unique_paths(names: Mapping[Source, Sequence[Path]]) -> dict[Source, Path]:
    """Choose one of several names for the output of each source, so that no two outputs have the same name.

    Names that differ only in case or in the encoding of accents count as equal, because some file systems
    do not distinguish them. A source gets its first name if no other source has the same name. Otherwise,
    all sources with this name get their next names. If none of them has a next name, numbers are appended.

    Args:
        names: Possible names of each source, the best one first.

    >>> videos = [Path(name) for name in ("a.mp4", "a.avi", "b.avi")]
    >>> names = {video: [video.with_suffix(""), video] for video in videos}
    >>> [path.name for path in choose_unique_paths(names).values()]
    ['a.mp4', 'a.avi', 'b']
    """
    attempts = dict.fromkeys(names, 0)
    chosen = {source: candidates[0] for source, candidates in names.items()}
    while equal := _group_equal_names(chosen):
        # A next name can be equal to that of yet another source, so the result is always checked again.
        used = {normalize_name(path) for path in chosen.values()}
        for group in equal:
            movable = [source for source in group if attempts[source] + 1 < len(names[source])]
            for source in movable:
                attempts[source] += 1
                chosen[source] = names[source][attempts[source]]
            if not movable:
                for source in group[1:]:
                    chosen[source] = number_name(chosen[source], used)
                    used.add(normalize_name(chosen[source]))
    return chosen


def number_name(path: Path, used: Container[str]) -> Path:
    """Return a path if it is unused; otherwise append the first number from 2 that makes it unused.

    Args:
        path: A path without suffix.
        used: Names that are used already, see `normalize_name`.

    >>> number_name(Path("out/Day"), {"out/day", "out/day_2"}).as_posix()
    'out/Day_3'
    """
    numbered = (path.with_name(f"{path.name}_{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([path], numbered) if normalize_name(name) not in used)


def normalize_name(path: Path) -> str:
    """Return a text that is equal for paths that some file systems do not distinguish."""
    return unicodedata.normalize("NFC", path.as_posix()).casefold()


def _group_equal_names(chosen: Mapping[Source, Path]) -> list[list[Source]]:
    """Return the sources that share a name, one list per name."""
    groups: dict[str, list[Source]] = {}
    for source, path in chosen.items():
        groups.setdefault(normalize_name(path), []).append(source)
    return [group for group in groups.values() if len(group) > 1]


@contextmanager
def spool_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for rows that may not fit into memory; it is deleted at the end.

    Several processes may export to `folder`; each gets its own folder. Each call also deletes the
    folders that processes left in `folder` when they were killed.
    """
    for leftover in folder.glob(".rows.*.part"):
        if leftover.is_symlink() or strip_temporary(leftover.name) != "rows":
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
