"""The data sets as `selfmark discover` and `selfmark evaluate` are given them.

A data folder holds NAME.zip or the unzipped NAME/. Neither is written to: a working copy is made, by
unpacking or by links, in which label files may be added.
"""

from __future__ import annotations

import csv
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import animals
import numpy as np

from selfmark.errors import InputError


@dataclass(frozen=True)
class DataSet:
    """Names relative to the data set's folder.

    inputs:       what landmarks are discovered in; no labels are read of a COCO file, only boxes
    images:       what is evaluated on, training images among them
    labels:       points the errors are measured against
    train_labels: points the regressors are fitted on
    normalizer:   what errors are divided by; empty: what the label files say
    by:           annotation fields to break the errors down by
    note:         what a reader of the figures must know
    prepare:      makes label files with boxes in the working copy
    video:        COCO file of the frames on which motion is measured; empty: the set has no video
    """

    inputs: tuple[str, ...]
    images: tuple[str, ...]
    labels: str = "test.json"
    train_labels: str = "train.json"
    normalizer: str = ""
    by: tuple[str, ...] = ()
    note: str = ""
    prepare: Callable[[Path], None] | None = None
    video: str = ""


SETS = {
    "faces-yt68": DataSet(("images/train",), ("images",), by=("yaw_bucket",)),
    "faces-mtfl-aflw": DataSet(
        ("images/train",),
        ("images",),
        by=("pose",),
        note="landmarks discovered and regressors fitted on the 10,000 MTFL training images, "
        "tested on the 2,995 AFLW crops; pose 1 left profile ... 3 frontal ... 5 right profile",
    ),
    # The crops are 1.2 times the box, which is also what a box becomes: naming the COCO files changes no
    # crop, it only keeps first keypoints on the bird.
    "birds-cub": DataSet(("train.json",), ("train.json", "test.json"), note="without seabirds; boxes of CUB"),
    "flies-pair-video": DataSet(
        ("frames-train.json",),
        ("frames-train.json", "frames-test.json"),
        labels="frames-test.json",
        train_labels="frames-train.json",
        normalizer="points:head,abdomen",
        note=animals.FLIES_NOTE,
        prepare=animals.prepare_flies,
        video="frames-test.json",
    ),
    "mouse-openfield": DataSet(
        ("frames-video.json", "frames-train.json"),
        ("frames-train.json", "frames-test.json"),
        labels="frames-test.json",
        train_labels="frames-train.json",
        normalizer="points:snout,tail_base",
        note=animals.MOUSE_NOTE,
        prepare=animals.prepare_mouse,
        video="frames-motion.json",
    ),
}


def is_there(name: str, data: Path, work: Path) -> bool:
    """Whether a working copy exists or can be made."""
    places = (work / "data" / name / ".ready", data / f"{name}.zip", data / name)
    return any(place.exists() for place in places)


def working_copy(name: str, data: Path, work: Path) -> Path:
    """The data set's own folder below `work`, made the first time."""
    folder = work / "data" / name
    if not (folder / ".ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _fill(name, data, folder)
        prepare = SETS[name].prepare
        if prepare is not None:
            prepare(folder)
        (folder / ".ready").touch()
    return folder


def _fill(name: str, data: Path, folder: Path) -> None:
    archive, unzipped = data / f"{name}.zip", data / name
    if archive.is_file():
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
    elif unzipped.is_dir():
        for path in unzipped.iterdir():
            link = folder / path.name
            if not link.is_symlink():
                link.symlink_to(path.resolve())
    else:
        raise InputError(f"{data} holds neither {name}.zip nor a folder {name}")


# --- synthetic first keypoints ---------------------------------------------------------------------------

# Of the 68-point scheme, as in the paper's experiment: eyes, eyebrows, nose, mouth, chin.
ANNOTATED = (36, 39, 42, 45, 17, 21, 22, 26, 30, 31, 35, 48, 51, 54, 8)
OFFSET = 3.0  # points are moved by up to so many pixels of a 256 px image in x and in y


def annotated_points(folder: Path, labels: str, seed: int) -> Path:
    """A CSV of 15 annotated points of every image, a little off: the paper's synthetic initialization."""
    content: dict[str, Any] = json.loads((folder / labels).read_text(encoding="utf-8"))
    images = {image["id"]: image for image in content["images"]}
    rng = np.random.default_rng(seed)
    path = folder / f"annotated-{Path(labels).stem}-{seed}.csv"
    part = path.with_suffix(f".{os.getpid()}")  # other runs with this seed may be reading the file
    with open(part, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(["image", "x", "y"])
        for annotation in content["annotations"]:
            image = images[annotation["image_id"]]
            xy = np.array(annotation["keypoints"], np.float64).reshape(-1, 3)[list(ANNOTATED), :2]
            reach = OFFSET * image["width"] / 256
            moved = xy + rng.uniform(-reach, reach, xy.shape)
            # An offset must not push a point at the border out of the image.
            inside = np.clip(moved, 0, np.array([image["width"], image["height"]]) - 1.0)
            writer.writerows([image["file_name"], f"{x:.2f}", f"{y:.2f}"] for x, y in inside)
    os.replace(part, path)
    return path
