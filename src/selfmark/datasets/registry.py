"""Which data sets can be read, and where to get them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from selfmark.datasets.form import DataSet
from selfmark.errors import InputError


class Reader(Protocol):
    def __call__(self, root: Path) -> DataSet:
        """The data set whose official files lie below `root`."""


@dataclass(frozen=True)
class Known:
    """A data set that can be read.

    title:  as the paper calls it
    module: of `selfmark.datasets`, with a function `read(root)`
    source: where its official files are given out
    layout: what must lie below the root, one line per file or folder
    """

    title: str
    module: str
    source: str
    layout: tuple[str, ...]


DATASETS: dict[str, Known] = {
    "cub": Known(
        "CUB-200-2011",
        "cub",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
        ("images.txt", "train_test_split.txt", "bounding_boxes.txt", "parts/part_locs.txt", "images/"),
    ),
}


def read(name: str, root: Path) -> DataSet:
    """The data set of this name, read from its official layout."""
    if name not in DATASETS:
        raise InputError(f"there is no data set '{name}'; there are {', '.join(DATASETS)}")
    if not root.is_dir():
        raise InputError(
            f"{root} is not a folder; give the one that holds the files of {DATASETS[name].title}"
        )
    module = importlib.import_module(f"selfmark.datasets.{DATASETS[name].module}")
    return cast(Reader, module.read)(root)
