"""Test that untrusted text cannot affect the terminal: control characters are escaped, markup is literal."""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.table import Table

import selfmark as package
from selfmark.cli import console
from selfmark.cli.progress import CountDisplay, ProgressDisplay
from selfmark.terminal import PlainConsole
from tests.conftest import selfmark

# A text with control characters and rich markup, and how it must be printed.
HOSTILE = "\x1b]0;title\x07\x1b[2J\r\x9b31m\u202e [red]:cat:[/red]\n"
SHOWN = "\\x1b]0;title\\x07\\x1b[2J\\r\\x9b31m\\u202e [red]:cat:[/red]\\n"

# Pattern of code that prints without the package's console. Only this console makes text harmless.
_PRINTS = re.compile(
    r"(?<![\w.])(print|rich\.print|typer\.s?echo|sys\.std(out|err)\.write)\(|^\s*from rich\.console import"
)


def is_harmless(text: str) -> bool:
    """Return True if a text has no characters of Unicode category C (control, format) except line breaks."""
    return all(char == "\n" or not unicodedata.category(char).startswith("C") for char in text)


@given(st.text(alphabet=st.characters(), max_size=40))
@example(HOSTILE)
@example("\ud800")
@settings(max_examples=50, deadline=None)
def test_a_line_is_one_line_without_control_characters(text: str) -> None:
    out = PlainConsole(file=io.StringIO(), width=20)
    out.print_line(text)
    assert isinstance(out.file, io.StringIO)
    printed = out.file.getvalue()
    assert printed.endswith("\n")
    assert printed.count("\n") == 1
    assert is_harmless(printed)
    if text.isprintable() and text.isascii():
        assert printed == text + "\n"


def test_tables_escape_names() -> None:
    out = PlainConsole(file=io.StringIO(), width=200)
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    out.print(table)
    assert isinstance(out.file, io.StringIO)
    printed = out.file.getvalue()
    assert is_harmless(printed)
    # The title, the header and a cell have this text. Line breaks in a Rich table stay line breaks.
    assert printed.count(SHOWN.removesuffix("\\n")) == 3


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_displays_escape_names(is_terminal: bool) -> None:
    out = PlainConsole(file=io.StringIO(), width=300, force_terminal=is_terminal)
    with ProgressDisplay(out) as display:
        start = {"event": "start", "preset": "tiny", "device": "cpu", "why": "", "images": 1, "K": 2}
        display(start | {"output": HOSTILE})
        for event in ("note", "advice"):
            display({"event": event, "text": HOSTILE})
        display({"event": "damaged", "reason": HOSTILE, "instead": HOSTILE})
        display({"event": "preview", "path": HOSTILE})
        display({"event": "progress", "stage": HOSTILE, "round": 0, "done": 1, "of": 2})
        display({"event": "progress", "stage": HOSTILE, "round": 0, "done": 2, "of": 2})
    with CountDisplay(out, HOSTILE, HOSTILE) as count:
        count(1, 2)
    assert isinstance(out.file, io.StringIO)
    printed = out.file.getvalue()
    assert not any(code in printed for code in ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x07"))
    assert printed.count(SHOWN) >= 6
    if not is_terminal:
        assert is_harmless(printed)


def test_results_notes_tables_and_warnings_escape_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.stdout, "width", 300)
    console.print_result(HOSTILE)
    console.print_note(HOSTILE, style="red")
    console.print_table([HOSTILE], [[HOSTILE]], title=HOSTILE)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        console.print_warnings_as_notes()
        warnings.warn(HOSTILE, stacklevel=1)
    out, err = capsys.readouterr()
    assert is_harmless(out + err)
    # The text is in the result, in the title, in the header and in the cell.
    assert out.count(":cat:") == 4, "':cat:' was replaced by an emoji"
    assert out.count(SHOWN) == 3  # In the header, the line break is not escaped.
    assert err.splitlines() == [SHOWN, f"UserWarning: {SHOWN}"]


def test_errors_in_arguments_are_one_harmless_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments in (
        [HOSTILE],
        ["discover", f"--{HOSTILE}"],
        ["discover", "-o", "run", "photos", "--every", HOSTILE],
        ["predict", "run", "photos", f"--set{HOSTILE}"],
        ["discover", tmp_path / ":cat:[red]", "-o", tmp_path / "run"],
        ["discover", tmp_path, "-o", tmp_path / "run", "--set", f"{HOSTILE}=1"],
        ["discover", tmp_path, "-o", tmp_path / "run", "--preset", HOSTILE],
    ):
        assert selfmark(*arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("selfmark: ")
        assert err.count("\n") == 1, err
        assert is_harmless(err)
        assert "\N{CAT}" not in err


def test_modules_print_only_through_the_console() -> None:
    root = Path(package.__file__).parent
    offenders = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if path.name != "terminal.py" and _PRINTS.search(line)
    ]
    assert offenders == []
    assert _PRINTS.search("    print(name)")
    assert not _PRINTS.search("    self.console.print(table)")
