"""AFLW as Jakab et al. (2018) gave it out: 10,122 training and 2,991 test faces, cropped, with five points.

Below the root (the folder aflw_release-2 of their archive) `aflw_train_images.txt` and `aflw_test_images.txt`
name images of the folder `output`; in the files `..._keypoints.mat` beside `gt` [N, 5, 2] holds the points.
"""

from __future__ import annotations

from pathlib import Path

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.face_points import FIVE, FIVE_MIRROR
from selfmark.paper.datasets.list_files import read_rows

_OF = "AFLW of earlier work (aflw_release-2)"


def read(root: Path) -> Dataset:
    """The split of earlier work; images are taken whole, since they are cropped already (Sec. 4.1)."""
    find_path(root, "output", of=_OF)
    return Dataset(
        name="aflw",
        root=root,
        category="face",
        names=FIVE,
        mirror=FIVE_MIRROR,
        normalizer="inter_ocular",
        settings={"evaluation.ridge": 0.001},  # as of CelebA, where the authors' program is known
        train=_split(root, "train"),
        test=_split(root, "test"),
    )


def _split(root: Path, part: str) -> AnnotatedObjects:
    listed = read_rows(find_path(root, f"aflw_{part}_images.txt", of=_OF), 1)
    labels = find_path(root, f"aflw_{part}_keypoints.mat", of=_OF)
    points = matlab_files.matlab_numbers(
        labels, matlab_files.load_matlab(labels), "gt", (len(listed), len(FIVE), 2)
    )
    # Rows come before columns: earlier work swaps the two and divides by the width and height of `hw`. It
    # takes the numbers as counted from 0, and so do we, although a MATLAB program made them.
    xy = points[:, :, ::-1].copy()
    return annotate_images([ImageRef(Path("output") / name) for _, (name,) in listed], FIVE, xy)
