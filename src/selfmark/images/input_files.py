"""Check files, names and values given by the user."""

from __future__ import annotations

import csv
import glob
import io
import os
import re
import reprlib
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

from selfmark.errors import InputError
from selfmark.image_ref import Box
from selfmark.run.guarded_files import open_to_read, physical_memory, read_bytes
from selfmark.run.json_schema import parse_json

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
VIDEO_SUFFIXES = (
    *(".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv"),
    *(".ts", ".mts", ".m2ts", ".flv", ".3gp", ".ogv", ".mxf", ".h264", ".asf"),
)
MIN_PIXELS_TO_CHECK = 4_000_000
"""Images and frames with at most this many pixels are decoded, however small their file is."""
MAX_PIXELS_PER_BYTE = 10_000
"""An image with more pixels per byte of its file counts as damaged if it has more pixels than
`MIN_PIXELS_TO_CHECK`. Even a bilevel PNG of one color has only 8,256 pixels per byte."""
MIN_FRAME_BYTES = 8
"""Lower bound on the size of a video frame; a frame without any change takes about 16 bytes."""
MAX_FRAMES = 20_000_000
"""A video with more frames is refused; this is more than two days at 100 frames per second."""
# JSON escapes a character beyond 16 bits as two halves (surrogates). A half alone is not valid Unicode.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
MAX_COORDINATE = 1e9  # pixels; far larger than any image, but small enough that its square does not overflow


def path_is(path: Path, kind: Callable[[Path], bool]) -> bool:
    """Return `kind(path)`, where `kind` is e.g. `Path.is_file`; return False if the path is invalid.

    Raises:
        InputError: if the path is valid, but not in the locale.
    """
    _require_locale(str(path), "the file name")
    try:
        return kind(path)
    except (OSError, ValueError):
        return False


def is_written_beside(path: Path, written: str, num_parts: int) -> bool:
    """Return True if a file has the name as it is written, beside a file that has it without some spaces.

    Args:
        path: the file that was found without the spaces around the written name.
        written: the name as it is written, with or without folders.
        num_parts: number of trailing parts that the path has in common with the name without spaces.
    """
    parts = Path(os.path.abspath(path)).parts
    named = Path(*parts[: len(parts) - num_parts], *PurePath(written).parts[-num_parts:])
    return named != Path(*parts) and path_is(named, Path.exists)


def require_input(item: str | Path) -> Path:
    """Return the path of an input, with `~` expanded; raise unless it is a file, a folder or a pattern."""
    if not str(item):
        raise InputError("an input is empty; give a file or folder (use . for the current folder)")
    try:
        path = Path(item).expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise InputError(f"there is no file or folder {item}: {error}") from error
    is_pattern = glob.has_magic(str(path)) and "\0" not in str(path)
    if not (path_is(path, Path.is_dir) or path_is(path, Path.is_file) or is_pattern):
        raise InputError(f"there is no file or folder {path}; check the path")
    return path


def require_readable(path: Path) -> None:
    """Raise if a file cannot be opened, is not a regular file, or is larger than the physical memory."""
    try:
        with open_to_read(path, physical_memory()):
            pass
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def check_frame_count(path: Path, frames: int) -> None:
    """Raise if a video has more than `MAX_FRAMES` frames, or claims more frames than its file can contain.

    This is called before arrays are allocated.
    """
    size = path.stat().st_size
    if frames > size // MIN_FRAME_BYTES:
        raise InputError(
            f"the header of {path} claims {frames:,} frames, but the file has {size:,} bytes; convert it, "
            "for example to MP4 (H.264)"
        )
    if frames > MAX_FRAMES:
        raise InputError(f"{path} has {frames:,} frames; split it into files of at most {MAX_FRAMES:,}")


def require_inputs_kept(
    outputs: Iterable[Path],
    inputs: Iterable[str | Path | None],
    advice: str = "choose another output folder with -o, or leave this file out of the inputs",
) -> None:
    """Raise if a command would replace one of its own input files; call it before anything is computed.

    Files are compared by their identity, so a file is also found under another name, for example a link.

    Args:
        outputs: The files that the command writes.
        inputs: The files that the command reads. None, folders, patterns and missing files are skipped.
        advice: What to do instead, for the message.
    """
    replaced = {identity: path for path in outputs if (identity := _identify_file(path)) is not None}
    if not replaced:
        return
    for item in inputs:
        identity = None if item is None else _identify_file(Path(item).expanduser())
        if identity in replaced:
            path = replaced[identity]
            same_file = "" if str(path) == str(item) else f", which is the same file as {path}"
            raise InputError(f"the results would replace the input {item}{same_file}: {advice}")


def _identify_file(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a regular file; None if there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def require_utf8(name: str, description: str) -> None:
    """Raise if a name cannot be encoded as UTF-8 and so cannot be written to a CSV or JSON file."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        if (original := _decode_despite_locale(name)) is not None:
            raise _build_locale_error(original, description) from error
        raise InputError(f"{description} {name!a} is not valid UTF-8; rename it") from error


def _decode_despite_locale(name: str) -> str | None:
    """Return the name of a file in UTF-8 that the locale could not decode; None if there is no such name."""
    if sys.getfilesystemencoding() == "utf-8":
        return None
    try:
        return os.fsencode(name).decode("utf-8")
    except UnicodeError:
        return None


def _require_locale(name: str, description: str) -> None:
    """Raise if no file can have a name because the locale cannot encode it."""
    if sys.getfilesystemencoding() == "utf-8":
        return
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise _build_locale_error(name, description) from error


def _build_locale_error(name: str, description: str) -> InputError:
    return InputError(
        f"{description} {name!a} has characters that the locale "
        f"({sys.getfilesystemencoding()}) does not have: set the environment variable PYTHONUTF8=1"
    )


def require_file_name(name: str, description: str) -> None:
    """Raise if a name cannot be that of a file, or cannot be encoded as UTF-8 or in the locale."""
    if "\0" in name:
        raise InputError(f"{description} {name!a} has a null character, which no file can have: correct it")
    require_utf8(name, description)
    _require_locale(name, description)


def read_text_input(path: Path) -> str:
    """Read a UTF-8 text file, with or without a byte order mark; all line ends become newlines."""
    try:
        text = read_bytes(path, physical_memory()).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file; save it as UTF-8") from error


def read_text_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 text file, without line ends.

    Unlike `str.splitlines`, characters that may occur in file names, such as U+2028, do not end a line.
    """
    return read_text_input(path).removesuffix("\n").split("\n")


def read_csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Read a CSV file; return the number of its first line and the cells of each row.

    A quoted cell may contain line ends.
    """
    reader = csv.reader(io.StringIO(read_text_input(path), newline=""))
    rows, first = [], 1
    try:
        for cells in reader:
            rows.append((first, cells))
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path} line {first} is not a row of a table: {error}") from error
    return rows


def read_json_input(path: Path) -> Any:
    """Read a JSON file; raise if it is not valid, or if a text in it is not valid Unicode."""
    text = read_text_input(path)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if _SURROGATE.search(text):
        _require_utf8_texts(content, path)
    return content


def _require_utf8_texts(content: Any, path: Path) -> None:
    """Raise if a text in the content of a JSON file, or a key, cannot be encoded as UTF-8."""
    remaining = [("", content)]  # not recursive, because the content may be nested deeply
    while remaining:
        where, value = remaining.pop()
        if isinstance(value, str):
            require_utf8(value, f"{path}: {where}")
        elif isinstance(value, dict):
            for key, item in value.items():
                require_utf8(key, f"{path}: a key of {where or 'the file'}")
                remaining.append((f"{where}.{key}".lstrip("."), item))
        elif isinstance(value, list):
            remaining += [(f"{where}[{number}]", item) for number, item in enumerate(value)]


def parse_box(values: Any, description: str) -> Box:
    """Check that the values are a box and return it.

    Boxes without area are allowed here, because they occur in real label files; the image store skips them.

    Args:
        values: A list of x, y, width and height.
        description: What the box is called in messages, with its location in the file.
    """
    numbers = values if isinstance(values, list) else []
    # Unlike `math.isfinite`, a comparison also works for integers that are too large for a float.
    is_usable = all(
        isinstance(number, int | float) and not isinstance(number, bool) and abs(number) <= MAX_COORDINATE
        for number in numbers
    )
    if len(numbers) != 4 or not is_usable or numbers[2] < 0 or numbers[3] < 0:
        raise InputError(
            f"{description} must be four finite numbers x, y, w, h with w and h not negative, "
            f"not {reprlib.repr(values)}"
        )
    x, y, width, height = map(float, numbers)
    return x, y, width, height
