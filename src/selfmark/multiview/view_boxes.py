"""Parse, check and store the names and boxes of the views of an image."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selfmark.errors import InputError
from selfmark.image_ref import Box, ImageRef, is_possible_box
from selfmark.images.decode import UnreadableImage, read_image_size
from selfmark.images.video import probe_video
from selfmark.run.files import FORMAT, is_view_name, read_json, read_view_list, write_json
from selfmark.run.guarded_files import VIEWS_FILE


@dataclass(frozen=True)
class View:
    """A part of every image that shows the animal from one side.

    Attributes:
        name: Name of the view; the names of its landmarks start with it.
        box: x, y, width and height in pixels of the image, measured from pixel corners.
    """

    name: str
    box: Box


def parse_views(texts: Sequence[str]) -> tuple[View, ...]:
    """Parse views given as NAME=X,Y,WIDTH,HEIGHT.

    >>> parse_views(["top=0,0,100,50", "bottom=0,50,100,50"])[1]
    View(name='bottom', box=(0.0, 50.0, 100.0, 50.0))
    """
    views = []
    for text in texts:
        name, _, numbers = text.partition("=")
        try:
            x, y, width, height = (float(word) for word in numbers.split(","))
        except ValueError:
            x = y = width = height = float("nan")
        if not (is_view_name(name) and is_possible_box(x, y, width, height)):
            raise InputError(
                f"--views takes NAME=X,Y,WIDTH,HEIGHT in pixels for each view, not '{text}'; a name has "
                "letters, digits, - and _, and starts with a letter or digit"
            )
        views.append(View(name, (x, y, width, height)))
    return check_views(views)


def check_views(views: Iterable[View]) -> tuple[View, ...]:
    """Return the views; raise if there are fewer than two, or if two have the same name or overlap."""
    checked = tuple(views)
    if len(checked) < 2:
        raise InputError("--views needs at least two views; for a single part of the image, use --crop")
    for first, second in itertools.combinations(checked, 2):
        if first.name.lower() == second.name.lower():
            raise InputError(f"two views are called '{second.name}'; give each view a name of its own")
        if _overlap(first.box, second.box):
            raise InputError(f"the views '{first.name}' and '{second.name}' overlap; make them smaller")
    return checked


def require_views_inside_all(views: Sequence[View], refs: Iterable[ImageRef]) -> None:
    """Raise if a view is not entirely inside an image or video; ignore unreadable files."""
    for path, is_video in dict.fromkeys((ref.path, ref.frame is not None) for ref in refs):
        size = _read_image_size(path, is_video)
        if size is not None:
            require_views_inside(views, size, str(path))


def require_views_inside(views: Sequence[View], size: tuple[int, int], name: str) -> None:
    """Raise if a view is not entirely inside an image.

    Args:
        views: the views.
        size: width and height of the image, pixels.
        name: name of the image, for the message.
    """
    for view in views:
        if not are_views_inside([view], size):
            x, y, width, height = view.box
            raise InputError(
                f"the view '{view.name}' ({x:g},{y:g},{width:g},{height:g}) is not inside {name}, which has "
                f"{size[0]} x {size[1]} pixels"
            )


def are_views_inside(views: Sequence[View], size: Sequence[int]) -> bool:
    """Return True if all views are entirely inside an image of this width and height in pixels."""
    boxes = (view.box for view in views)
    return all(
        x >= 0 and y >= 0 and x + width <= size[0] and y + height <= size[1] for x, y, width, height in boxes
    )


def write_views(views: Sequence[View], folder: Path, options: Mapping[str, Any] | None = None) -> None:
    """Write views.json into a run folder.

    Args:
        views: the views.
        folder: the folder.
        options: mapping from names to JSON values: the options of the command that trains the views.
    """
    content = {"format": FORMAT, "views": [asdict(view) for view in views]}
    write_json(content if options is None else content | {"options": dict(options)}, folder / VIEWS_FILE)


def read_view_options(folder: Path) -> dict[str, Any]:
    """Return the options that views.json stores; empty for folders of earlier versions and for models."""
    options = read_json(folder / VIEWS_FILE).get("options", {})
    if not isinstance(options, dict):
        raise InputError(f"{folder / VIEWS_FILE} is not valid: 'options' must be an object")
    return options


def read_views(folder: Path) -> tuple[View, ...]:
    """Return the views of a run folder; empty for a run without views."""
    stored = read_view_list(folder)
    texts = []
    for view in stored:
        box = ",".join(str(float(number)) for number in view["box"])
        texts.append(f"{view['name']}={box}")
    try:
        return parse_views(texts) if stored else ()
    except InputError as error:
        raise InputError(f"{folder / VIEWS_FILE} is not a valid list of views: {error}") from error


def _overlap(a: Box, b: Box) -> bool:
    """Return True if two boxes overlap along both axes."""
    return all(a[axis] < b[axis] + b[axis + 2] and b[axis] < a[axis] + a[axis + 2] for axis in (0, 1))


def _read_image_size(path: Path, is_video: bool) -> tuple[int, int] | None:
    """Return width and height of an image or video from the file header; None if it is unreadable.

    An image that EXIF marks as turned is measured upright.
    """
    try:
        return probe_video(path).size if is_video else read_image_size(path)
    except (InputError, UnreadableImage):
        return None
