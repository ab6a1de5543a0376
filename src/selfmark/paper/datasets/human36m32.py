"""Human3.6M with all 32 joints of its files, as in the paper's curves of cumulative error."""

from __future__ import annotations

from pathlib import Path

from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.datasets.human36m import ALL, with_joints


def read(root: Path) -> Dataset:
    """The same frames and boxes as `human36m`, more points."""
    return with_joints(root, "human36m32", ALL)
