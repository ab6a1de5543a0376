"""Read Leeds Sports Pose Extended: 10,000 photographs, annotated less precisely by crowd workers.

The root is the folder lspet_dataset. `joints.mat` contains the variable `joints`, 14 x 3 x 10000, and
`images/im00001.jpg` is the first image. The data set is meant for training only; here the last thousand
images are used for testing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.lsp import NAMES, build_dataset

TITLE = "Leeds Sports Pose Extended"
NUM_TRAIN = 9000  # number of training images; the others are for testing


def read(root: Path) -> Dataset:
    """Read the visible joints; hidden joints have no coordinates."""
    path = find_path(root, "joints.mat", title=TITLE)
    find_path(root, "images", title=TITLE)
    joints = matlab_files.get_matlab_numbers(
        path, matlab_files.load_matlab(path), "joints", (len(NAMES), 3, None)
    ).transpose(2, 0, 1)
    # Unlike in LSP, the third number is 1 for visible joints.
    xy = np.where(joints[..., 2:] != 0, joints[..., :2], np.nan)
    hidden = np.zeros(xy.shape[:2], bool)
    return build_dataset("lspet", root, xy, hidden, digits=5, num_train=NUM_TRAIN)
