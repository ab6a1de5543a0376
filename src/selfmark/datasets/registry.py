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


_HUMAN36M = (
    "S1/Videos/*.mp4, and so for S5, S6, S7, S8, S9 and S11",
    "S1/MyPoseFeatures/D2_Positions/*.cdf",
    "S1/MySegmentsMat/ground_truth_bb/*.mat (optional)",
)

DATASETS: dict[str, Known] = {
    "cub": Known(
        "CUB-200-2011",
        "cub",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
        ("images.txt", "train_test_split.txt", "bounding_boxes.txt", "parts/part_locs.txt", "images/"),
    ),
    "bbcpose": Known(
        "BBCPose",
        "bbcpose",
        "https://www.robots.ox.ac.uk/~vgg/data/pose/",
        ("1/1.jpg to 20/ (or 1.mp4 to 20.mp4)", "code/bbcpose.mat", "boxes.json or boxes.csv (optional)"),
    ),
    "human36m": Known("Human3.6M", "human36m", "http://vision.imar.ro/human3.6m/", _HUMAN36M),
    "human36m32": Known(
        "Human3.6M, all 32 joints", "human36m32", "http://vision.imar.ro/human3.6m/", _HUMAN36M
    ),
    "pennaction": Known(
        "Penn Action",
        "pennaction",
        "https://dreamdragon.github.io/PennAction/",
        ("frames/0001/000001.jpg", "labels/0001.mat"),
    ),
    "cats": Known(
        "Cat Heads",
        "cats",
        "https://archive.org/details/CAT_DATASET",
        (
            "CAT_00/00000001_000.jpg to CAT_06/",
            "CAT_00/00000001_000.jpg.cat to CAT_06/",
            "cat_data/cat_train_images.txt and cat_data/cat_test_images.txt (optional)",
        ),
    ),
    "lsp": Known(
        "Leeds Sports Pose",
        "lsp",
        "http://sam.johnson.io/research/lsp.html",
        ("joints.mat", "images/im0001.jpg"),
    ),
    "lspet": Known(
        "Leeds Sports Pose Extended",
        "lspet",
        "http://sam.johnson.io/research/lspet.html",
        ("joints.mat", "images/im00001.jpg"),
    ),
    "coco": Known(
        "COCO keypoints",
        "coco",
        "https://cocodataset.org/#download",
        (
            "annotations/person_keypoints_train2017.json (or annotations/train.json)",
            "annotations/person_keypoints_val2017.json (or annotations/val.json)",
            "train2017/",
            "val2017/",
        ),
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
