"""Leeds Sports Pose: 2,000 photographs of athletes, 14 joints each.

Below the root (the folder lsp_dataset) `joints.mat` holds `joints`, 3 x 14 x 2000, and `images/im0001.jpg` is
the first image.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.body_readers import mirror_by_side
from selfmark.paper.datasets.dataset import Dataset, files_exist, find_path, tight_box
from selfmark.points import FloatArray

NAMES = (
    "right_ankle", "right_knee", "right_hip", "left_hip", "left_knee", "left_ankle", "right_wrist",
    "right_elbow", "right_shoulder", "left_shoulder", "left_elbow", "left_wrist", "neck", "head",
)  # fmt: skip
TRAINING = 1000  # images; the others are for testing


def read(root: Path) -> Dataset:
    """The official halves: the first thousand images for training, the second for testing."""
    of = "Leeds Sports Pose"
    path = find_path(root, "joints.mat", of=of)
    find_path(root, "images", of=of)
    # Used as they are, as other readers do: nothing says whether pixels were counted from 0 or from 1.
    joints = matlab_files.matlab_numbers(
        path, matlab_files.load_matlab(path), "joints", (3, len(NAMES), None)
    ).transpose(2, 1, 0)
    # The third number is called visibility, but is 1 where a joint is hidden. All joints have places.
    return build_dataset("lsp", root, joints[..., :2], joints[..., 2] != 0, digits=4, training=TRAINING)


def build_dataset(
    name: str, root: Path, xy: FloatArray, hidden: npt.NDArray[np.bool_], digits: int, training: int
) -> Dataset:
    """Images numbered from 1 with so many digits; boxes around the joints, NaN where not annotated."""
    files = [Path("images") / f"im{number:0{digits}d}.jpg" for number in range(1, len(xy) + 1)]
    there = files_exist([root / file for file in files])
    # One joint gives no box.
    annotated = np.isfinite(xy).all(axis=2).sum(axis=1) > 1
    kept = np.flatnonzero(there & annotated)
    if not len(kept):
        raise InputError(f"{root} holds no image that joints.mat is of, such as {files[0]}")
    refs = [ImageRef(files[row]) for row in kept]
    objects = annotate_images(refs, NAMES, xy[kept], tight_box(xy[kept]), hidden[kept])
    missing, bare = int((~there).sum()), int((there & ~annotated).sum())
    notes = [f"annotated images left out, because they are not there: {missing}"] if missing else []
    notes += [f"images left out, because fewer than two joints are in sight: {bare}"] if bare else []
    return Dataset(
        name=name,
        root=root,
        category="person",
        names=NAMES,
        mirror=mirror_by_side(NAMES),
        normalizer="box",
        settings={},
        train=objects.select(kept < training),
        test=objects.select(kept >= training),
        notes=tuple(notes),
    )
