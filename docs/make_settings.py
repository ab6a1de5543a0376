"""Write docs/settings.md from the configuration: every setting, its meaning and its value in each preset.

Run `python docs/make_settings.py` after you change a setting. A test fails until you do.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from selfmark import config

_FIELD = re.compile(r"^    (\w+): ")
_COMMENT = re.compile(r"#\s*(.*)$")


def read_field_comments(kind: type[Any]) -> dict[str, str]:
    """Return the comment of each field of a dataclass: on its line or, if the comment is long, above it."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        field, comment = _FIELD.match(line), _COMMENT.search(line)
        if field:
            comments[field[1]] = comment[1] if comment else " ".join(above)
        above = [*above, comment[1]] if comment and not field else []
    return comments


def build_page() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Settings",
        "",
        "This page lists every setting of the method with its value in each preset. Change one with",
        "`--set NAME=VALUE`:",
        "",
        "```bash",
        "selfmark discover photos/ -o runs/changed --set M=50 --set flip.test=false",
        "```",
        "",
        'From Python, use `selfmark.discover("photos/", settings={"M": 50, "flip.test": False})`. Each run',
        "saves its settings in `config.yaml`.",
        "",
        "selfmark refuses a number outside the range in the column *allowed*. For a list, the range applies",
        "to each of its numbers.",
        "",
    ]
    presets = config.PRESETS
    sections: list[tuple[str, type[Any]]] = [("", config.Config)]
    for item in dataclasses.fields(config.Config):
        value = getattr(presets["paper"], item.name)
        if dataclasses.is_dataclass(value):
            sections.append((item.name, type(value)))
    for name, kind in sections:
        lines += [f"## {name or 'General'}", ""]
        if name:
            lines += [inspect.getdoc(kind) or "", ""]
        lines += ["| setting | " + " | ".join(presets) + " | allowed | meaning |"]
        lines += ["| --- |" + " --- |" * (len(presets) + 2)]
        meanings, hints = read_field_comments(kind), get_type_hints(kind)
        for item in dataclasses.fields(kind):
            values = []
            for preset in presets.values():
                section = getattr(preset, name) if name else preset
                values.append(getattr(section, item.name))
            if dataclasses.is_dataclass(values[0]):
                continue
            dotted = f"{name}.{item.name}" if name else item.name
            shown = " | ".join(_format_value(value) for value in values)
            allowed = _describe_allowed(item, hints[item.name])
            lines.append(f"| `{dotted}` | {shown} | {allowed} | {meanings.get(item.name, '')} |")
        lines.append("")
    return "\n".join(lines)


def _describe_allowed(item: dataclasses.Field[Any], hint: Any) -> str:
    """Return the choices of a setting, or the limits of its numbers."""
    if get_origin(hint) is Literal:
        return ", ".join(get_args(hint))
    is_number = hint in (int, float) or get_origin(hint) is tuple
    return str(config.limit_of(item)) if is_number else ""


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f"{item:g}" for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(build_page(), encoding="utf-8")
