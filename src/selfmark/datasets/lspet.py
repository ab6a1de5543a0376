"""Leeds Sports Pose Extended: 10,000 more photographs, annotated by many hands and less exactly.

Below the root (the folder lspet_dataset) `joints.mat` holds `joints`, 14 x 3 x 10000, and the first image is
`images/im00001.jpg`. It is a training set only; the last thousand images are held back here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.datasets import matlab
from selfmark.datasets.form import DataSet, find
from selfmark.datasets.lsp import NAMES, data_set

TRAINING = 9000  # images; the others are for testing


def read(root: Path) -> DataSet:
    """Joints in sight only: those that are not have no place."""
    of = "Leeds Sports Pose Extended"
    path = find(root, "joints.mat", of=of)
    find(root, "images", of=of)
    joints = matlab.numbers(path, matlab.load(path), "joints", (len(NAMES), 3, None)).transpose(2, 0, 1)
    # Unlike in LSP the third number is 1 where a joint is in sight.
    xy = np.where(joints[..., 2:] != 0, joints[..., :2], np.nan)
    hidden = np.zeros(xy.shape[:2], bool)
    return data_set("lspet", root, xy, hidden, digits=5, training=TRAINING)
