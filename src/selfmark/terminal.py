"""Write all output to the terminal; control characters are escaped and markup is printed literally.

Names of files, landmarks, labels and runs may come from strangers. With an ordinary Rich console, the
terminal would obey control characters in these names, and Rich would replace `[red]` and `:cat:`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from selfmark.errors import escape_control_characters


class PlainConsole(Console):
    """A console that shows control characters as escape codes and interprets neither markup nor emoji names.

    It does so in tables and progress bars too. The only control codes that reach the terminal are Rich's own.
    """

    def __init__(
        self,
        file: IO[str] | None = None,
        stderr: bool = False,
        width: int | None = None,
        force_terminal: bool | None = None,
    ) -> None:
        super().__init__(
            file=file,
            stderr=stderr,
            width=width,
            force_terminal=force_terminal,
            markup=False,
            emoji=False,
            highlight=False,
        )

    def print_line(self, text: str, style: str = "") -> None:
        """Print exactly one line, unwrapped so that paths can be copied."""
        self.print(escape_control_characters(text), style=style, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Convert a string to text as Rich does, but escape it first: tables need the escaped width."""
        return super().render_str(_escape_lines(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object as Rich does, with control characters in its text escaped."""
        for segment in super().render(renderable, options):
            if segment.control is None and not segment.text.isprintable():
                yield Segment(_escape_lines(segment.text), segment.style)
            else:
                yield segment


def _escape_lines(text: str) -> str:
    return "\n".join(map(escape_control_characters, text.split("\n")))
