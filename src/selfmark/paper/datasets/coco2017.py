"""Read COCO keypoints: photographs of people with 17 points each, in the layout of 2017.

The root contains `annotations/person_keypoints_train2017.json` and `person_keypoints_val2017.json`. Images
are in `train2017` and `val2017`, or all in `images`. Annotations of another category can be read if they are
named `train.json` and `val.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation.label_files import build_objects
from selfmark.image_ref import ImageRef
from selfmark.images.coco import read_coco
from selfmark.paper.datasets.body_annotations import pair_points_by_side
from selfmark.paper.datasets.dataset import Dataset, files_exist, find_path

# Objects with a smaller fraction of annotated points are left out; often only a hand of them is visible.
MIN_POINT_FRACTION = 0.5
NUM_SAMPLES = 20  # number of images to look for in each possible folder


def read(root: Path) -> Dataset:
    """Read objects with at least half of their points; the validation split is for testing."""
    category, train, train_notes = _read_split(root, "train")
    _, test, test_notes = _read_split(root, "val")
    if train.names != test.names:
        raise InputError(f"{root}: the annotations for training and for testing name different points")
    return Dataset(
        name="coco",
        root=root,
        category=category,
        names=train.names,
        mirror=train.mirror or pair_points_by_side(train.names),
        normalizer="bbox",
        settings={},
        train=train,
        test=test,
        notes=(*train_notes, *test_notes),
    )


def _read_split(root: Path, kind: str) -> tuple[str, AnnotatedObjects, list[str]]:
    """Return the category, the usable objects, and notes about objects that were left out.

    Args:
        root: Folder of the data set.
        kind: `train` or `val`.
    """
    other_names = (f"annotations/{kind}.json", f"{kind}.json")
    path = find_path(
        root, f"annotations/person_keypoints_{kind}2017.json", *other_names, title="COCO keypoints"
    )
    file = read_coco(path)
    file.check_ids()
    annotations = file.single_objects()
    objects = build_objects(file, annotations)
    folder = _find_image_folder(root, path, kind, objects.paths).relative_to(root)
    # Coordinates are used unchanged, like those of all COCO files.
    objects = replace(objects, refs=tuple(ImageRef(folder / path) for path in objects.paths), fields={})

    is_annotated = objects.visible.sum(axis=1) >= MIN_POINT_FRACTION * len(objects.names)
    has_box = (objects.boxes[:, 2:] > 0).all(axis=1)
    exists = files_exist([root / path for path in objects.paths])
    left_out = {
        "crowds": len(file.annotations) - len(annotations),
        "objects with too few annotated points": int((~is_annotated).sum()),
        "objects without a box": int((is_annotated & ~has_box).sum()),
        "objects whose image is missing": int((is_annotated & has_box & ~exists).sum()),
    }
    notes = [f"{path.name}: {group} left out: {count}" for group, count in left_out.items() if count]
    return file.category(annotations).name, objects.select(is_annotated & has_box & exists), notes


def _find_image_folder(root: Path, path: Path, kind: str, names: Sequence[Path]) -> Path:
    """Return the folder that contains the largest number of images of a sample.

    COCO files do not say which folder their file names are relative to.
    """
    subfolders = (f"{kind}2017", f"images/{kind}2017", kind, f"images/{kind}", "images")
    folders = [*(root / folder for folder in subfolders), root, path.parent]
    sample = names[:NUM_SAMPLES]
    counts = [sum((folder / name).is_file() for name in sample) for folder in folders]
    if not any(counts):
        raise InputError(f"{path}: '{sample[0]}' was not found in any of {', '.join(map(str, folders))}")
    return folders[counts.index(max(counts))]
