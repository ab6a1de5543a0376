"""CelebA with MAFL: 202,599 photographs of celebrities with five points, of which MAFL tests on 1,000.

Landmarks are discovered in all images but those 1,000, regressors are fitted on MAFL's 19,000. The lists are
in Anno, Eval and MAFL, or all beside the images. The aligned images come first, since the authors' program
takes them; images in the wild are read where there are only those.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.annotations import annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.face_points import FIVE, FIVE_MIRROR
from selfmark.paper.datasets.list_files import parse_numbers, read_counted_rows, read_rows
from selfmark.points import FloatArray

_OF = "CelebA"
_PARTITIONS = {"0": "train", "1": "val", "2": "test"}


def read(root: Path) -> Dataset:
    """CelebA without the test images of MAFL, MAFL's training images to fit on, and its test images."""
    aligned = ("img_align_celeba_hq", "img_align_celeba")
    folder = find_path(root, *_places("Img", *aligned, "img_celeba"), of=_OF)
    in_the_wild = folder.name == "img_celeba"
    points = "list_landmarks_celeba.txt" if in_the_wild else "list_landmarks_align_celeba.txt"
    table = read_counted_rows(find_path(root, *_places("Anno", points), of=_OF), 11)

    order = [words[0] for _, words in table]
    place = {name: row for row, name in enumerate(order)}
    twice = next((row for row, name in enumerate(order) if place[name] != row), None)
    if twice is not None:
        raise InputError(f"{table[twice][0]}: the image {order[twice]} is listed twice")
    # Whole pixels; no one says whether they count from 0 or from 1. As in earlier work, from 0.
    xy = np.array([parse_numbers(words[1:], where) for where, words in table]).reshape(-1, len(FIVE), 2)
    if in_the_wild:
        box, notes = _official_boxes(root, place)
    else:
        box = np.full((len(order), 4), np.nan)
        notes = (
            "the official boxes are of the images in the wild, so aligned images are taken whole unless "
            "--boxes or --find-faces says where the faces are; the paper took boxes of the detector S3FD",
        )
    refs = [ImageRef(folder.relative_to(root) / name) for name in order]
    objects = annotate_images(refs, FIVE, xy, box, fields=_partitions(root, place))
    fit, test = (_mafl(root, part, place) for part in ("training", "testing"))
    discovered = np.ones(len(order), dtype=bool)
    discovered[test] = False
    return Dataset(
        name="celeba",
        root=root,
        category="face",
        names=FIVE,
        mirror=FIVE_MIRROR,
        normalizer="inter_ocular",
        settings={"evaluation.ridge": 0.001},  # of forward errors in the authors' program
        train=objects.select(discovered),
        test=objects.select(np.array(test, dtype=np.int64)),
        notes=notes,
        fit=objects.select(np.array(fit, dtype=np.int64)),
    )


def _places(folder: str, *names: str) -> list[str]:
    """Below the folder of the official archive, or right below the root."""
    return [f"{prefix}{name}" for name in names for prefix in (f"{folder}/", "")]


def _mafl(root: Path, part: str, place: dict[str, int]) -> list[int]:
    """The rows of a list of MAFL, in its order."""
    path = find_path(
        root, f"MAFL/{part}.txt", f"mafl_{part}.txt", f"MAFL/mafl_{part}.txt", of=f"{_OF} with MAFL"
    )
    found = read_rows(path, 1)
    for where, (name,) in found:
        if name not in place:
            raise InputError(f"{where}: the list of landmarks has no image '{name}'")
    return [place[name] for _, (name,) in found]


def _official_boxes(root: Path, place: dict[str, int]) -> tuple[FloatArray, tuple[str, ...]]:
    """The boxes of images in the wild; the whole image where the list has a box without area."""
    box = np.full((len(place), 4), np.nan)
    for where, (name, *words) in read_counted_rows(
        find_path(root, *_places("Anno", "list_bbox_celeba.txt"), of=_OF), 5
    ):
        x, y, width, height = parse_numbers(words, where)
        if name in place and width > 0 and height > 0:
            box[place[name]] = x, y, width, height
    without = int(np.isnan(box[:, 0]).sum())
    notes = [
        "boxes are those of list_bbox_celeba.txt unless --boxes or --find-faces gives others; the paper took "
        "boxes of the detector S3FD"
    ]
    notes += [f"{without} images have no box with an area; the whole image is taken"] if without else []
    return box, tuple(notes)


def _partitions(root: Path, place: dict[str, int]) -> dict[str, tuple[str, ...]]:
    """Each image's part of CelebA's own split as a field, if the list is there; the paper does not use it."""
    path = next(
        (root / name for name in _places("Eval", "list_eval_partition.txt") if (root / name).exists()), None
    )
    if path is None:
        return {}
    parts = [""] * len(place)
    for where, (name, part) in read_rows(path, 2):
        if part not in _PARTITIONS:
            raise InputError(f"{where}: a partition is 0, 1 or 2, not '{part}'")
        if name in place:
            parts[place[name]] = _PARTITIONS[part]
    return {"partition": tuple(parts)}
