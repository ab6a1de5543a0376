"""Describe the data sets of the quality benchmark as inputs of `selfmark discover` and `selfmark evaluate`.

The data folder contains NAME.zip or the unzipped NAME/. It is not modified. Label files are added to a
working copy: the unpacked archive, or a folder of links to the unzipped files.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import animals
import numpy as np

from selfmark.errors import InputError
from selfmark.run.files import atomic_write


@dataclass(frozen=True)
class Dataset:
    """Files of a data set, relative to its folder.

    Attributes:
        inputs: Inputs of discovery. Discovery uses the boxes of a COCO file, but not its points.
        images: Images for the evaluation, including training images.
        labels: Points that errors are measured against.
        train_labels: Points that the regressors are fitted on.
        normalizer: Length that errors are divided by; if empty, the one given in the label files.
        breakdown_fields: Annotation fields that divide images into groups with separate errors.
        crops: How training and test images are cropped; text for the results page.
        unit: Length that errors are percentages of; text for the results page.
        label_source: Who made the labels; text for the results page.
        note: Remark for the results page.
        prepare: Function that writes label files with boxes to the working copy, or None.
        video: COCO file of the frames on which motion is measured; empty without a video.
    """

    inputs: tuple[str, ...]
    images: tuple[str, ...]
    labels: str = "test.json"
    train_labels: str = "train.json"
    normalizer: str = ""
    breakdown_fields: tuple[str, ...] = ()
    crops: str = ""
    unit: str = ""
    label_source: str = ""
    note: str = ""
    prepare: Callable[[Path], None] | None = None
    video: str = ""


DATASETS = {
    "faces-yt68": Dataset(
        ("images/train",),
        ("images",),
        breakdown_fields=("yaw_bucket",),
        crops="by the labels: training and test images are squares around the 68 points",
        unit="square root of the area of the tight box around the 68 points",
        label_source="68 points that came with the video frames; they look machine-made",
    ),
    "faces-mtfl-aflw": Dataset(
        ("images/train",),
        ("images",),
        breakdown_fields=("pose",),
        crops="training images by the labels: squares around the five points, with random scale and offset; "
        "test images are the AFLW crops that MTFL published",
        unit="distance between the two eye points, which is short in profile",
        label_source="MTFL's five points; a hidden eye has a guessed position",
        note="landmarks are discovered and regressors fitted on the 10,000 MTFL training images and tested "
        "on the 2,995 AFLW crops; pose 1 is left profile, 3 is frontal, 5 is right profile",
    ),
    # The stored images are crops of 1.2 times CUB's box, like the crop that selfmark makes from a box. As
    # inputs, the COCO files therefore do not change the crop. They only keep first keypoints on the bird.
    "birds-cub": Dataset(
        ("train.json",),
        ("train.json", "test.json"),
        crops="by CUB's annotated boxes, training and test images",
        unit="square root of the area of CUB's box",
        label_source="clicks of several crowd workers, combined",
        note="without sea birds; CUB's boxes",
    ),
    "flies-dpk": Dataset(("images/train",), ("images",)),
    "flies-pair-video": Dataset(
        ("frames-train.json",),
        ("frames-train.json", "frames-test.json"),
        labels="frames-test.json",
        train_labels="frames-train.json",
        normalizer="points:head,abdomen",
        crops="by the labels: boxes of 105 px around head, thorax and abdomen, training and test frames",
        unit="length from head to abdomen, not the box that the data set names",
        label_source="predictions of another model (SLEAP), not human labels",
        note=animals.FLIES_NOTE,
        prepare=animals.prepare_flies,
        video="frames-test.json",
    ),
    "mouse-openfield": Dataset(
        ("frames-video.json", "frames-train.json"),
        ("frames-train.json", "frames-test.json"),
        labels="frames-test.json",
        train_labels="frames-train.json",
        normalizer="points:snout,tail_base",
        crops="boxes of 150 px by background subtraction, without labels",
        unit="length from snout to tail base, not the box that the data set names",
        label_source="one person; the ears are swapped in one of the 24 test images",
        note=animals.MOUSE_NOTE,
        prepare=animals.prepare_mouse,
        video="frames-motion.json",
    ),
}


def is_available(name: str, data: Path, work: Path) -> bool:
    """Return True if a working copy exists or can be made."""
    candidates = (work / "data" / name / ".ready", data / f"{name}.zip", data / name)
    return any(path.exists() for path in candidates)


def prepare_working_copy(name: str, data: Path, work: Path) -> Path:
    """Return the working copy of a data set below `work`; create it if necessary.

    The file .ready marks a complete copy. Archives of `pack_data.py` contain it, because they already have
    the label files that `Dataset.prepare` would write.
    """
    folder = work / "data" / name
    if not (folder / ".ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _fill(name, data, folder)
        prepare = DATASETS[name].prepare
        if prepare is not None and not (folder / ".ready").exists():
            prepare(folder)
        (folder / ".ready").touch()
    return folder


def _fill(name: str, data: Path, folder: Path) -> None:
    """Unpack the archive of a data set into a folder, or link the unzipped files there."""
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
        raise InputError(f"{data} contains neither {name}.zip nor a folder {name}")


# --- synthetic first keypoints ---------------------------------------------------------------------------

# Indices in the 68-point scheme, as in the paper's experiment: eyes, eyebrows, nose, mouth, chin.
ANNOTATED = (36, 39, 42, 45, 17, 21, 22, 26, 30, 31, 35, 48, 51, 54, 8)
OFFSET = 3.0  # maximum shift of a point in x and in y, pixels of a 256 px image


def write_annotated_points(folder: Path, labels: str, seed: int) -> Path:
    """Write a CSV file of first keypoints: 15 annotated points per image, shifted at random.

    This is the paper's synthetic initialization.
    """
    content: dict[str, Any] = json.loads((folder / labels).read_text(encoding="utf-8"))
    images = {image["id"]: image for image in content["images"]}
    rng = np.random.default_rng(seed)
    path = folder / f"annotated-{Path(labels).stem}-{seed}.csv"
    # Write to a temporary file, because another run with this seed may read or write the same file.
    with (
        atomic_write(path, unique=True) as temporary,
        open(temporary, "w", newline="", encoding="utf-8") as handle,
    ):
        writer = csv.writer(handle)
        writer.writerow(["image", "x", "y"])
        for annotation in content["annotations"]:
            image = images[annotation["image_id"]]
            xy = np.array(annotation["keypoints"], np.float64).reshape(-1, 3)[list(ANNOTATED), :2]
            max_shift = OFFSET * image["width"] / 256
            moved_xy = xy + rng.uniform(-max_shift, max_shift, xy.shape)
            # The shift must not push a point at the border out of the image.
            clipped_xy = np.clip(moved_xy, 0, np.array([image["width"], image["height"]]) - 1.0)
            writer.writerows([image["file_name"], f"{x:.2f}", f"{y:.2f}"] for x, y in clipped_xy)
    return path
