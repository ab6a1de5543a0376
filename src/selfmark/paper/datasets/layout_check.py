"""Check the files of a data set before it is used for hours of training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.datasets.dataset_registry import find_dataset_root, get_dataset_info
from selfmark.sampling import evenly_spaced
from selfmark.wording import describe_count

_NUM_SAMPLES = 50  # number of images of a split to open
_MAX_OUTSIDE = 0.1  # a larger fraction of points outside their images suggests that the lists are wrong


@dataclass(frozen=True)
class LayoutLine:
    """One line of a layout: files and folders that are expected, and those of them that exist."""

    expected: str
    existing: tuple[str, ...]


def check_layout(name: str, root: Path) -> list[LayoutLine]:
    """Return each line of the official layout with the paths that exist; `root` itself may be missing."""
    folder = find_dataset_root(name, root)
    lines = []
    for expected in get_dataset_info(name).layout:
        # A line is text such as "A/ or B/ (optional)". Words with a slash, dot or star are paths.
        paths = [word for word in re.split(r"[\s,()]+", expected) if re.search(r"[./*]", word)]
        existing = (_find_existing(folder, path, get_dataset_info(name).alternatives) for path in paths)
        lines.append(LayoutLine(expected, tuple(path for path in existing if path)))
    return lines


def _find_existing(folder: Path, path: str, alternatives: Sequence[tuple[str, str]]) -> str:
    """Return the path or the first of its alternatives that exists in the folder; empty if none does."""
    candidates = [path]
    candidates += [new + path.removeprefix(old) for old, new in alternatives if path.startswith(old)]
    existing = (name for name in candidates if next(folder.glob(name.rstrip("/")), None) is not None)
    return next(existing, "")


def count_images(dataset: Dataset) -> list[tuple[str, int, int | None]]:
    """Return for each split its name, its number of objects, and the expected number (None if unknown).

    In all data sets with a known number, each image shows one object.
    """
    expected: Mapping[str, int] = get_dataset_info(dataset.name).counts
    return [(name, len(split), expected.get(name)) for name, split in dataset.splits.items()]


def check_sample(dataset: Dataset) -> list[str]:
    """Open a sample of each split; return sentences about unreadable images and points outside images."""
    problems = []
    for name, split in dataset.splits.items():
        num_outside, num_points, unreadable = 0, 0, []
        for row in evenly_spaced(len(split), _NUM_SAMPLES):
            if split.refs[row].frame is not None:
                continue  # Frames of videos are not checked.
            path = dataset.root / split.refs[row].path
            try:
                with Image.open(path) as image:
                    size = np.array(image.size)
            except OSError:
                unreadable.append(path)
                continue
            points = split.xy[row][split.visible[row]]
            num_outside += int(((points < -1) | (points > size)).any(axis=1).sum())
            num_points += len(points)
        if unreadable:
            count = describe_count(len(unreadable), "image")
            problems.append(
                f"{count} in a sample of the {name} split cannot be opened; the first is {unreadable[0]}"
            )
        if num_outside > _MAX_OUTSIDE * num_points:
            problems.append(
                f"{num_outside} of {num_points} points in a sample of the {name} split lie outside their "
                "images: the lists may belong to another version of the images"
            )
    return problems
