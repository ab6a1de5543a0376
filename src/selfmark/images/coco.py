"""The pieces of a COCO keypoint file, each checked as it is taken out.

Label files come from everywhere, so nothing in them is trusted: what cannot be used is refused by its place.
"""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.normalizers import POINTS, WORDS
from selfmark.image_ref import Box
from selfmark.images.sources import coco_entries, read_text
from selfmark.points import FloatArray

LARGEST = 1e9  # pixels; no image is as wide, and squares of such numbers are far from overflow

Entry = tuple[str, dict[str, Any]]  # words that name an entry's place in the file, and the entry


# --- the parts of the file -------------------------------------------------------------------------


def load_coco(path: Path) -> tuple[Any, dict[int | str, Entry], list[Entry]]:
    """The file's content, its images by id and its annotations, all ids checked."""
    text = read_text(path)
    try:
        content = json.loads(text)
        images = coco_entries(path, content, "images", ("id", "file_name"))
        annotations = coco_entries(path, content, "annotations", ("image_id",))
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path} is not a COCO file: it is nested too deeply") from error
    named = _by_id(images)
    _by_id([entry for entry in annotations if entry[1].get("id") is not None])
    for where, annotation in annotations:
        if annotation["image_id"] not in named:
            raise InputError(
                f"{where}: there is no image with the id {annotation['image_id']!r}; add or remove it"
            )
    return content, named, annotations


def _by_id(entries: Iterable[Entry]) -> dict[int | str, Entry]:
    """Entries by their ids, which must differ."""
    found: dict[int | str, Entry] = {}
    for where, entry in entries:
        key = entry.get("id")
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise InputError(f"{where} needs an 'id' that is a number or a word, not {reprlib.repr(key)}")
        if key in found:
            raise InputError(f"{where}: the id {key!r} is that of {found[key][0]} too; give each its own")
        found[key] = (where, entry)
    return found


def is_crowd(entry: Entry) -> bool:
    """Whether an annotation is of a group rather than of one object."""
    where, annotation = entry
    value = annotation.get("iscrowd")
    if value is not None and value not in (0, 1):
        raise InputError(f"{where}: 'iscrowd' is 0 or 1, not {reprlib.repr(value)}")
    return bool(value)


def category_of(path: Path, content: Any, annotations: list[Entry]) -> Entry:
    """The one category that the annotations are of; where none names points, the only one or an empty one."""
    categories = coco_entries(path, content, "categories", ())
    for where, category in categories:
        if not isinstance(category, dict):
            raise InputError(f"{where} is not an object with a name and keypoints")
    pointed = [entry for entry in categories if entry[1].get("keypoints")]
    if not pointed:
        return categories[0] if len(categories) == 1 else (f"{path}: categories", {})
    by_id = _by_id(pointed) if len(pointed) > 1 or "id" in pointed[0][1] else {}
    used: Entry | None = None
    for where, annotation in annotations:
        key = annotation.get("category_id")
        if key is None and len(pointed) == 1:
            chosen: Entry | None = pointed[0]
        else:
            chosen = by_id.get(key) if isinstance(key, int | str) else None
        if chosen is None:
            raise InputError(
                f"{where}: no category with keypoints has the id {reprlib.repr(key)}; correct 'category_id'"
            )
        if used is not None and chosen is not used:
            raise InputError(
                f"{where} is of another category than the annotations before it ({chosen[0]}, not "
                f"{used[0]}); give a file with points of one category"
            )
        used = chosen
    return used or pointed[0]


def point_names(where: str, category: dict[str, Any], first: Entry) -> tuple[str, ...]:
    """Names of the points; without a category that has any, numbered after the first annotation."""
    names = category.get("keypoints")
    if not names:
        keypoints = first[1].get("keypoints")
        count = len(keypoints) if isinstance(keypoints, list) else 0
        if count == 0 or count % 3:
            raise InputError(f"{first[0]}: 'keypoints' must list x, y, v for each point")
        return tuple(f"point_{number}" for number in range(count // 3))
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{where}: 'keypoints' must list the names of the points, not {reprlib.repr(names)}")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InputError(f"{where}: two points are called '{repeated[0]}'; give each a name of its own")
    return tuple(names)


def mirror_of(where: str, category: dict[str, Any], count: int) -> tuple[int, ...]:
    """Each point's partner in the mirrored image; empty where the category does not say."""
    partners = category.get("flip_idx")
    if partners is None or partners == []:
        return ()
    if not _are_integers(partners) or sorted(partners) != list(range(count)):
        raise InputError(f"{where}: 'flip_idx' must list every point from 0 to {count - 1} once")
    return tuple(partners)


def declared_normalizer(
    where: str, category: dict[str, Any], names: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """The declared normalizer as a spec of `normalize`, and a note if it is not known there."""
    word, ends = category.get("normaliser"), category.get("normaliser_points")
    if word is not None and not isinstance(word, str):
        raise InputError(f"{where}: 'normaliser' must be a word, not {reprlib.repr(word)}")
    if ends is not None:
        inside = _are_integers(ends) and all(0 <= end < len(names) for end in ends)
        if not inside or len(set(ends)) != 2 or len(ends) != 2:
            raise InputError(
                f"{where}: 'normaliser_points' must be two different points from 0 to {len(names) - 1}, "
                f"not {reprlib.repr(ends)}"
            )
    if word == "bbox_sqrt_area":
        return "bbox", ()
    if ends is not None:
        return f"{POINTS}{names[ends[0]]},{names[ends[1]]}", ()
    if not word or word in WORDS or word.startswith(POINTS):
        return word or "", ()
    return "", (f"{where}: the normalizer '{word}' is not known and was passed over",)


# --- the parts of an annotation --------------------------------------------------------------------


def keypoints_of(entries: Sequence[Entry], names: Sequence[str]) -> FloatArray:
    """x, y, v of each point of N annotations, [N, L, 3]."""
    points: FloatArray = np.stack([_triples(entry, len(names)) for entry in entries])
    unknown = (points[..., 2] != 0) & (points[..., 2] != 1) & (points[..., 2] != 2)
    # Written so that NaN fails too; where v is 0, coordinates mean nothing.
    astray = (points[..., 2] > 0) & ~(np.abs(points[..., :2]) <= LARGEST).all(axis=2)
    for wrong, words in ((unknown, "has a v other than 0, 1 and 2"), (astray, "lies at no usable place")):
        if wrong.any():
            row, index = np.argwhere(wrong)[0].tolist()
            raise InputError(
                f"{entries[row][0]}: point '{names[index]}' {words}: {points[row, index].tolist()}"
            )
    return points


def _triples(entry: Entry, count: int) -> FloatArray:
    """The numbers of one annotation, [L, 3]."""
    where, annotation = entry
    listed = annotation.get("keypoints")
    if not isinstance(listed, list) or len(listed) != 3 * count:
        found = f"{len(listed)} numbers" if isinstance(listed, list) else reprlib.repr(listed)
        raise InputError(f"{where}: 'keypoints' must list x, y, v for each of {count} points, not {found}")
    numbers = _numbers(listed)
    if numbers is None:
        raise InputError(f"{where}: 'keypoints' must hold nothing but numbers")
    triples: FloatArray = numbers.reshape(-1, 3)
    return triples


def box_of(entry: Entry) -> Box | None:
    """The annotation's own box."""
    where, annotation = entry
    listed = annotation.get("bbox")
    if listed is None or listed == []:
        return None
    numbers = _numbers(listed) if isinstance(listed, list) and len(listed) == 4 else None
    if numbers is None or not (np.abs(numbers) <= LARGEST).all() or (numbers[2:] < 0).any():
        raise InputError(
            f"{where}: 'bbox' must be four finite numbers x, y, w, h with w and h not negative, "
            f"not {reprlib.repr(listed)}"
        )
    x, y, width, height = numbers.tolist()
    return x, y, width, height


def _numbers(values: list[Any]) -> FloatArray | None:
    """As an array; None unless all are numbers that fit one. Types are exact: true and false are none."""
    if not set(map(type, values)) <= {int, float}:
        return None
    try:
        return np.array(values, np.float64)
    except OverflowError:
        return None


def _are_integers(values: Any) -> bool:
    return isinstance(values, list) and set(map(type, values)) <= {int}
