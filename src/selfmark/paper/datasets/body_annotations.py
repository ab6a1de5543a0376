"""Provide functions for readers of body and animal annotations: names, mirror partners and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.image_ref import Box
from selfmark.paper.datasets.dataset import compute_tight_boxes
from selfmark.points import FloatArray
from selfmark.tracking.regions import Regions, locate_objects

# The 13 joints of the paper's tables, in the order of Penn Action.
JOINTS = (
    "head", "left_shoulder", "right_shoulder", "left_elbow", "right_elbow", "left_wrist", "right_wrist",
    "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle", "right_ankle",
)  # fmt: skip
BOX_FILES = ("boxes.json", "boxes.csv", "boxes")  # names of a user's file or folder with detected boxes


def pair_points_by_side(names: Sequence[str]) -> tuple[int, ...]:
    """Return the index of each point's mirror partner; a point without a side is its own partner.

    >>> pair_points_by_side(("head", "left_hip", "right_hip"))
    (0, 2, 1)
    """
    other_side = {"left": "right", "right": "left"}
    partners = []
    for index, name in enumerate(names):
        side, _, part = name.partition("_")
        partner = f"{other_side.get(side, side)}_{part}"
        partners.append(names.index(partner) if partner in names else index)
    return tuple(partners)


def compute_boxes_around_points(xy: FloatArray, margin: float) -> FloatArray:
    """Return boxes [N, 4] around annotated points, enlarged by a margin.

    Args:
        xy: [N, L, 2] points; NaN if not annotated.
        margin: Distance by which each edge of the tight box moves outward, as a fraction of the longer side
            of the tight box.

    >>> compute_boxes_around_points(np.array([[[2.0, 3.0], [6.0, 13.0]]]), 0.1).tolist()
    [[1.5, 2.5, 6.0, 12.0]]
    """
    boxes = compute_tight_boxes(xy)
    added_margin = margin * boxes[:, 2:].max(axis=1, keepdims=True)
    return np.concatenate([boxes[:, :2] - added_margin, boxes[:, 2:] + 2 * added_margin], axis=1)


def concatenate_objects(parts: Sequence[AnnotatedObjects], names: Sequence[str]) -> AnnotatedObjects:
    """Join the objects of several videos; all must have the same points and fields."""
    fields = parts[0].fields if parts else {}
    return build_annotated_objects(
        [ref for part in parts for ref in part.refs],
        names,
        np.concatenate([np.zeros((0, len(names), 2)), *(part.xy for part in parts)]),
        np.concatenate([np.zeros((0, 4)), *(part.boxes for part in parts)]),
        np.concatenate([np.zeros((0, len(names)), bool), *(part.hidden for part in parts)]),
        {name: tuple(value for part in parts for value in part.fields[name]) for name in fields},
    )


def use_detected_boxes(objects: AnnotatedObjects, root: Path, file: Path) -> AnnotatedObjects:
    """Return the objects with boxes from a file of detections; NaN for objects without a box.

    If an image has several boxes, the largest is used. The others are usually bystanders or false detections.
    """
    largest: dict[tuple[Path, int | None], Box] = {}
    paths = [root / path for path in objects.paths]
    for ref in locate_objects(list(dict.fromkeys(paths)), regions=Regions(boxes=file)):
        key = (ref.path, ref.frame)
        if ref.box is not None and _area(ref.box) > _area(largest.get(key, (0.0, 0.0, 0.0, 0.0))):
            largest[key] = ref.box
    no_box = (np.nan,) * 4
    keys = zip(paths, objects.frames, strict=True)
    boxes = np.array([largest.get(key, no_box) for key in keys], np.float64)
    return replace(objects, boxes=boxes.reshape(-1, 4))


def _area(box: Box) -> float:
    return box[2] * box[3]


def fill_missing_boxes(boxes: FloatArray, xy: FloatArray, margin: float) -> tuple[FloatArray, int]:
    """Replace boxes that are NaN with boxes around the points.

    Args:
        boxes: [N, 4] boxes; NaN if missing.
        xy: [N, L, 2] points.
        margin: Margin of the new boxes, as in `compute_boxes_around_points`.

    Returns:
        The boxes [N, 4], and the number of boxes that were replaced.
    """
    has_no_box = ~np.isfinite(boxes).all(axis=1)
    filled = boxes.copy()
    if has_no_box.any():
        filled[has_no_box] = compute_boxes_around_points(xy[has_no_box], margin)
    return filled, int(has_no_box.sum())
