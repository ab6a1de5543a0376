"""Read Leeds Sports Pose: 2,000 photographs of athletes with 14 joints each.

The root is the folder lsp_dataset. `joints.mat` contains the variable `joints`, 3 x 14 x 2000, and
`images/im0001.jpg` is the first image.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.body_annotations import pair_points_by_side
from selfmark.paper.datasets.dataset import Dataset, compute_tight_boxes, files_exist, find_path
from selfmark.points import FloatArray

TITLE = "Leeds Sports Pose"
NAMES = (
    "right_ankle", "right_knee", "right_hip", "left_hip", "left_knee", "left_ankle", "right_wrist",
    "right_elbow", "right_shoulder", "left_shoulder", "left_elbow", "left_wrist", "neck", "head",
)  # fmt: skip
NUM_TRAIN = 1000  # number of training images; the others are for testing


def read(root: Path) -> Dataset:
    """Read the official halves: the first thousand images for training, the others for testing."""
    path = find_path(root, "joints.mat", title=TITLE)
    find_path(root, "images", title=TITLE)
    # It is unknown whether coordinates start at 0 or 1; like other programs, we use them unchanged.
    joints = matlab_files.get_matlab_numbers(
        path, matlab_files.load_matlab(path), "joints", (3, len(NAMES), None)
    ).transpose(2, 1, 0)
    # The third number is documented as visibility, but it is 1 for hidden joints. All joints have
    # coordinates.
    return build_dataset("lsp", root, joints[..., :2], joints[..., 2] != 0, digits=4, num_train=NUM_TRAIN)


def build_dataset(
    name: str, root: Path, xy: FloatArray, hidden: npt.NDArray[np.bool_], digits: int, num_train: int
) -> Dataset:
    """Build a data set of numbered images with boxes around the joints.

    Args:
        name: Name of the data set.
        root: Folder of the data set.
        xy: [N, 14, 2] joints; NaN if not annotated.
        hidden: [N, 14] whether each joint is hidden.
        digits: Number of digits in the names of images. Images are numbered from 1.
        num_train: Number of images for training; the others are for testing.
    """
    if not 0 < len(xy) < 10**digits:
        raise InputError(
            f"{root}: joints.mat must have the joints of 1 to {10**digits - 1:,} images, not {len(xy):,}; "
            "download it again"
        )
    files = [Path("images") / f"im{number:0{digits}d}.jpg" for number in range(1, len(xy) + 1)]
    exists = files_exist([root / file for file in files])
    # A box around a single joint would have no area.
    is_annotated = np.isfinite(xy).all(axis=2).sum(axis=1) > 1
    kept = np.flatnonzero(exists & is_annotated)
    if not len(kept):
        raise InputError(f"{root} contains none of the images annotated in joints.mat, such as {files[0]}")
    refs = [ImageRef(files[row]) for row in kept]
    objects = build_annotated_objects(refs, NAMES, xy[kept], compute_tight_boxes(xy[kept]), hidden[kept])
    num_missing, num_unannotated = int((~exists).sum()), int((exists & ~is_annotated).sum())
    notes = []
    if num_missing:
        notes.append(f"annotated images left out because they are missing: {num_missing}")
    if num_unannotated:
        notes.append(f"images left out because fewer than two joints are visible: {num_unannotated}")
    return Dataset(
        name=name,
        root=root,
        category="person",
        names=NAMES,
        mirror=pair_points_by_side(NAMES),
        normalizer="box",
        settings={},
        train=objects.select(kept < num_train),
        test=objects.select(kept >= num_train),
        notes=tuple(notes),
    )
