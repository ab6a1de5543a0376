"""Read the environment variables with which torchrun tells a process its rank and how to connect."""

from __future__ import annotations

import os

from selfmark.errors import InputError

_NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")  # torch needs these to connect several processes


def read_count(name: str, default: int) -> int:
    """Return an environment variable that is a number of at least 0, for example WORLD_SIZE.

    Args:
        name: name of the variable.
        default: number if the variable is not set.

    Raises:
        InputError: if the variable is something else.
    """
    text = os.environ.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InputError(
            f"the environment variable {name} must be a number, not '{text[:40]}'; if you do not use "
            f"torchrun, remove it with: unset {name}"
        )
    return int(text)


def require_connection(size: int) -> None:
    """Raise if the variables that connect `size` processes are missing."""
    missing_names = [name for name in _NEEDED if name not in os.environ]
    if size > 1 and missing_names:
        raise InputError(
            f"the environment variable WORLD_SIZE asks for {size} processes, but {missing_names[0]} is not "
            "set: start several processes with torchrun, or remove it with: unset WORLD_SIZE"
        )
