"""Official list files: lines of words. What is wrong in one is said with its file and line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from selfmark.errors import InputError
from selfmark.images.input_files import read_text

Row = tuple[str, list[str]]  # words that name the line, and the words of the line


def read_rows(path: Path, words: int, header: int = 0) -> list[Row]:
    """The lines of a file that are not empty, of so many words each, after so many lines of header."""
    found = []
    for number, text in enumerate(read_text(path).splitlines(), 1):
        parts = text.split()
        if number <= header or not parts:
            continue
        where = f"{path}, line {number}"
        if len(parts) != words:
            raise InputError(f"{where}: {words} words are expected, not {len(parts)}")
        found.append((where, parts))
    if not found:
        raise InputError(f"{path} lists nothing; get it again")
    return found


def read_counted_rows(path: Path, words: int) -> list[Row]:
    """The same of a file whose first line is the number of rows and whose second names the columns."""
    first = next(iter(read_text(path).splitlines()), "").strip()
    if not first.isdecimal():
        raise InputError(f"{path}, line 1: the number of rows is expected, not '{first[:40]}'")
    found = read_rows(path, words, header=2)
    if len(found) != int(first):
        raise InputError(f"{path} holds {len(found)} rows where its first line says {first}; get it again")
    return found


def parse_numbers(words: Sequence[str], where: str) -> list[float]:
    """The words as finite numbers."""
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
