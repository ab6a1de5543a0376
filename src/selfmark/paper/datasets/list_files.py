"""Read official list files, which are lines of words; error messages name the file and line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from selfmark.errors import InputError
from selfmark.images.input_files import read_text

Row = tuple[str, list[str]]  # file and line number for messages, and the words of the line


def read_rows(path: Path, words: int, header: int = 0) -> list[Row]:
    """Read the non-empty lines of a file.

    Args:
        path: the file.
        words: number of words in each line.
        header: number of lines to skip at the beginning.
    """
    rows = []
    for number, text in enumerate(read_text(path).splitlines(), 1):
        parts = text.split()
        if number <= header or not parts:
            continue
        where = f"{path}, line {number}"
        if len(parts) != words:
            raise InputError(f"{where}: expected {words} words, found {len(parts)}")
        rows.append((where, parts))
    if not rows:
        raise InputError(f"{path} is empty; download it again")
    return rows


def read_counted_rows(path: Path, words: int) -> list[Row]:
    """Read the rows of a file whose first line is their number and whose second names the columns."""
    first = next(iter(read_text(path).splitlines()), "").strip()
    if not first.isdecimal():
        raise InputError(f"{path}, line 1: expected the number of rows, found '{first[:40]}'")
    rows = read_rows(path, words, header=2)
    if len(rows) != int(first):
        raise InputError(f"{path} has {len(rows)} rows, but its first line says {first}; download it again")
    return rows


def parse_numbers(words: Sequence[str], where: str) -> list[float]:
    """Convert words to finite numbers; error messages begin with `where`."""
    values = []
    for word in words:
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{where}: '{word}' is not a number")
        values.append(value)
    return values
