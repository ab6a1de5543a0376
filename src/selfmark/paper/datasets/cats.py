"""CAT: heads of cats in 9,997 photographs, 9 points each: eyes, mouth and three points of each ear.

Below the root lie the folders CAT_00 to CAT_06 (or the archives' CAT_DATASET_01 and CAT_DATASET_02 that hold
them), in them `00000001_000.jpg` and `00000001_000.jpg.cat`: the number 9, then x and y of each point.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.input_files import MAX_COORDINATE, read_text
from selfmark.paper.datasets.body_readers import mirror_by_side
from selfmark.paper.datasets.dataset import Dataset, find_path, list_files, tight_box
from selfmark.points import FloatArray

OF = "CAT"
POINTS = 9
# Sides are those of the picture. The ears are marked from left to right, so the first point of the left ear
# is its outer corner and the first of the right its inner one. Their tips, 4 and 7, are left out as by Zhang
# et al. 2018, whose evaluation the paper follows.
PLACES = {
    "left_eye": 0, "right_eye": 1, "mouth": 2, "left_ear_outer": 3, "left_ear_inner": 5,
    "right_ear_inner": 6, "right_ear_outer": 8,
}  # fmt: skip
NAMES = tuple(PLACES)
# The data set's own corrigendum: this file is not of this image, but of 00000003_015.jpg.
WRONG = "00000003_019.jpg"
LISTS = (  # of Zhang et al. 2018: training, testing
    ("cat_train_images.txt", "cat_test_images.txt"),
    ("training_yixin.txt", "testing_yixin.txt"),
)
TEST_EVERY = 7  # without their lists; 1,257 of their 9,004 images are one in seven


def read(root: Path) -> Dataset:
    """Seven points; the split of Zhang et al. where their lists are; boxes around all points (Sec. 4.1)."""
    images = _images(root)
    annotated = {
        name: path for name, path in images.items() if name != WRONG and _points_file(path).is_file()
    }
    train, test, notes = _split(root, annotated)
    if len(annotated) < len(images):
        notes.append(
            f"images left out, because they have no points of their own: {len(images) - len(annotated)}"
        )
    splits, coinciding = [], 0
    for names in (train, test):
        split = _objects(root, [annotated[name] for name in names])
        apart = np.linalg.norm(split.xy[:, 0] - split.xy[:, 1], axis=1) > 0
        coinciding += int((~apart).sum())
        splits.append(split.select(apart))
    if coinciding:
        notes.append(f"images left out, because both eyes lie in one place: {coinciding}")
    return Dataset(
        name="cats",
        root=root,
        category="cat head",
        names=NAMES,
        mirror=mirror_by_side(NAMES),
        normalizer="inter_ocular",
        settings={},
        train=splits[0],
        test=splits[1],
        notes=tuple(notes),
    )


def _images(root: Path) -> dict[str, Path]:
    """The images by name, which is unique, in the order of names."""
    looked = ("CAT_00", "CAT_DATASET_01/CAT_00", "cats/CAT_00")
    first = find_path(root, *looked, of=OF).parent
    places = [first, root / "CAT_DATASET_02"] if first.name == "CAT_DATASET_01" else [first]
    found = [path for place in places for path in list_files(place, "CAT_0[0-6]/*.jpg")]
    return {path.name: path for path in sorted(found, key=lambda path: path.name)}


def _points_file(image: Path) -> Path:
    return image.with_name(f"{image.name}.cat")


def _split(root: Path, annotated: dict[str, Path]) -> tuple[list[str], list[str], list[str]]:
    """Names of the images for training and for testing, and notes."""
    for pair in LISTS:
        for folder in (root, root / "cat_data"):
            if all((folder / name).is_file() for name in pair):
                lists = [[line.split("/")[-1] for line in _lines(folder / name)] for name in pair]
                known = [[name for name in names if name in annotated] for names in lists]
                missing = sum(map(len, lists)) - sum(map(len, known))
                if not all(known):
                    raise InputError(f"{folder}: {' and '.join(pair)} name none of the images of {root}")
                why = f"listed images left out, because they are not there or have no points: {missing}"
                return known[0], known[1], [why] if missing else []
    names = list(annotated)
    test = names[TEST_EVERY - 1 :: TEST_EVERY]
    wanted = " and ".join(LISTS[0])
    rule = f"there is no {wanted} of Zhang et al. 2018, so every {TEST_EVERY}th image is for testing"
    return sorted(set(names) - set(test)), test, [rule]


def _lines(path: Path) -> list[str]:
    return [line.strip().replace("\\", "/") for line in read_text(path).splitlines() if line.strip()]


def _objects(root: Path, images: list[Path]) -> AnnotatedObjects:
    points = np.stack([_points(path) for path in images]) if images else np.zeros((0, POINTS, 2))
    refs = [ImageRef(path.relative_to(root)) for path in images]
    return annotate_images(refs, NAMES, points[:, list(PLACES.values())], tight_box(points))


def _points(image: Path) -> FloatArray:
    """All nine points of an image, [9, 2], in whole pixels, taken to be counted from 0."""
    path = _points_file(image)
    words = read_text(path).split()
    try:
        values = [int(word) for word in words]
    except ValueError:
        values = []
    small = all(abs(value) < MAX_COORDINATE for value in values)
    if len(values) != 1 + 2 * POINTS or values[0] != POINTS or not small:
        raise InputError(f"{path} must hold the number {POINTS} and x and y of {POINTS} points")
    return np.array(values[1:], np.float64).reshape(POINTS, 2)
