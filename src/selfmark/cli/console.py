"""The terminal: what is said there, and how. Results go to stdout, everything else to stderr."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

# Names of files and landmarks are the user's, or a stranger's: nothing in them is markup.
stdout = Console(markup=False)
stderr = Console(stderr=True, markup=False)


def print_result(line: str) -> None:
    """A line of the result, whole: a path that is broken in two cannot be copied."""
    stdout.print(line, highlight=False, soft_wrap=True)


def print_note(line: str, style: str = "") -> None:
    """A line about the result, which a pipe does not see."""
    stderr.print(line, highlight=False, soft_wrap=True, style=style)


def print_table(header: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> None:
    """A table of words as part of the result."""
    table = Table(*header, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    stdout.print(table)
