"""Read the CAT data set: 9,997 photographs of cat heads, each with 9 points.

The points are the eyes, the mouth, and three points on each ear.

The root contains the folders CAT_00 to CAT_06, directly or inside the folders CAT_DATASET_01 and
CAT_DATASET_02 of the archives. CAT_00 to CAT_06 contain images like `00000001_000.jpg` and their points in
`00000001_000.jpg.cat`: the number 9, then x and y of each point.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.input_files import MAX_COORDINATE, read_text_input, read_text_lines
from selfmark.paper.datasets.body_annotations import pair_points_by_side
from selfmark.paper.datasets.dataset import Dataset, compute_tight_boxes, find_path, list_files
from selfmark.points import FloatArray

TITLE = "CAT"
NUM_POINTS = 9
# Left and right mean the sides of the image. The ears are annotated from left to right: the first point of
# the left ear is its outer corner, and the first point of the right ear is its inner corner. The tips of the
# ears, points 4 and 7, are left out as in Zhang et al. 2018, whose protocol the paper follows.
POINT_INDEX = {
    "left_eye": 0, "right_eye": 1, "mouth": 2, "left_ear_outer": 3, "left_ear_inner": 5,
    "right_ear_inner": 6, "right_ear_outer": 8,
}  # fmt: skip
NAMES = tuple(POINT_INDEX)
# According to the data set's corrigendum, the points of this image belong to 00000003_015.jpg.
MISLABELED = "00000003_019.jpg"
SPLIT_FILES = (  # lists of Zhang et al. 2018 for training and testing
    ("cat_train_images.txt", "cat_test_images.txt"),
    ("training_yixin.txt", "testing_yixin.txt"),
)
# If the lists are missing, every 7th image is a test image. This is about the fraction in the lists (1,257 of
# 9,004).
TEST_STEP = 7


def read(root: Path) -> Dataset:
    """Read seven of the nine points, and a box around all nine.

    If the lists of Zhang et al. exist, they define the split, as in the paper (Sec. 4.1).
    """
    images = _find_images(root)
    annotated = {
        name: path for name, path in images.items() if name != MISLABELED and _points_file(path).is_file()
    }
    train, test, notes = _split_names(root, annotated)
    if len(annotated) < len(images):
        num_missing = len(images) - len(annotated)
        notes.append(f"images left out because their points are missing or wrong: {num_missing}")
    splits, num_coinciding = [], 0
    for names in (train, test):
        split = _read_objects(root, [annotated[name] for name in names])
        eyes_differ = np.linalg.norm(split.xy[:, 0] - split.xy[:, 1], axis=1) > 0
        num_coinciding += int((~eyes_differ).sum())
        splits.append(split.select(eyes_differ))
    if num_coinciding:
        notes.append(f"images left out because both eyes are at the same point: {num_coinciding}")
    return Dataset(
        name="cats",
        root=root,
        category="cat head",
        names=NAMES,
        mirror=pair_points_by_side(NAMES),
        normalizer="inter_ocular",
        settings={},
        train=splits[0],
        test=splits[1],
        notes=tuple(notes),
    )


def _find_images(root: Path) -> dict[str, Path]:
    """Return a sorted mapping from file names to paths; file names are unique in this data set."""
    folder = find_path(root, "CAT_00", "CAT_DATASET_01/CAT_00", "cats/CAT_00", title=TITLE).parent
    folders = [folder, root / "CAT_DATASET_02"] if folder.name == "CAT_DATASET_01" else [folder]
    paths = [path for folder in folders for path in list_files(folder, "CAT_0[0-6]/*.jpg")]
    return {path.name: path for path in sorted(paths, key=lambda path: path.name)}


def _points_file(image: Path) -> Path:
    return image.with_name(f"{image.name}.cat")


def _split_names(root: Path, annotated: dict[str, Path]) -> tuple[list[str], list[str], list[str]]:
    """Return the file names of the training images, those of the test images, and notes."""
    for pair in SPLIT_FILES:
        for folder in (root, root / "cat_data"):
            if all((folder / name).is_file() for name in pair):
                lists = [[line.split("/")[-1] for line in _read_lines(folder / name)] for name in pair]
                available = [[name for name in names if name in annotated] for names in lists]
                num_missing = sum(map(len, lists)) - sum(map(len, available))
                for list_name, names in zip(pair, available, strict=True):
                    if not names:
                        raise InputError(
                            f"{folder / list_name}: none of the listed images has usable points in {root}"
                        )
                note = (
                    "listed images left out because the image is missing, or its points are missing or "
                    f"wrong: {num_missing}"
                )
                return available[0], available[1], [note] if num_missing else []
    names = list(annotated)
    test = names[TEST_STEP - 1 :: TEST_STEP]
    files = " and ".join(SPLIT_FILES[0])
    note = f"{files} of Zhang et al. 2018 are missing, so every {TEST_STEP}th image is used for testing"
    return sorted(set(names) - set(test)), test, [note]


def _read_lines(path: Path) -> list[str]:
    return [line.strip().replace("\\", "/") for line in read_text_lines(path) if line.strip()]


def _read_objects(root: Path, images: list[Path]) -> AnnotatedObjects:
    points = np.stack([_read_points(path) for path in images]) if images else np.zeros((0, NUM_POINTS, 2))
    refs = [ImageRef(path.relative_to(root)) for path in images]
    return build_annotated_objects(
        refs, NAMES, points[:, list(POINT_INDEX.values())], compute_tight_boxes(points)
    )


def _read_points(image: Path) -> FloatArray:
    """Return the nine points [9, 2] of an image, in whole pixels, which are assumed to be 0-based."""
    path = _points_file(image)
    words = read_text_input(path).split()
    try:
        values = [int(word) for word in words]
    except ValueError:
        values = []
    in_range = all(abs(value) < MAX_COORDINATE for value in values)
    if len(values) != 1 + 2 * NUM_POINTS or values[0] != NUM_POINTS or not in_range:
        raise InputError(f"{path} must contain the number {NUM_POINTS} and x and y of {NUM_POINTS} points")
    return np.array(values[1:], np.float64).reshape(NUM_POINTS, 2)
