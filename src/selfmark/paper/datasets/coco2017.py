"""COCO keypoints: photographs with any number of people, 17 points each, in the layout of 2017.

Below the root `annotations/person_keypoints_train2017.json` and `...val2017.json`, the images in `train2017`
and `val2017`, or both in `images`. Files of another category, called `train.json` and `val.json`, do as well.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.errors import InputError
from selfmark.paper.datasets.body_readers import mirror_by_side
from selfmark.paper.datasets.coco_objects import CocoObjects, read_coco_objects
from selfmark.paper.datasets.dataset import Dataset, SplitObjects, files_exist, find_path

ENOUGH = 0.5  # share of the points that must be annotated: many people are a hand or a dot
SAMPLE = 20  # images that are looked for to find out where they lie


def read(root: Path) -> Dataset:
    """Objects with at least half of their points, crowds left out; the official validation set tests."""
    train, train_objects, train_notes = _split(root, "train")
    test, test_objects, test_notes = _split(root, "val")
    if train.names != test.names:
        raise InputError(f"{root}: the annotations for training and for testing name different points")
    return Dataset(
        name="coco",
        root=root,
        category=train.category,
        names=train.names,
        mirror=train.mirror or mirror_by_side(train.names),
        normalizer="bbox",
        settings={},
        train=train_objects,
        test=test_objects,
        notes=(*train_notes, *test_notes),
    )


def _split(root: Path, kind: str) -> tuple[CocoObjects, SplitObjects, list[str]]:
    """What a file says, the objects that are of use, and sentences on those that are not."""
    own = (f"annotations/{kind}.json", f"{kind}.json")
    path = find_path(root, f"annotations/person_keypoints_{kind}2017.json", *own, of="COCO keypoints")
    said = read_coco_objects(path)
    named = [Path(image.file_name) for image in said.images]
    folder = _folder(root, path, kind, named)
    files = [folder.relative_to(root) / name for name in named]

    known = said.points[..., 2] > 0
    enough = known.sum(axis=1) >= ENOUGH * len(said.names)
    boxed = (said.box[:, 2:] > 0).all(axis=1)
    there = files_exist([root / file for file in files])
    kept = np.flatnonzero(enough & boxed & there)
    left_out = {
        "crowds": said.crowds,
        "objects with too few annotated points": int((~enough).sum()),
        "objects without a box": int((enough & ~boxed).sum()),
        "objects whose image is not there": int((enough & boxed & ~there).sum()),
    }
    objects = SplitObjects(
        tuple(files[row] for row in kept),
        np.full(len(kept), -1, np.int64),
        said.box[kept],
        # Used as they are, like all COCO points in this program.
        np.where(known[..., None], said.points[..., :2], np.nan)[kept],
        (said.points[..., 2] == 1)[kept],
    )
    notes = [f"{path.name}: {what} left out: {count}" for what, count in left_out.items() if count]
    return said, objects, notes


def _folder(root: Path, path: Path, kind: str, named: list[Path]) -> Path:
    """Where the images lie: COCO files leave open what their names are relative to."""
    below = (f"{kind}2017", f"images/{kind}2017", kind, f"images/{kind}", "images")
    places = [*(root / folder for folder in below), root, path.parent]
    sample = named[:SAMPLE]
    found = [sum((place / name).is_file() for name in sample) for place in places]
    if not any(found):
        raise InputError(f"{path}: '{sample[0]}' is in none of {', '.join(map(str, places))}")
    return places[found.index(max(found))]
