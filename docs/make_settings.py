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

_INTRODUCTION = """# Settings

This page lists every setting of the method with its value in each preset. Change one with
`--set NAME=VALUE`:

```bash
selfmark discover photos/ -o runs/changed --set M=50 --set flip.test=false
```

From Python, use `selfmark.discover("photos/", settings={"M": 50, "flip.test": False})`. Each run
saves its settings in `config.yaml`.

selfmark refuses a number outside the range in the column *allowed*. For a list, the range applies
to each of its numbers.

The descriptions use the terms of this table. The [glossary](glossary.md) explains all others.
"""

# Terms that the descriptions of many settings use. Each is explained once, at the top of the page.
_TERMS = {
    "the paper": (
        "Mallis, Sanchez, Bell, Tzimiropoulos, *From Keypoints to Object Landmarks via Self-Training "
        "Correspondence: A Novel Approach to Unsupervised Landmark Discovery* (TPAMI 2023)"
    ),
    "Sec. 4.2, Eq. 3": "a section and an equation of the paper",
    "the authors' program": "the program that the authors of the paper published with it",
    "the authors' earlier method": "their method of 2020, here [`mallis2020`](methods.md#mallis2020)",
    "K": "number of landmarks",
    "M": "number of clusters into which Stage 1 groups the keypoints to label them",
    "Phi (Φ)": "the network of Stage 1, which finds and describes keypoints",
    "Psi (Ψ)": "the network of Stage 2, which places the K landmarks",
    "Stage 1": (
        "the training of Phi. Runs with features include Stage 1 only if the objects are upright and "
        "`features.keypoint_landmarks` is true. Most methods of other papers do not include it."
    ),
    "Stage 2": (
        "the training of Psi, which starts from Phi. Runs with features and most methods of other papers do "
        "not include it."
    ),
    "run with features": "a run in which `features.name` is not `none`, which is the default",
    "encoder": "the pretrained network that computes the features",
    "head": "the last layers of a network, which compute heatmaps or descriptors",
    "student": "the network of a run with features: the encoder and a head, trained in rounds",
    "zero-shot landmarks": "landmarks that are found by features alone, before any training",
    "candidate": (
        "a part of the object that may become a landmark. A run with features finds candidates first, and "
        "chooses the landmarks among them."
    ),
    "place": "the position of a cell in its image, which can be part of the description of the cell",
    "guessing": "predicting the mean position of each point for every image",
    "unexplained fraction": (
        "how badly one set of landmarks can be predicted from another set: the error of the prediction, "
        "divided by the error of guessing. It is 0 for a perfect prediction, and about 1 for unrelated sets."
    ),
    "expected error": "the error of a landmark, estimated without labels, divided by the error of guessing",
    "expected forward error": (
        "the error of predicting annotated points from the landmarks, estimated without labels, divided by "
        "the error of guessing"
    ),
    "cell": "a square of 4 x 4 pixels in heatmaps, and of 8 x 8 pixels in features",
    "pixel": "a pixel of the network's square input, unless the description names another image",
}


def read_field_comments(kind: type[Any]) -> dict[str, str]:
    """Return a mapping from fields of a dataclass to comments, which are on the same line or above it."""
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
    lines = [_INTRODUCTION, "| term | meaning |", "| --- | --- |"]
    lines += [f"| {term} | {meaning} |" for term, meaning in _TERMS.items()]
    lines.append("")
    presets = config.PRESETS
    sections: list[tuple[str, type[Any]]] = [("", config.Config)]
    for item in dataclasses.fields(config.Config):
        value = getattr(presets["paper"], item.name)
        if dataclasses.is_dataclass(value):
            sections.append((item.name, type(value)))
    for name, kind in sections:
        introduction = inspect.getdoc(kind) if name else "The main choices of every run."
        lines += [f"## {name or 'General'}", "", introduction or "", ""]
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
