"""Define the options that several commands share, and parse their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from typer.core import TyperCommand

from selfmark.config import Method
from selfmark.errors import InputError, suggest

if TYPE_CHECKING:
    from selfmark.tracking.regions import Regions

RunFolder = Annotated[Path, typer.Argument(help="Run folder with a trained detector.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Port = Annotated[int, typer.Option(help="Local port; 0: any free port.", min=0, max=65535)]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")]
Every = Annotated[int, typer.Option(help="Use every n-th frame of each video.", min=1)]
Boxes = Annotated[
    Path | None,
    typer.Option(help="Boxes of the objects: a COCO .json, a .csv, or a folder of YOLO .txt files."),
]
Crop = Annotated[str, typer.Option(help="X,Y,W,H in pixels: use only this part of every image.")]
FindAnimals = Annotated[
    int, typer.Option("--find-animals", help="Track this many animals in front of a fixed camera.", min=0)
]

Views = Annotated[
    list[str] | None,
    typer.Option(
        "--views",
        help="Several views of one animal in each image: NAME=X,Y,W,H for each, e.g. top=0,0,396,200 "
        "bottom=0,200,396,206.",
    ),
]
Recipe = Annotated[
    str, typer.Option(help="Kind of images: auto, upright, any-orientation, side-view or many-colors.")
]

RENAMED_OPTIONS = {"--normaliser": "--normalizer", "--most": "--max-images"}
"""Mapping from old option names to current ones. The old names still work, but --help does not show them."""
_VIEW = re.compile(r"[^=/]+=[-+.,\d]+")  # NAME=X,Y,W,H


class Command(TyperCommand):
    """A command that also accepts old names of its options, and several views after one --views."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace old option names, write --views before every view, then parse as usual."""
        return super().parse_args(ctx, repeat_views(rename_options(args)))


def rename_options(arguments: Sequence[str]) -> list[str]:
    """Replace old option names by current ones.

    >>> rename_options(["run", "--normaliser=box", "--", "--most"])
    ['run', '--normalizer=box', '--', '--most']
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    renamed = []
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        renamed.append(RENAMED_OPTIONS.get(name, name) + equals + value)
    return renamed + list(arguments[end:])


def repeat_views(arguments: Sequence[str]) -> list[str]:
    """Write --views before every view, so that one --views can be followed by several views.

    >>> repeat_views(["run", "--views", "a=0,0,5,5", "b=5,0,5,5", "video.mp4"])
    ['run', '--views', 'a=0,0,5,5', '--views', 'b=5,0,5,5', 'video.mp4']
    """
    repeated: list[str] = []
    for argument in arguments:
        follows_view = len(repeated) > 1 and repeated[-2] == "--views"
        if follows_view and _VIEW.fullmatch(argument):
            repeated.append("--views")
        repeated.append(argument)
    return repeated


def parse_settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """Parse the NAME=VALUE pairs of `--set`; values stay text here and are parsed as YAML later."""
    settings: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, not '{pair}'")
        settings[name] = value
    return settings


def parse_method(value: str | None) -> Method | None:
    """Parse the value of `--method`; None if the option is not given."""
    if value is None:
        return None
    methods: dict[str, Method] = {name: name for name in get_args(Method)}
    if value in methods:
        return methods[value]
    hint = suggest(value, methods)
    raise InputError(f"--method must be one of {', '.join(methods)}, not '{value}'.{hint}")


def parse_landmark_count(text: str | None) -> int | Literal["auto"] | None:
    """Parse the value of `-k`; None if the option is not given."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise InputError(f"-k takes a number of landmarks, at least 1, or 'auto', not '{text[:40]}'")
    return int(text)


def parse_regions(boxes: Path | None, crop: str, find_animals: int) -> Regions:
    """Combine the options that say where the objects are in the images."""
    from selfmark.tracking.regions import Regions, parse_crop

    return Regions(boxes, parse_crop(crop) if crop else None, find_animals)
