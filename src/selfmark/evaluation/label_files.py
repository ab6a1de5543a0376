"""Ground truth: the annotated points of a COCO keypoint file, joined to the images the user gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.evaluation.dlc_labels import read_dlc_labels
from selfmark.evaluation.image_matching import match_annotations
from selfmark.evaluation.label_studio_labels import read_label_studio_labels
from selfmark.evaluation.normalizers import declared_normalizer
from selfmark.image_ref import ImageRef
from selfmark.images.coco import CocoAnnotation, CocoFile, Scalar, read_coco, read_keypoints
from selfmark.images.input_files import read_text
from selfmark.points import FloatArray

_TABLES = (".csv", ".h5", ".hdf5")


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
    file = read_label_file(path)
    annotations = file.single_objects()
    if not annotations:
        raise InputError(f"{path} annotates no objects; name a file that holds points of the images")
    category = file.category(annotations)
    names = category.point_names(annotations[0])

    points = read_keypoints(annotations, names)
    visible = points[..., 2] >= least_visibility
    seen = visible.any(axis=1)
    if not seen.any():
        raise InputError(f"{path}: no annotation has a visible point; set v to 1 or 2 where one is annotated")
    kept = [annotations[row] for row in np.flatnonzero(seen)]
    boxes = [annotation.box() for annotation in kept]
    refs, match_notes = match_annotations(file, kept, boxes, images)
    normalizer, normalizer_notes = declared_normalizer(category, names)
    crowds = [annotation for annotation in file.annotations if annotation.is_crowd()]
    return GroundTruth(
        source=path,
        refs=refs,
        entries=tuple(annotation.where for annotation in kept),
        xy=np.where(visible[..., None], points[..., :2], np.nan)[seen],
        visible=visible[seen],
        boxes=np.array([box or (np.nan,) * 4 for box in boxes], np.float64),
        names=names,
        mirror=category.mirror(len(names)),
        normalizer=normalizer,
        fields=file.fields(kept),
        notes=(
            *_left_out(path, crowds, "of a crowd"),
            *_left_out(path, [annotations[row] for row in np.flatnonzero(~seen)], "without a visible point"),
            *normalizer_notes,
            *match_notes,
        ),
    )


def read_label_file(path: Path) -> CocoFile:
    """Read a label file of any supported format."""
    if path.suffix.lower() in _TABLES:
        return read_dlc_labels(path)
    if not is_coco(path):
        return read_label_studio_labels(path)
    file = read_coco(path)
    file.check_image_ids()
    file.check_annotation_ids()
    return file


def is_coco(path: Path) -> bool:
    """Return True for a COCO file, the only format that says where its images are."""
    # A COCO file is a JSON object, an export of Label Studio is a list.
    return path.suffix.lower() not in _TABLES and not read_text(path).lstrip().startswith("[")


def _left_out(path: Path, annotations: Sequence[CocoAnnotation], why: str) -> tuple[str, ...]:
    if not annotations:
        return ()
    first = annotations[0].where.removeprefix(f"{path}: ")
    count = "1 annotation was" if len(annotations) == 1 else f"{len(annotations)} annotations were"
    return (f"{path}: {count} left out as {why}, first {first}",)
