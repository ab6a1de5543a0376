"""Define the errors that selfmark raises on purpose.

`InputError` means that the user can fix the problem; the exit code is 2. `TrainingError` means that the
training itself failed, for example because the loss is not finite or the landmarks collapsed; the exit code
is 1.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_MAX_WORD = 500  # maximum length of a word in a message, such as a path, in characters
_MAX_MESSAGE = 2_000  # maximum length of a message, in characters


class SelfmarkError(Exception):
    """Base class of all errors that selfmark raises on purpose."""

    def __str__(self) -> str:
        """Return the message, shortened if it repeats a very long name or value."""
        return shorten_message(super().__str__())


class InputError(SelfmarkError):
    """Unusable input; the message is one sentence that says what is wrong and what to do."""


class DamagedFile(InputError):
    """A file written by selfmark, or a file of weights, that cannot be read or has the wrong content."""


class UnsafeFile(InputError):
    """A link or a special file where a run folder should have a regular file or a folder."""


class DiskError(InputError):
    """A file or folder cannot be written; the command can be repeated or resumed once the cause is fixed."""


class NotEnoughData(InputError):
    """Too few images, or too few keypoints in them, for the requested settings."""


class TrainingError(SelfmarkError):
    """Training failed; the message says what was observed and what to try."""


class CollapsedTraining(TrainingError):
    """A network found too few points, or points that are all alike; training it further would not help."""


def require_package(package: str, install: str) -> ModuleType:
    """Import an optional package.

    Args:
        package: name of the module to import.
        install: argument of `pip install` that provides the package, for the error message.

    Raises:
        InputError: if the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"this needs the package {package}, which is not installed: pip install {install}"
        ) from error


def describe_os_error(error: OSError) -> str:
    """Return what an OSError says, in one line.

    >>> describe_os_error(OSError(28, "No space left on device"))
    'No space left on device'
    >>> describe_os_error(TimeoutError())
    'TimeoutError'
    """
    known = os.strerror(error.errno) if error.errno else ""
    return known or (str(error.strerror or error) or type(error).__name__).splitlines()[0]


@contextmanager
def report_write_errors(target: Path | str, advice: str = "") -> Iterator[None]:
    """Convert an OSError in the context to a DiskError.

    If a method fails with another error, `selfmark compare` stores this error as the result of the method. A
    DiskError stops the comparison instead.

    Args:
        target: what is written: a path, or the word "to" and a folder.
        advice: what to do, appended to the message.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot write {target}: {describe_os_error(error)}{advice}") from error


@contextmanager
def report_path_errors() -> Iterator[None]:
    """Convert an OSError that names a path to a DiskError, e.g. if the name of a file is too long.

    The new error is a DiskError and not another InputError, because the next attempt may succeed: a disk may
    have failed, or a file may just have been replaced.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise DiskError(f"{error.filename}: {describe_os_error(error)}") from error


def shorten_message(text: str) -> str:
    """Leave out the middle of very long words, such as names and values, and of a very long text.

    >>> shorten_message(f"there is no file '{'a' * 5000}.png'") == (
    ...     f"there is no file '{'a' * 332} ... {'a' * 162}.png'"
    ... )
    True
    """
    words = re.sub(rf"\S{{{_MAX_WORD + 1},}}", lambda word: _cut(word[0], _MAX_WORD), text)
    return _cut(words, _MAX_MESSAGE)


def _cut(text: str, length: int) -> str:
    """Leave out the middle of a text, so that `length` characters remain: two thirds of them at the start."""
    head = 2 * length // 3
    return text if len(text) <= length else f"{text[:head]} ... {text[head - length :]}"


def escape_control_characters(text: str) -> str:
    r"""Return the text on one line, with escape codes for characters that a terminal would interpret.

    >>> escape_control_characters("no file 'a\x1b[2J.png'")
    "no file 'a\\x1b[2J.png'"
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the most similar known name, or '' if no name is similar.

    >>> suggest("rotaton", ["rotation", "scale"])
    " Did you mean 'rotation'?"
    >>> suggest("color", ["rotation", "scale"])
    ''
    """
    similar_names = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{similar_names[0]}'?" if similar_names else ""
