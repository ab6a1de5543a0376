"""What a COCO keypoint file says of single objects, for the readers that start from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfmark.errors import InputError
from selfmark.evaluation.normalizers import declared_normalizer
from selfmark.images.coco import CocoAnnotation, CocoFile, CocoImage, read_coco, read_keypoints
from selfmark.points import FloatArray


@dataclass(frozen=True)
class CocoObjects:
    """N single objects of a file.

    file:       the whole file
    category:   what the objects are
    names:      L names of the points
    mirror:     L: partners in the mirrored image; empty where the file does not say
    normalizer: a spec of `evaluate.normalize`; empty where the file does not say
    points:     [N, L, 3] float64: x, y, v
    box:        [N, 4] float64 x, y, w, h; NaN where an object has none
    entries:    N annotations
    images:     N: the image of each
    crowds:     how many annotations of groups were left out
    """

    file: CocoFile
    category: str
    names: tuple[str, ...]
    mirror: tuple[int, ...]
    normalizer: str
    points: FloatArray
    box: FloatArray
    entries: tuple[CocoAnnotation, ...]
    images: tuple[CocoImage, ...]
    crowds: int


def read_coco_objects(path: Path) -> CocoObjects:
    """Read a file and check every piece of it."""
    file = read_coco(path)
    file.check_image_ids()
    file.check_annotation_ids()
    annotations = file.single_objects()
    if not annotations:
        raise InputError(f"{path} annotates no single objects")
    category = file.category(annotations)
    names = category.point_names(annotations[0])
    return CocoObjects(
        file,
        category.name,
        names,
        category.mirror(len(names)),
        declared_normalizer(category, names)[0],
        read_keypoints(annotations, names),
        np.array([annotation.box() or (np.nan,) * 4 for annotation in annotations], np.float64),
        tuple(annotations),
        tuple(file.image_of(annotation) for annotation in annotations),
        len(file.annotations) - len(annotations),
    )
