"""Writes the signatures of docs/api.md anew; the words around them are kept: python docs/make_api.py

Every heading is the full name of something in the package, and a signature stands in the block below it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "api.md"
ENTRY = re.compile(r"(^#{3,4} (selfmark[\w.]*)\n\n)```text\n.*?```\n", flags=re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{3,4} (selfmark[\w.]*)$", flags=re.MULTILINE)
WIDTH = 100  # longer signatures get a line for each parameter


def find(name: str) -> Any:
    """What a dotted name means: the longest part that is a module, then attributes."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ValueError(f"there is no {name}")


def signature(name: str) -> str:
    """As it would be written in Python, with the full name."""
    described = inspect.signature(find(name))
    parameters = [str(one) for one in _plain(described).parameters.values() if one.name != "self"]
    returned = f" -> {described.return_annotation}" if isinstance(described.return_annotation, str) else ""
    line = f"{name}({', '.join(parameters)}){returned}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){returned}"


def _plain(described: inspect.Signature) -> inspect.Signature:
    """Annotations are strings here, which would be shown in quotes."""
    plain = [one.replace(annotation=_Shown(one.annotation)) for one in described.parameters.values()]
    return described.replace(parameters=plain)


class _Shown:
    """Shows itself as a text without quotes."""

    def __init__(self, text: object) -> None:
        self.text = text

    def __repr__(self) -> str:
        return str(self.text)


def page() -> str:
    return ENTRY.sub(lambda match: f"{match[1]}```text\n{signature(match[2])}\n```\n", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())
