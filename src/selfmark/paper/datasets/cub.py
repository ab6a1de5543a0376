"""Read CUB-200-2011: 11,788 photographs of 200 species of birds with 15 parts.

The root is the folder CUB_200_2011 of the archive. `images.txt` numbers the images, `train_test_split.txt`
contains the official split, `bounding_boxes.txt` a box for each image, and `parts/part_locs.txt` the parts
and whether each is visible.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.annotations import build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.body_annotations import pair_points_by_side
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.list_files import parse_numbers, read_rows
from selfmark.points import FloatArray
from selfmark.wording import choose_form, describe_count

TITLE = "CUB-200-2011"
NAMES = (
    "back", "beak", "belly", "breast", "crown", "forehead", "left_eye", "left_leg", "left_wing", "nape",
    "right_eye", "right_leg", "right_wing", "tail", "throat",
)  # fmt: skip
# Last words of the names of seabirds. As in earlier work, seabirds are left out, because their poses (flying,
# swimming) differ too much from those of other birds. Earlier work published no list of them.
SEABIRDS = (
    "Albatross", "Auklet", "Cormorant", "Frigatebird", "Fulmar", "Grebe", "Guillemot", "Gull", "Jaeger",
    "Kittiwake", "Loon", "Merganser", "Pelican", "Puffin", "Tern",
)  # fmt: skip


def read(root: Path) -> Dataset:
    """Read all birds with a visible part, except seabirds, with the official split.

    `Dataset.settings` is empty: the boxes get the default margin, as those of faces do (Sec. 4.1 of the
    paper).
    """
    image_rows = _read_numbered(find_path(root, "images.txt", title=TITLE), 1)
    split_rows = _read_numbered(find_path(root, "train_test_split.txt", title=TITLE), 1)
    box_rows = _read_numbered(find_path(root, "bounding_boxes.txt", title=TITLE), 4)
    parts_file = find_path(root, "parts/part_locs.txt", title=TITLE)
    find_path(root, "images", title=TITLE)  # raises if the folder of images is missing

    numbers = list(image_rows)
    row_of = {number: row for row, number in enumerate(numbers)}
    xy = np.full((len(numbers), len(NAMES), 2), np.nan)
    for where, (number, *words) in read_rows(parts_file, 5):
        part, x, y, is_visible = parse_numbers(words, where)
        if number not in row_of or part not in range(1, len(NAMES) + 1):
            raise InputError(f"{where}: unknown image {number} or unknown part {words[0]}")
        if is_visible:
            xy[row_of[number], int(part) - 1] = x, y
    missing_numbers = [number for number in numbers if number not in split_rows or number not in box_rows]
    if missing_numbers:
        raise InputError(f"{root}: image {missing_numbers[0]} of images.txt has no box or is in no split")
    boxes: FloatArray = np.array(
        [parse_numbers(box_rows[number][1], box_rows[number][0]) for number in numbers]
    )
    files = [Path("images") / image_rows[number][1][0] for number in numbers]
    species = [file.parent.name for file in files]
    objects = build_annotated_objects(
        [ImageRef(file) for file in files],
        NAMES,
        xy,
        boxes.reshape(-1, 4),
        fields={"species": tuple(species)},
    )
    is_land_bird = np.array([name.split("_")[-1] not in SEABIRDS for name in species], dtype=bool)
    has_parts = np.isfinite(xy).all(axis=2).any(axis=1)
    is_train = np.array([split_rows[number][1] == ["1"] for number in numbers], dtype=bool)
    num_without_parts = int((is_land_bird & ~has_parts).sum())
    return Dataset(
        name="cub",
        root=root,
        category="bird",
        names=NAMES,
        mirror=pair_points_by_side(NAMES),
        normalizer="bbox",
        settings={},
        train=objects.select(is_land_bird & has_parts & is_train),
        test=objects.select(is_land_bird & has_parts & ~is_train),
        notes=_note_without_parts(num_without_parts),
    )


def _note_without_parts(count: int) -> tuple[str, ...]:
    """Return a note about images without any visible part; empty if there are none."""
    if not count:
        return ()
    verb = choose_form(count, "was", "were")
    return (f"{describe_count(count, 'image')} without any visible part {verb} left out",)


def _read_numbered(path: Path, count: int) -> dict[str, tuple[str, list[str]]]:
    """Read a list whose lines begin with the number of an image.

    Returns:
        A mapping from image numbers to two values: the place of the line, for messages, and the `count` words
        after the number.
    """
    return {words[0]: (where, words[1:]) for where, words in read_rows(path, count + 1)}
