"""Leeds Sports Pose Extended: 10,000 more photographs, annotated by many hands and less exactly.

Below the root (the folder lspet_dataset) `joints.mat` holds `joints`, 14 x 3 x 10000, and the first image is
`images/im00001.jpg`. It is a training set only; the last thousand images are held back here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.lsp import NAMES, build_dataset

TRAINING = 9000  # images; the others are for testing


def read(root: Path) -> Dataset:
    """Joints in sight only: those that are not have no place."""
    of = "Leeds Sports Pose Extended"
    path = find_path(root, "joints.mat", of=of)
    find_path(root, "images", of=of)
    joints = matlab_files.matlab_numbers(
        path, matlab_files.load_matlab(path), "joints", (len(NAMES), 3, None)
    ).transpose(2, 0, 1)
    # Unlike in LSP the third number is 1 where a joint is in sight.
    xy = np.where(joints[..., 2:] != 0, joints[..., :2], np.nan)
    hidden = np.zeros(xy.shape[:2], bool)
    return build_dataset("lspet", root, xy, hidden, digits=5, training=TRAINING)
