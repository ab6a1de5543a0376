"""What of a data set lies in a folder, before hours are spent on it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.datasets.registry import dataset_root, get_dataset_info
from selfmark.sampling import evenly_spaced

_SAMPLE = 50  # images of a split that are opened
_ASTRAY = 0.1  # share of their points outside the image from which on they belong to other images


@dataclass(frozen=True)
class LayoutLine:
    """One line of the layout, and which of the files and folders it names are there."""

    wanted: str
    found: tuple[str, ...]


def check_layout(name: str, root: Path) -> list[LayoutLine]:
    """The official layout, line by line, as far as it lies in a folder, which need not be there."""
    folder = dataset_root(name, root)
    lines = []
    for wanted in get_dataset_info(name).layout:
        # The line is for people, "A or B (optional)": its words with a slash, dot or star are the paths.
        paths = [word for word in re.split(r"[\s,()]+", wanted) if re.search(r"[./*]", word)]
        places = (_place(folder, path, get_dataset_info(name).others) for path in paths)
        lines.append(LayoutLine(wanted, tuple(place for place in places if place)))
    return lines


def _place(folder: Path, path: str, others: Sequence[tuple[str, str]]) -> str:
    """The path, or the first of those that may be there instead, which is in the folder; empty if none is."""
    instead = (other + path.removeprefix(begin) for begin, other in others if path.startswith(begin))
    found = (place for place in (path, *instead) if next(folder.glob(place.rstrip("/")), None) is not None)
    return next(found, "")


def count_images(dataset: Dataset) -> list[tuple[str, int, int | None]]:
    """Per split how many images are there, and how many there should be; None where no one says."""
    expected: Mapping[str, int] = get_dataset_info(dataset.name).counts
    return [(name, len(split), expected.get(name)) for name, split in dataset.splits.items()]


def check_sample(dataset: Dataset) -> list[str]:
    """Sentences on splits whose images cannot be opened or whose points lie outside of them, by a sample."""
    found = []
    for name, split in dataset.splits.items():
        outside, seen, unreadable = 0, 0, []
        for row in evenly_spaced(len(split), _SAMPLE):
            if split.refs[row].frame is not None:
                continue  # a frame of a video
            path = dataset.root / split.refs[row].path
            try:
                with Image.open(path) as image:
                    size = np.array(image.size)
            except OSError:
                unreadable.append(path)
                continue
            points = split.xy[row][split.visible[row]]
            outside += int(((points < -1) | (points > size)).any(axis=1).sum())
            seen += len(points)
        if unreadable:
            found.append(f"images of the {name} split cannot be opened, the first is {unreadable[0]}")
        if outside > _ASTRAY * seen:
            found.append(
                f"{outside} of {seen} points in a sample of the {name} split lie outside their images: the "
                "lists may be of another version of the images"
            )
    return found
