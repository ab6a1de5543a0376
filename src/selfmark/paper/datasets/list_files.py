"""Read official list files, whose lines consist of words; error messages name the file and the line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from selfmark.errors import InputError
from selfmark.images.input_files import read_text_lines

_MAX_DIGITS = 12  # digits of the number of rows; Python refuses to convert thousands of digits
Row = tuple[str, list[str]]  # file and line number for messages, and the words of the line


def read_rows(path: Path, num_words: int, num_header_lines: int = 0) -> list[Row]:
    """Read the non-empty lines of a file.

    Args:
        path: File to read.
        num_words: Number of words in each line.
        num_header_lines: Number of lines to skip at the beginning.
    """
    rows = []
    for number, line in enumerate(read_text_lines(path), 1):
        words = line.split()
        if number <= num_header_lines or not words:
            continue
        where = f"{path}, line {number}"
        if len(words) != num_words:
            raise InputError(f"{where}: expected {num_words} words, found {len(words)}")
        rows.append((where, words))
    if not rows:
        raise InputError(f"{path} is empty; download it again")
    return rows


def read_counted_rows(path: Path, num_words: int) -> list[Row]:
    """Read a file with two header lines: the number of rows, and the names of the columns."""
    first = next(iter(read_text_lines(path)), "").strip()
    if not first.isdecimal() or len(first) > _MAX_DIGITS:
        raise InputError(f"{path}, line 1: expected the number of rows, found '{first[:40]}'")
    rows = read_rows(path, num_words, num_header_lines=2)
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
