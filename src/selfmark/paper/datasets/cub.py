"""CUB-200-2011: 11,788 photographs of 200 species of birds, 15 parts.

Below the root (the folder CUB_200_2011 of the archive) `images.txt` numbers the images,
`train_test_split.txt` gives the official split, `bounding_boxes.txt` a box each and `parts/part_locs.txt` the
parts in sight.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.annotations import annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.list_files import parse_numbers, read_rows
from selfmark.points import FloatArray

NAMES = (
    "back", "beak", "belly", "breast", "crown", "forehead", "left_eye", "left_leg", "left_wing", "nape",
    "right_eye", "right_leg", "right_wing", "tail", "throat",
)  # fmt: skip
MIRROR = tuple(
    NAMES.index({"left": "right_", "right": "left_"}[name.split("_")[0]] + name.split("_")[1])
    if "_" in name
    else index
    for index, name in enumerate(NAMES)
)
# As in earlier work sea birds are left out, whose poses (flying, swimming) differ too much from the others'.
# No list was published; these are the last words of their names.
SEABIRDS = (
    "Albatross", "Auklet", "Cormorant", "Frigatebird", "Fulmar", "Grebe", "Guillemot", "Gull", "Jaeger",
    "Kittiwake", "Loon", "Merganser", "Pelican", "Puffin", "Tern",
)  # fmt: skip


def read(root: Path) -> Dataset:
    """Birds without sea birds, official split; boxes with a margin on each side as for faces (Sec. 4.1)."""
    of = "CUB-200-2011"
    names = _numbered(find_path(root, "images.txt", of=of), 1)
    training = _numbered(find_path(root, "train_test_split.txt", of=of), 1)
    boxes = _numbered(find_path(root, "bounding_boxes.txt", of=of), 4)
    parts = find_path(root, "parts/part_locs.txt", of=of)
    find_path(root, "images", of=of)

    order = list(names)
    place = {number: row for row, number in enumerate(order)}
    xy = np.full((len(order), len(NAMES), 2), np.nan)
    for where, (number, *words) in read_rows(parts, 5):
        part, x, y, seen = parse_numbers(words, where)
        if number not in place or part not in range(1, len(NAMES) + 1):
            raise InputError(f"{where}: there is no image {number} or no part {words[0]}")
        if seen:
            xy[place[number], int(part) - 1] = x, y
    missing = [number for number in order if number not in training or number not in boxes]
    if missing:
        raise InputError(f"{root}: image {missing[0]} of images.txt has no box or is in no split")
    box: FloatArray = np.array([parse_numbers(boxes[number][1], boxes[number][0]) for number in order])
    files = [Path("images") / names[number][1][0] for number in order]
    species = [file.parent.name for file in files]
    objects = annotate_images(
        [ImageRef(file) for file in files], NAMES, xy, box.reshape(-1, 4), fields={"species": tuple(species)}
    )
    land = np.array([name.split("_")[-1] not in SEABIRDS for name in species], dtype=bool)
    in_sight = np.isfinite(xy).all(axis=2).any(axis=1)
    first = np.array([training[number][1] == ["1"] for number in order], dtype=bool)
    unseen = int((land & ~in_sight).sum())
    return Dataset(
        name="cub",
        root=root,
        category="bird",
        names=NAMES,
        mirror=MIRROR,
        normalizer="bbox",
        settings={},
        train=objects.select(land & in_sight & first),
        test=objects.select(land & in_sight & ~first),
        notes=(f"{unseen} images without any part in sight were left out",) if unseen else (),
    )


def _numbered(path: Path, count: int) -> dict[str, tuple[str, list[str]]]:
    """By an image's number, the place of its line and the `count` words after the number."""
    return {words[0]: (where, words[1:]) for where, words in read_rows(path, count + 1)}
