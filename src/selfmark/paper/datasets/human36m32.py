"""Read Human3.6M with all 32 joints, as in the paper's curves of cumulative error."""

from __future__ import annotations

from pathlib import Path

from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.datasets.human36m import ALL_JOINTS, read_joints


def read(root: Path) -> Dataset:
    """Read the frames and boxes of `human36m` with all 32 joints."""
    return read_joints(root, "human36m32", ALL_JOINTS)
