"""The two ways selfmark says no.

`InputError` is the user's to mend: one clear sentence, exit code 2, nothing half-written.
`TrainingError` means the run itself went wrong (loss not finite, landmarks collapsed): exit code 1.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class SelfmarkError(Exception):
    """Base of every error selfmark raises on purpose."""


class InputError(SelfmarkError):
    """Something the user gave cannot be used; the message is one sentence that says what to do."""


class DamagedFile(InputError):
    """A file of selfmark's own whose content is not what was written."""


class DiskError(InputError):
    """The run folder cannot be written; what is there is kept, and the run can go on once that is mended."""


class TooLittle(InputError):
    """The images hold too little for what was asked of them: too few of them, or of points in them."""


class TrainingError(SelfmarkError):
    """Training could not reach a usable model; the message says what was seen and what to try."""


def need(package: str, install: str) -> ModuleType:
    """An optional package, or one sentence about how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(
            f"this needs the package {package}, which is not installed: pip install {install}"
        ) from error


def printable(text: str) -> str:
    """The text on one line, without what a terminal would obey instead of show.

    >>> printable("no file 'a\\x1b[2J.png'")
    "no file 'a\\\\x1b[2J.png'"
    """
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
