"""List the data sets that can be read, with their sources and layouts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError, suggest
from selfmark.paper.datasets import coco_folder
from selfmark.paper.datasets.dataset import Dataset, files_exist
from selfmark.paper.datasets.measurable import drop_unmeasurable
from selfmark.wording import choose_form, describe_count


class DatasetReader(Protocol):
    """Type of the function `read` in each reader module."""

    def __call__(self, root: Path) -> Dataset:
        """Read the data set from its official files in the folder `root`."""


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that can be read.

    Attributes:
        title: Name of the data set for users.
        module: Module in `selfmark.paper.datasets` with the function `read(root)`.
        source: Where to get the official files.
        layout: Lines that describe the files and folders in the root.
        folder: Folder in the archive; the root is this folder or its parent.
        counts: Mapping from splits to numbers of images. The numbers are from the paper, or from the authors
            of the data set if the paper gives none.
        alternatives: Pairs of prefixes. Readers also accept paths of the layout in which the first prefix of
            a pair is replaced by the second.
    """

    title: str
    module: str
    source: str
    layout: tuple[str, ...]
    folder: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    alternatives: tuple[tuple[str, str], ...] = ()


_HUMAN36M_ALTERNATIVES = (("", "training/subjects/"), ("", "subjects/"), ("", "training/"))
_HUMAN36M = (
    "S1/Videos/*.mp4, and likewise for S5, S6, S7, S8, S9 and S11",
    "S1/MyPoseFeatures/D2_Positions/*.cdf",
    "S1/MySegmentsMat/ground_truth_bb/*.mat (optional)",
)

DATASETS: dict[str, DatasetInfo] = {
    "celeba": DatasetInfo(
        "CelebA with MAFL",
        "celeba",
        "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html; with the lists of MAFL as celeba.zip at "
        "https://www.robots.ox.ac.uk/~vgg/research/unsupervised_landmarks/",
        (
            "Img/img_align_celeba_hq/ or Img/img_align_celeba/ or Img/img_celeba/",
            "Anno/list_landmarks_align_celeba.txt or Anno/list_landmarks_celeba.txt",
            "MAFL/training.txt",
            "MAFL/testing.txt",
        ),
        folder="celeba",
        counts={"train": 201_599, "fit": 19_000, "test": 1_000},
        alternatives=(("Img/", ""), ("Anno/", ""), ("MAFL/", "mafl_"), ("MAFL/", "MAFL/mafl_")),
    ),
    "aflw": DatasetInfo(
        "AFLW",
        "aflw",
        "aflw_release-2.zip at https://www.robots.ox.ac.uk/~vgg/research/unsupervised_landmarks/",
        (
            "output/",
            "aflw_train_images.txt",
            "aflw_train_keypoints.mat",
            "aflw_test_images.txt",
            "aflw_test_keypoints.mat",
        ),
        folder="aflw_release-2",
        counts={"train": 10_112, "test": 2_991},
    ),
    "ls3d": DatasetInfo(
        "LS3D (300W-LP and LS3D-W Balanced)",
        "ls3d",
        "http://www.cbsr.ia.ac.cn/users/xiangyuzhu/projects/3DDFA/main.htm (300W-LP) and "
        "https://www.adrianbulat.com/face-alignment (LS3D-W Balanced)",
        (
            *(f"300W_LP/{part}/" for part in ("AFW", "HELEN", "IBUG", "LFPW", "landmarks")),
            "LS3D-W-balanced-20-03-2017/new_dataset/",
        ),
        counts={"train": 61_225, "test": 7_200},
        alternatives=(
            ("300W_LP/", "300W-LP/"),
            *(
                ("LS3D-W-balanced-20-03-2017/new_dataset/", folder)
                for folder in (
                    *("LS3D-W-balanced/new_dataset/", "LS3D-W-Balanced/new_dataset/", "new_dataset/"),
                    *("LS3D-W/LS3D-W-balanced/new_dataset/", "LS3D-W-balanced-20-03-2017/"),
                    *("LS3D-W-balanced/", "LS3D-W-Balanced/", "LS3D-W/LS3D-W-balanced/"),
                )
            ),
        ),
    ),
    "mtfl": DatasetInfo(
        "MTFL",
        "mtfl",
        "https://mmlab.ie.cuhk.edu.hk/projects/TCDCN.html (MTFL.zip)",
        ("training.txt", "testing.txt", "lfw_5590/", "net_7876/", "AFLW/"),
        folder="MTFL",
        counts={"train": 10_000, "test": 2_995},
    ),
    "cub": DatasetInfo(
        "CUB-200-2011",
        "cub",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
        ("images.txt", "train_test_split.txt", "bounding_boxes.txt", "parts/part_locs.txt", "images/"),
        folder="CUB_200_2011",
    ),
    "bbcpose": DatasetInfo(
        "BBCPose",
        "bbcpose",
        "https://www.robots.ox.ac.uk/~vgg/data/pose/",
        ("1/1.jpg to 20/ (or 1.mp4 to 20.mp4)", "code/bbcpose.mat", "boxes.json or boxes.csv (optional)"),
        counts={"train": 60_885, "test": 1_000},
        alternatives=(
            ("", "bbcpose_data_1.0/"),
            ("", "bbcpose_extbbcpose_code_1.0/"),
            ("code/", "bbcpose_extbbcpose_code_1.0/"),
            ("code/", ""),
        ),
    ),
    "human36m": DatasetInfo(
        "Human3.6M",
        "human36m",
        "http://vision.imar.ro/human3.6m/",
        _HUMAN36M,
        counts={"train": 48_240, "test": 2_760},
        alternatives=_HUMAN36M_ALTERNATIVES,
    ),
    "human36m32": DatasetInfo(
        "Human3.6M, all 32 joints",
        "human36m32",
        "http://vision.imar.ro/human3.6m/",
        _HUMAN36M,
        counts={"train": 48_240, "test": 2_760},
        alternatives=_HUMAN36M_ALTERNATIVES,
    ),
    "pennaction": DatasetInfo(
        "Penn Action",
        "pennaction",
        "https://dreamdragon.github.io/PennAction/",
        ("frames/0001/000001.jpg", "labels/0001.mat"),
        folder="Penn_Action",
        counts={"train": 51_661, "test": 1_776},
    ),
    "cats": DatasetInfo(
        "Cat Heads",
        "cats",
        "https://archive.org/details/CAT_DATASET",
        (
            "CAT_00/00000001_000.jpg to CAT_06/",
            "CAT_00/00000001_000.jpg.cat to CAT_06/",
            "cat_data/cat_train_images.txt and cat_data/cat_test_images.txt (optional)",
        ),
        counts={"train": 7_747, "test": 1_257},
        alternatives=(("", "CAT_DATASET_01/"), ("", "CAT_DATASET_02/"), ("", "cats/"), ("cat_data/", "")),
    ),
    "lsp": DatasetInfo(
        "Leeds Sports Pose",
        "lsp",
        "http://sam.johnson.io/research/lsp.html",
        ("joints.mat", "images/im0001.jpg"),
        folder="lsp_dataset",
    ),
    "lspet": DatasetInfo(
        "Leeds Sports Pose Extended",
        "lspet",
        "http://sam.johnson.io/research/lspet.html",
        ("joints.mat", "images/im00001.jpg"),
        folder="lspet_dataset",
    ),
    "coco": DatasetInfo(
        "COCO keypoints",
        "coco2017",
        "https://cocodataset.org/#download",
        (
            "annotations/person_keypoints_train2017.json (or annotations/train.json)",
            "annotations/person_keypoints_val2017.json (or annotations/val.json)",
            "train2017/",
            "val2017/",
        ),
        alternatives=(
            ("annotations/", ""),
            *((f"{kind}2017/", folder) for kind in ("train", "val") for folder in (f"{kind}/", "images/")),
        ),
    ),
}


def get_dataset_info(name: str) -> DatasetInfo:
    """Return the description of a data set.

    Raises:
        InputError: There is no data set with this name.
    """
    if name not in DATASETS:
        hint = suggest(name, DATASETS) or f" The data sets are {', '.join(DATASETS)}"
        raise InputError(f"there is no data set '{name}'.{hint}")
    return DATASETS[name]


def find_dataset_root(name: str, root: Path) -> Path:
    """Return the folder with the files: the folder of the archive if it exists in the root, else the root."""
    inner = root / get_dataset_info(name).folder
    return inner if inner.is_dir() else root


def read_dataset(name: str, root: Path) -> Dataset:
    """Read a data set from its official files or from COCO files.

    Objects are left out if their images are missing or their errors cannot be measured.

    Args:
        name: Name of the data set in `DATASETS`.
        root: Folder of the data set.

    Raises:
        InputError: The folder or files in it are missing or damaged.
    """
    title = get_dataset_info(name).title
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the folder with the files of {title}")
    folder = find_dataset_root(name, root)
    if coco_folder.is_coco_folder(folder):
        return drop_unmeasurable(_drop_missing(coco_folder.read_coco_folder(name, folder)))
    module = importlib.import_module(f"selfmark.paper.datasets.{get_dataset_info(name).module}")
    return drop_unmeasurable(_drop_missing(cast(DatasetReader, module.read)(folder)))


def _drop_missing(dataset: Dataset) -> Dataset:
    """Return the data set without objects whose images are missing, and note how many objects these are."""
    notes = []
    kept: dict[str, AnnotatedObjects] = {}
    for name, split in dataset.splits.items():
        exists = files_exist([dataset.root / file for file in split.paths])
        kept[name] = split if exists.all() else split.select(exists)
        if not len(split):
            raise InputError(f"{dataset.root} has no images for the {name} split of {dataset.name}")
        if not exists.any():
            raise InputError(
                f"the images of all {len(split)} objects of the {name} split of {dataset.name} are missing; "
                f"the first is {dataset.root / split.paths[0]}"
            )
        if not exists.all():
            first = split.paths[int(np.argmin(exists))]
            num_missing = int((~exists).sum())
            notes.append(
                f"{describe_count(num_missing, 'object')} of the {name} split "
                f"{choose_form(num_missing, 'was', 'were')} left out because of missing images; the first "
                f"missing image is {first}"
            )
    return dataset.replace_splits(kept, notes)
