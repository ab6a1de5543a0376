"""What a COCO keypoint file says of single objects, for the readers that start from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.errors import InputError
from selfmark.images.coco import (
    Entry,
    box_of,
    category_of,
    declared_normalizer,
    is_crowd,
    keypoints_of,
    load_coco,
    mirror_of,
    point_names,
)
from selfmark.points import FloatArray


@dataclass(frozen=True)
class CocoObjects:
    """N single objects of a file.

    content:    the whole file
    category:   what the objects are
    names:      L names of the points
    mirror:     L: partners in the mirrored image; empty where the file does not say
    normalizer: a spec of `evaluate.normalize`; empty where the file does not say
    points:     [N, L, 3] float64: x, y, v
    box:        [N, 4] float64 x, y, w, h; NaN where an object has none
    entries:    N annotations
    images:     N: the image of each, with the words that name its place in the file
    crowds:     how many annotations of groups were left out
    """

    content: Any
    category: str
    names: tuple[str, ...]
    mirror: tuple[int, ...]
    normalizer: str
    points: FloatArray
    box: FloatArray
    entries: tuple[dict[str, Any], ...]
    images: tuple[Entry, ...]
    crowds: int


def read_coco_objects(path: Path) -> CocoObjects:
    """Read a file and check every piece of it."""
    content, images, annotations = load_coco(path)
    single = [entry for entry in annotations if not is_crowd(entry)]
    if not single:
        raise InputError(f"{path} annotates no single objects")
    where, category = category_of(path, content, single)
    names = point_names(where, category, single[0])
    return CocoObjects(
        content,
        str(category.get("name", "object")),
        names,
        mirror_of(where, category, len(names)),
        declared_normalizer(where, category, names)[0],
        keypoints_of(single, names),
        np.array([box_of(entry) or (np.nan,) * 4 for entry in single], np.float64),
        tuple(entry for _, entry in single),
        tuple(images[entry["image_id"]] for _, entry in single),
        len(annotations) - len(single),
    )
