"""Read MTFL: 10,000 photographs for training and 2,995 crops of AFLW for testing.

The root contains the lists `training.txt` and `testing.txt` and the folders lfw_5590, net_7876 and AFLW. Each
line of a list has the name of an image, five x and five y coordinates, gender, smile, glasses and pose. The
paper tests on other crops of the same AFLW faces.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PureWindowsPath

import numpy as np

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.dataset import Dataset, compute_tight_boxes, find_path
from selfmark.paper.datasets.face_points import FIVE, FIVE_MIRROR
from selfmark.paper.datasets.list_files import parse_numbers, read_rows

_TITLE = "MTFL"
_ATTRIBUTES = ("gender", "smile", "glasses", "pose")
_NUM_POSES = 5  # 1 left profile, 2 left, 3 frontal, 4 right, 5 right profile
# Width and height of training boxes, relative to the longer side of the tight box around the points. Cropping
# adds a margin of 0.1 at each edge, so training crops are 2.4 * 1.2 = 2.88 times as large as the tight box.
# Test crops are 2.87 times as large (median of 2,995).
_BOX_SCALE = 2.4


def read(root: Path) -> Dataset:
    """Read the official lists. Test images are used whole; training images get boxes around their points."""
    return Dataset(
        name="mtfl",
        root=root,
        category="face",
        names=FIVE,
        mirror=FIVE_MIRROR,
        normalizer="inter_ocular",
        settings={},
        train=_add_boxes(_read_split(root, "training.txt")),
        test=_read_split(root, "testing.txt"),
        notes=("boxes of training images are made from their points unless --boxes gives others",),
    )


def _read_split(root: Path, name: str) -> AnnotatedObjects:
    """Return the images of a list, without boxes."""
    rows = read_rows(find_path(root, name, title=_TITLE), 1 + 2 * len(FIVE) + len(_ATTRIBUTES))
    values = np.array([parse_numbers(words[1:], where) for where, words in rows]).reshape(len(rows), -1)
    xs, ys, attributes = np.split(values, (len(FIVE), 2 * len(FIVE)), axis=1)
    pose = attributes[:, _ATTRIBUTES.index("pose")]
    invalid = np.flatnonzero(~np.isin(pose, range(1, _NUM_POSES + 1)))
    if len(invalid):
        row = invalid[0]
        raise InputError(f"{rows[row][0]}: the pose must be 1 to {_NUM_POSES}, not {pose[row]:g}")
    # Coordinates are 1-based, as in earlier work (Thewlis et al., 2019). The images confirm this: if 1 is not
    # subtracted, the points lie to the right of the pupils.
    xy = np.stack([xs, ys], axis=2) - 1
    fields = {
        attribute: tuple(int(value) for value in attributes[:, column])
        for column, attribute in enumerate(_ATTRIBUTES)
    }
    # The paths of training images contain backslashes; the paths of test images contain slashes.
    refs = [ImageRef(Path(PureWindowsPath(words[0]).as_posix())) for _, words in rows]
    return build_annotated_objects(refs, FIVE, xy, fields=fields)


def _add_boxes(objects: AnnotatedObjects) -> AnnotatedObjects:
    """Return the objects with square boxes around their points."""
    tight = compute_tight_boxes(objects.xy)
    side = _BOX_SCALE * tight[:, 2:].max(axis=1, keepdims=True)
    corner = tight[:, :2] + (tight[:, 2:] - side) / 2
    return replace(objects, boxes=np.concatenate([corner, side, side], axis=1))
