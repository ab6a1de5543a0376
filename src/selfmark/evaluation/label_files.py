"""Ground truth: the annotated points of a COCO keypoint file, joined to the images the user gave."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.evaluation import dlc_labels, label_studio_labels
from selfmark.evaluation.image_matching import match_annotations
from selfmark.image_ref import ImageRef
from selfmark.images import coco
from selfmark.images.coco import (
    Entry,
    box_of,
    category_of,
    declared_normalizer,
    is_crowd,
    keypoints_of,
    mirror_of,
    point_names,
)
from selfmark.images.sources import read_text
from selfmark.points import FloatArray

# What COCO itself puts on annotations and images; every other single value describes the object.
STANDARD = {"keypoints", "num_keypoints", "bbox", "area", "segmentation", "iscrowd"}
STANDARD |= {"id", "image_id", "category_id", "file_name", "width", "height"}

_TABLES = (".csv", ".h5", ".hdf5")

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class GroundTruth:
    """Annotated points of N objects.

    source:     the label file
    refs:       N: the image of each object
    entries:    N: words that name its place in the file, e.g. "test.json: annotations[3]"
    xy:         [N, L, 2] float64, pixels of the original image; NaN where not annotated
    visible:    [N, L] bool, whether a point is annotated (COCO's v > 0)
    boxes:      [N, 4] float64, the annotation's own x, y, w, h; NaN where it has none
    names:      L names of the points
    mirror:     L: each point's partner in the mirrored image; empty where the file does not say
    normalizer: what the file declares errors are divided by, as a spec of `normalize`; "" if nothing
    fields:     by name, N values that describe the objects (pose, species, ...); None where absent
    notes:      sentences on what was left out
    """

    source: Path
    refs: tuple[ImageRef, ...]
    entries: tuple[str, ...]
    xy: FloatArray
    visible: npt.NDArray[np.bool_]
    boxes: FloatArray
    names: tuple[str, ...]
    mirror: tuple[int, ...]
    normalizer: str
    fields: dict[str, tuple[Scalar, ...]]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        shape = (len(self.refs), len(self.names))
        if self.xy.shape != (*shape, 2) or self.visible.shape != shape or self.boxes.shape != (shape[0], 4):
            raise ValueError(
                f"xy, visible and boxes must be of {shape[0]} objects and {shape[1]} points, "
                f"not {self.xy.shape}, {self.visible.shape} and {self.boxes.shape}"
            )

    def __len__(self) -> int:
        return len(self.refs)

    def select(self, rows: npt.ArrayLike) -> GroundTruth:
        """The objects at these indices, in this order, or where a mask is true."""
        index = np.arange(len(self))[np.asarray(rows)]
        return replace(
            self,
            refs=tuple(self.refs[i] for i in index),
            entries=tuple(self.entries[i] for i in index),
            xy=self.xy[index],
            visible=self.visible[index],
            boxes=self.boxes[index],
            fields={key: tuple(values[i] for i in index) for key, values in self.fields.items()},
        )


def select_points(truth: GroundTruth, names: Sequence[str]) -> GroundTruth:
    """The same objects with only these points, in this order."""
    missing = [name for name in names if name not in truth.names]
    if missing:
        raise InputError(f"{truth.source} has no point '{missing[0]}'; it names {', '.join(truth.names)}")
    index = [truth.names.index(name) for name in names]
    new = {old: number for number, old in enumerate(index)}
    partners = [new.get(truth.mirror[old]) for old in index] if truth.mirror else []
    mirror = tuple(partner for partner in partners if partner is not None)
    return replace(
        truth,
        xy=truth.xy[:, index],
        visible=truth.visible[:, index],
        names=tuple(names),
        mirror=mirror if len(mirror) == len(names) else (),
    )


def common_points(one: GroundTruth, other: GroundTruth) -> tuple[str, ...]:
    """The points both name, in the order of `other`."""
    shared = tuple(name for name in other.names if name in one.names)
    if not shared:
        raise InputError(
            f"{one.source} and {other.source} have no point in common; name the points alike in both files"
        )
    return shared


def read_ground_truth(path: Path, images: Sequence[ImageRef], least_visibility: int = 1) -> GroundTruth:
    """Read annotated points and find each object among the images given.

    The file is one of COCO keypoints, a table of DeepLabCut or Lightning Pose (CSV), or an export of Label
    Studio (JSON).

    An entry's `file_name` means the image whose path ends in the same folders and name; where no folder
    agrees, the name alone must do.

    Args:
        path: The label file.
        images: What was given as the images, see `images.sources.collect`.
        least_visibility: Points of a smaller v count as not annotated; COCO's 1 is annotated but hidden.
    """
    content, named, annotations = load_label_file(path)
    labeled = [entry for entry in annotations if not is_crowd(entry)]
    if not labeled:
        raise InputError(f"{path} annotates no objects; name a file that holds points of the images")
    where, category = category_of(path, content, labeled)
    names = point_names(where, category, labeled[0])

    points = keypoints_of(labeled, names)
    visible = points[..., 2] >= least_visibility
    seen = visible.any(axis=1)
    if not seen.any():
        raise InputError(f"{path}: no annotation has a visible point; set v to 1 or 2 where one is annotated")
    kept = [labeled[row] for row in np.flatnonzero(seen)]
    boxes = [box_of(entry) for entry in kept]
    refs, join_notes = match_annotations(path, named, kept, boxes, images)
    normalizer, normalizer_notes = declared_normalizer(where, category, names)
    return GroundTruth(
        source=path,
        refs=refs,
        entries=tuple(place for place, _ in kept),
        xy=np.where(visible[..., None], points[..., :2], np.nan)[seen],
        visible=visible[seen],
        boxes=np.array([box or (np.nan,) * 4 for box in boxes], np.float64),
        names=names,
        mirror=mirror_of(where, category, len(names)),
        normalizer=normalizer,
        fields=read_fields([entry for _, entry in kept], [named[entry["image_id"]][1] for _, entry in kept]),
        notes=(
            *_left_out(path, [entry for entry in annotations if is_crowd(entry)], "of a crowd"),
            *_left_out(path, [labeled[row] for row in np.flatnonzero(~seen)], "without a visible point"),
            *normalizer_notes,
            *join_notes,
        ),
    )


def load_label_file(path: Path) -> tuple[Any, dict[int | str, Entry], list[Entry]]:
    """Whatever the file is, as the pieces of a COCO file."""
    if path.suffix.lower() in _TABLES:
        return dlc_labels.load_dlc_labels(path)
    return coco.load_coco(path) if is_coco(path) else label_studio_labels.load_label_studio_labels(path)


def is_coco(path: Path) -> bool:
    """Whether a label file is of COCO's kind, which says where its images are, as no other one does."""
    # A COCO file is an object, Label Studio's a list.
    return path.suffix.lower() not in _TABLES and not read_text(path).lstrip().startswith("[")


def read_fields(
    annotations: Sequence[dict[str, Any]], images: Sequence[dict[str, Any]]
) -> dict[str, tuple[Scalar, ...]]:
    """Single values on annotations or, where one has none of the name, on its image."""
    keys = dict.fromkeys(key for entries in (annotations, images) for entry in entries for key in entry)
    fields: dict[str, tuple[Scalar, ...]] = {}
    for key in keys:
        pairs = zip(annotations, images, strict=True)
        own = ((_scalar(annotation.get(key)), image) for annotation, image in pairs)
        values = tuple(_scalar(image.get(key)) if value is None else value for value, image in own)
        if key not in STANDARD and any(value is not None for value in values):
            fields[key] = values
    return fields


def _scalar(value: Any) -> Scalar:
    """The value if it is a word, a truth value or a number a float can hold."""
    if isinstance(value, str | bool):
        return value
    usable = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return value if usable else None


def _left_out(path: Path, entries: Sequence[Entry], what: str) -> tuple[str, ...]:
    if not entries:
        return ()
    first = entries[0][0].removeprefix(f"{path}: ")
    count = "1 annotation was" if len(entries) == 1 else f"{len(entries)} annotations were"
    return (f"{path}: {count} left out as {what}, first {first}",)
