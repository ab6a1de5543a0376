"""Read CelebA with MAFL: 202,599 photographs of celebrities with five points.

Landmarks are discovered in all images except MAFL's 1,000 test images. Regressors are fitted on MAFL's 19,000
training images. The lists are in Anno, Eval and MAFL, or directly in the root. If aligned images exist, they
are read, because the authors' program uses them; otherwise images in the wild are read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.annotations import build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets.dataset import Dataset, find_path
from selfmark.paper.datasets.face_points import FIVE, FIVE_MIRROR
from selfmark.paper.datasets.list_files import parse_numbers, read_counted_rows, read_rows
from selfmark.points import FloatArray
from selfmark.wording import choose_form, describe_count

_TITLE = "CelebA"
_PARTITIONS = {"0": "train", "1": "val", "2": "test"}


def read(root: Path) -> Dataset:
    """Read CelebA without MAFL's test images, and MAFL's images for fitting regressors and for testing."""
    aligned_folders = ("img_align_celeba_hq", "img_align_celeba")
    folder = find_path(root, *_possible_paths("Img", *aligned_folders, "img_celeba"), title=_TITLE)
    in_the_wild = folder.name == "img_celeba"
    points_list = "list_landmarks_celeba.txt" if in_the_wild else "list_landmarks_align_celeba.txt"
    table = read_counted_rows(find_path(root, *_possible_paths("Anno", points_list), title=_TITLE), 11)

    names = [words[0] for _, words in table]
    row_of = {name: row for row, name in enumerate(names)}
    duplicate = next((row for row, name in enumerate(names) if row_of[name] != row), None)
    if duplicate is not None:
        raise InputError(f"{table[duplicate][0]}: the image {names[duplicate]} is listed twice")
    # Coordinates are whole pixels. Whether they start at 0 or 1 is not documented; like earlier work, assume
    # 0.
    xy = np.array([parse_numbers(words[1:], where) for where, words in table]).reshape(-1, len(FIVE), 2)
    if in_the_wild:
        boxes, notes = _read_official_boxes(root, row_of)
    else:
        boxes = np.full((len(names), 4), np.nan)
        notes = (
            "the official boxes are those of the images in the wild, so whole aligned images are used unless "
            "--boxes or --find-faces gives boxes; the paper used boxes of the detector S3FD",
        )
    refs = [ImageRef(folder.relative_to(root) / name) for name in names]
    objects = build_annotated_objects(refs, FIVE, xy, boxes, fields=_read_partitions(root, row_of))
    fit, test = (_read_mafl_rows(root, part, row_of) for part in ("training", "testing"))
    is_train = np.ones(len(names), dtype=bool)
    is_train[test] = False
    return Dataset(
        name="celeba",
        root=root,
        category="face",
        names=FIVE,
        mirror=FIVE_MIRROR,
        normalizer="inter_ocular",
        settings={"evaluation.ridge": 0.001},  # as in the authors' program for forward errors
        train=objects.select(is_train),
        test=objects.select(np.array(test, dtype=np.int64)),
        notes=notes,
        fit=objects.select(np.array(fit, dtype=np.int64)),
    )


def _possible_paths(folder: str, *names: str) -> list[str]:
    """Return two paths for each name: in a folder, as in the official archive, and directly in the root."""
    return [f"{prefix}{name}" for name in names for prefix in (f"{folder}/", "")]


def _read_mafl_rows(root: Path, part: str, row_of: dict[str, int]) -> list[int]:
    """Return the rows of the images that a MAFL list names, in the order of the list."""
    names = (f"MAFL/{part}.txt", f"mafl_{part}.txt", f"MAFL/mafl_{part}.txt")
    rows = read_rows(find_path(root, *names, title=f"{_TITLE} with MAFL"), 1)
    for where, (name,) in rows:
        if name not in row_of:
            raise InputError(f"{where}: the image '{name}' is not in the list of landmarks")
    return [row_of[name] for _, (name,) in rows]


def _read_official_boxes(root: Path, row_of: dict[str, int]) -> tuple[FloatArray, tuple[str, ...]]:
    """Return the boxes [N, 4] of images in the wild, and notes; a missing or empty box is NaN."""
    boxes = np.full((len(row_of), 4), np.nan)
    path = find_path(root, *_possible_paths("Anno", "list_bbox_celeba.txt"), title=_TITLE)
    for where, (name, *words) in read_counted_rows(path, 5):
        x, y, width, height = parse_numbers(words, where)
        if name in row_of and width > 0 and height > 0:
            boxes[row_of[name]] = x, y, width, height
    num_missing = int(np.isnan(boxes[:, 0]).sum())
    notes = [
        "boxes are those of list_bbox_celeba.txt unless --boxes or --find-faces gives others; the paper used "
        "boxes of the detector S3FD"
    ]
    if num_missing:
        notes.append(
            f"{describe_count(num_missing, 'image')} {choose_form(num_missing, 'has', 'have')} no box with "
            "an area; the whole image is used"
        )
    return boxes, tuple(notes)


def _read_partitions(root: Path, row_of: dict[str, int]) -> dict[str, tuple[str, ...]]:
    """Return CelebA's own split as a field; empty if the list of the split is missing.

    The paper ignores this split.
    """
    paths = (root / name for name in _possible_paths("Eval", "list_eval_partition.txt"))
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return {}
    partitions = [""] * len(row_of)
    for where, (name, partition) in read_rows(path, 2):
        if partition not in _PARTITIONS:
            raise InputError(f"{where}: the partition must be 0, 1 or 2, not '{partition}'")
        if name in row_of:
            partitions[row_of[name]] = _PARTITIONS[partition]
    return {"partition": tuple(partitions)}
