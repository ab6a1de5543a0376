"""Console output: results go to stdout, everything else to stderr."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

# File and landmark names come from users, so nothing in them is interpreted as markup.
stdout = Console(markup=False)
stderr = Console(stderr=True, markup=False)


def print_result(line: str) -> None:
    """Print a line of the result to stdout, unwrapped so that paths can be copied."""
    stdout.print(line, highlight=False, soft_wrap=True)


def print_note(line: str, style: str = "") -> None:
    """Print a remark to stderr, so that it stays out of piped output."""
    stderr.print(line, highlight=False, soft_wrap=True, style=style)


def print_table(header: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> None:
    """Print a table of text to stdout."""
    table = Table(*header, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    stdout.print(table)
