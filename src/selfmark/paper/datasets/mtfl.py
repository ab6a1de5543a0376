"""MTFL: 10,000 photographs to train and 2,995 crops of AFLW to test, with five points and four attributes.

Below the root lie the lists `training.txt` and `testing.txt` and the folders lfw_5590, net_7876 and AFLW. A
line names an image, the five x, the five y, then gender, smile, glasses and pose. The paper has other crops
of the same faces of AFLW.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PureWindowsPath

import numpy as np

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.dataset import Dataset, find_path, tight_box
from selfmark.paper.datasets.face_points import FIVE, FIVE_MIRROR
from selfmark.paper.datasets.list_files import parse_numbers, read_rows

_OF = "MTFL"
_ATTRIBUTES = ("gender", "smile", "glasses", "pose")
_POSES = 5  # 1 left profile, 2 left, 3 frontal, 4 right, 5 right profile
# A test crop is 2.87 times as long as the longer side of the box around its points (the median of 2,995).
# With the margin of 0.1 on each side this makes training crops alike.
_BOX = 2.4


def read(root: Path) -> Dataset:
    """The official lists; test images are taken whole, training images around their points."""
    return Dataset(
        name="mtfl",
        root=root,
        category="face",
        names=FIVE,
        mirror=FIVE_MIRROR,
        normalizer="inter_ocular",
        settings={},
        train=_boxed(_split(root, "training.txt")),
        test=_split(root, "testing.txt"),
        notes=("boxes of training images are made of their points unless --boxes gives those of a detector",),
    )


def _split(root: Path, name: str) -> AnnotatedObjects:
    """The images of a list, without boxes."""
    listed = read_rows(find_path(root, name, of=_OF), 1 + 2 * len(FIVE) + len(_ATTRIBUTES))
    values = np.array([parse_numbers(words[1:], where) for where, words in listed]).reshape(len(listed), -1)
    xs, ys, attributes = np.split(values, (len(FIVE), 2 * len(FIVE)), axis=1)
    pose = attributes[:, _ATTRIBUTES.index("pose")]
    for row in np.flatnonzero(~np.isin(pose, range(1, _POSES + 1))):
        raise InputError(f"{listed[row][0]}: a pose is 1 to {_POSES}, not {pose[row]:g}")
    # Counted from 1, as earlier work has it (Thewlis et al., 2019). That the pupils of both eyes lie left of
    # these points, as a test shows in the images, speaks for it.
    xy = np.stack([xs, ys], axis=2) - 1
    fields = {
        attribute: tuple(int(value) for value in attributes[:, column])
        for column, attribute in enumerate(_ATTRIBUTES)
    }
    # Training images are named with the backslashes of Windows, test images with slashes.
    refs = [ImageRef(Path(PureWindowsPath(words[0]).as_posix())) for _, words in listed]
    return annotate_images(refs, FIVE, xy, fields=fields)


def _boxed(objects: AnnotatedObjects) -> AnnotatedObjects:
    """The same with a square around the points of each."""
    tight = tight_box(objects.xy)
    side = _BOX * tight[:, 2:].max(axis=1, keepdims=True)
    return replace(
        objects, boxes=np.concatenate([tight[:, :2] + (tight[:, 2:] - side) / 2, side, side], axis=1)
    )
