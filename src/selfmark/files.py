"""JSON files that are whole or not there, and refused if a newer selfmark wrote them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from selfmark._version import __version__
from selfmark.errors import InputError

FORMAT = 1  # of run folders and models; raised when an older selfmark could not read them


def write_json(value: Any, path: Path) -> None:
    """Write JSON, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "w", encoding="utf-8") as handle:
        json.dump(value, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error


def require_format(values: Any, path: Path) -> None:
    """Refuse what a newer selfmark wrote, and what no selfmark wrote."""
    written = values.get("format") if isinstance(values, dict) else None
    if not isinstance(written, int):
        raise InputError(f"{path} was not written by selfmark")
    if written > FORMAT:
        raise InputError(
            f"{path} was made by a newer selfmark ({values.get('selfmark', 'version unknown')}); "
            f"this is {__version__}: upgrade with 'pip install -U selfmark'"
        )
