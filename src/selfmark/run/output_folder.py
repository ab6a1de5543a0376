"""Check that the results of a command do not replace files of another run or model.

Commands check their output before they compute anything. A run may replace results in its own folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from selfmark.errors import InputError
from selfmark.run.files import read_json
from selfmark.run.guarded_files import (
    COMPARISON_FILE,
    VIEWS_FILE,
    make_folders,
    remove_empty_folder,
    require_same_folder,
)
from selfmark.run.locks import FolderLocked, exclusive

_OTHER_FOLDER = "choose another folder with -o"
# What a folder is, by the file that marks it.
_KINDS = {
    "run.json": "another run",
    VIEWS_FILE: "another run with views",
    COMPARISON_FILE: "another comparison",
}
# Files of a run that must not be replaced by results of the same name.
_RUN_FILES = (
    "config.yaml",
    "run.json",
    "images.json",
    "held_out.json",
    "verification.json",
    "landmark_count.json",
    "metrics.json",
)


def require_own_output(output: Path, source: Path | None = None, advice: str = _OTHER_FOLDER) -> None:
    """Raise if an output is, or lies in, the folder of another run.

    Args:
        output: Output folder or file, which need not exist.
        source: Run folder or model folder whose results are written; None if they belong to no run.
        advice: What to do instead, for the message.

    Raises:
        InputError: The output lies in another run, in a run with views, or in a comparison.
    """
    source_folder = Path(os.path.realpath(source)) if source is not None and source.exists() else None
    path = Path(os.path.realpath(output))
    for folder in (path, *path.parents):
        kind = _find_kind(folder)
        if kind is None:
            continue
        if source_folder is None or not _is_own(folder, source_folder):
            place = "is" if folder == path else f"lies in {folder}, which is"
            raise InputError(f"the output {output} {place} {kind}, whose files it could replace: {advice}")
        return


def _find_kind(folder: Path) -> str | None:
    """Return what a folder is if it is one of `_KINDS`, otherwise None."""
    return next((kind for marker, kind in _KINDS.items() if os.path.lexists(folder / marker)), None)


def _is_own(folder: Path, source_folder: Path) -> bool:
    """Return True if the results of `source_folder` may be written into a folder.

    They may be written into this folder itself, into each of its views if it is a run, into the run that
    contains it if it is a model folder, and into the folder of several runs that contains it.

    Args:
        folder: Folder of one of `_KINDS`.
        source_folder: Run folder or model folder.
    """
    if folder == source_folder:
        return True
    if folder in source_folder.parents:
        return _find_kind(folder) != _KINDS["run.json"] or _find_kind(source_folder) is None
    return source_folder in folder.parents and _find_kind(source_folder) == _KINDS[VIEWS_FILE]


def require_run_files_kept(outputs: Iterable[Path]) -> None:
    """Raise if one of the files that a command writes would replace a file of a run, such as images.json."""
    for path in outputs:
        if path.name in _RUN_FILES and _find_kind(path.parent) is not None:
            raise InputError(
                f"the results would replace {path}, which the run in this folder needs: {_OTHER_FOLDER}"
            )


def require_written_by_selfmark(outputs: Iterable[Path], record: Path, advice: str) -> None:
    """Raise if a file that a command writes exists already, but the folder has no record of results.

    Args:
        outputs: Files that the command writes.
        record: The record that selfmark writes after all results in a folder.
        advice: What to do instead, for the message.
    """
    existing_output = next((path for path in outputs if os.path.lexists(path)), None)
    if existing_output is not None and not record.exists():
        raise InputError(
            f"{existing_output} would be replaced, and without a {record.name} in the folder, it may not be "
            f"a result of selfmark: {advice}"
        )


def read_record(path: Path, advice: str, fields: Iterable[str] = ("selfmark",)) -> dict[str, Any] | None:
    """Read a JSON file of results that a command is about to replace; return None if there is none.

    Args:
        path: The file.
        advice: What to do instead, for the message.
        fields: Fields that every such file of selfmark has.

    Raises:
        InputError: The file was not written by selfmark.
    """
    if not path.exists():
        return None
    try:
        record = dict(read_json(path))
    except (InputError, TypeError, ValueError):
        record = {}
    if not record.keys() >= set(fields):
        raise InputError(f"{path} was not written by selfmark and would be replaced: {advice}")
    return record


def require_same_model(
    path: Path, model: str, run: Path, advice: str = _OTHER_FOLDER, *, allow_earlier: bool = False
) -> None:
    """Raise if a file of results was not written by selfmark, or was made with another model.

    Args:
        path: JSON file with the fields "model" and "run", which need not exist.
        model: Fingerprint of the model that is about to write results.
        run: Folder of this model. It may have had another model before, for example before `refine`.
        advice: What to do instead, for the message.
        allow_earlier: Whether results of an earlier model of the same run may be replaced.
    """
    record = read_record(path, advice)
    if record is None:
        return
    source = record.get("run", "unknown")
    is_earlier = source == str(run)
    if record.get("model") in (None, model) or (is_earlier and allow_earlier):
        return
    origin = (
        f"an earlier model of {run}, which has changed since" if is_earlier else f"another model ({source})"
    )
    raise InputError(f"{path.parent} has results of {origin}: {advice}")


@contextmanager
def output_folder(output: Path) -> Iterator[None]:
    """Create an output folder and claim it, so that no other process writes results to it.

    Another process may have written results since the output was checked, so repeat the checks in the
    context. If the context fails and a new folder is still empty, the folder is removed. On file systems that
    cannot lock folders, nothing is claimed.

    Raises:
        InputError: Another process has claimed the folder.
        DiskError: The folder was replaced by another one, so not all results are in it.
    """
    is_new = not output.exists()
    make_folders(output)
    with ExitStack() as lock:
        descriptor = _claim(output, lock)
        try:
            yield
            if descriptor is not None:
                require_same_folder(output, descriptor)
        except BaseException:
            if is_new:
                remove_empty_folder(output)
            raise


def _claim(output: Path, lock: ExitStack) -> int | None:
    """Lock a folder until `lock` is closed, and return its descriptor; None if it cannot be locked."""
    with suppress(OSError):  # raised by file systems without locks, and by network drives for folders
        try:
            return lock.enter_context(exclusive(output, lock_file=False))
        except FolderLocked as error:
            raise InputError(f"{error}: wait until it is done, or {_OTHER_FOLDER}") from error
    return None
