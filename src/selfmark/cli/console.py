"""Print to the console: results go to stdout; notes, warnings and errors go to stderr."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from rich.table import Column, Table

from selfmark.errors import escape_control_characters
from selfmark.terminal import PlainConsole

stdout = PlainConsole()
stderr = PlainConsole(stderr=True)


def print_result(line: str) -> None:
    """Print a line of the result to stdout."""
    stdout.print_line(line)


def print_note(line: str, style: str = "") -> None:
    """Print a note to stderr, which keeps the note out of piped output."""
    stderr.print_line(line, style)


def print_table(header: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> None:
    """Print a table of text to stdout; an empty `header` means no header row."""
    columns, cells = list(header), [list(map(escape_control_characters, row)) for row in rows]
    table = Table(
        # Long words, such as paths, are continued in the next line instead of being cut off.
        *(Column(name, overflow="fold") for name in columns or [""] * max(map(len, cells), default=0)),
        title=escape_control_characters(title) or None,
        title_justify="left",
        show_header=bool(columns),
    )
    for row in cells:
        table.add_row(*row)
    stdout.print(table)


def print_warnings_as_notes() -> None:
    """Print the warnings of Python and of libraries as notes, one line per warning."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        print_note(f"{category.__name__}: {message}")

    warnings.showwarning = show
