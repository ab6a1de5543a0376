"""Read AFLW as published by Jakab et al. (2018): about 10,100 training and 2,991 test faces, cropped.

The root is the folder aflw_release-2 of their archive. The images are in the folder `output`, and
`aflw_train_images.txt` and `aflw_test_images.txt` list them. The five points of each image are in the
variable `gt` [N, 5, 2] of `aflw_train_keypoints.mat` and `aflw_test_keypoints.mat`.
"""

from __future__ import annotations

from pathlib import Path

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.face_points import FIVE, FIVE_MIRROR
from selfmark.paper.datasets.list_files import read_rows

_TITLE = "AFLW of earlier work (aflw_release-2)"


def read(root: Path) -> Dataset:
    """Read the split of Jakab et al. (Sec. 4.1 of the paper).

    Whole images are used, because they are already cropped.
    """
    find_path(root, "output", title=_TITLE)  # raises if the folder of images is missing
    return Dataset(
        name="aflw",
        root=root,
        category="face",
        names=FIVE,
        mirror=FIVE_MIRROR,
        normalizer="inter_ocular",
        settings={"evaluation.ridge": 0.001},  # as for CelebA in the authors' program
        train=_read_split(root, "train"),
        test=_read_split(root, "test"),
    )


def _read_split(root: Path, part: str) -> AnnotatedObjects:
    rows = read_rows(find_path(root, f"aflw_{part}_images.txt", title=_TITLE), 1)
    labels = find_path(root, f"aflw_{part}_keypoints.mat", title=_TITLE)
    points = matlab_files.get_matlab_numbers(
        labels, matlab_files.load_matlab(labels), "gt", (len(rows), len(FIVE), 2)
    )
    # The file has y before x, so swap them as earlier work does. MATLAB wrote the file and counts from 1, but
    # earlier work treats the coordinates as 0-based, and so do we.
    xy = points[:, :, ::-1].copy()
    return build_annotated_objects([ImageRef(Path("output") / name) for _, (name,) in rows], FIVE, xy)
