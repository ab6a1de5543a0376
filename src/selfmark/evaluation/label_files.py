"""Read annotated points from label files of several formats, and match them to the user's images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.evaluation.correction_labels import use_current_landmarks
from selfmark.evaluation.dlc_labels import read_dlc_labels
from selfmark.evaluation.image_matching import match_annotations
from selfmark.evaluation.label_sizes import require_matching_sizes
from selfmark.evaluation.label_studio_labels import read_label_studio_labels
from selfmark.evaluation.normalizers import read_declared_normalizer
from selfmark.image_ref import ImageRef
from selfmark.images.coco import CocoAnnotation, CocoFile, read_coco, read_keypoints
from selfmark.images.input_files import read_text_input
from selfmark.wording import choose_form, describe_count

_TABLE_SUFFIXES = (".csv", ".h5", ".hdf5")


def read_ground_truth(path: Path, images: Sequence[ImageRef], min_visibility: int = 1) -> AnnotatedObjects:
    """Read a label file and find the image of each annotated object among the given images.

    The file is a COCO file with keypoints, a table of DeepLabCut or Lightning Pose (CSV), or an export of
    Label Studio (JSON). An annotation belongs to the given image whose path has the longest end in common
    with the path in the label file, at least the file name. Crowds and objects without a visible point are
    left out.

    Args:
        path: The label file.
        images: The given images, see `images.sources.list_images`.
        min_visibility: Points with a smaller COCO flag v count as not annotated (1: occluded, 2: visible).
            Points with v = 0 are never annotated, and their coordinates mean nothing.

    Raises:
        InputError: If the file is not valid, an image is missing, or the labels belong to other images.
    """
    file = read_label_file(path)
    annotations = file.single_objects()
    objects = build_objects(file, annotations, min_visibility)
    kept_rows = np.flatnonzero(objects.visible.any(axis=1)).tolist()
    if not kept_rows:
        raise InputError(f"{path}: no annotation has a visible point; set v to 1 or 2 for annotated points")
    without_points = [annotations[row] for row in np.flatnonzero(~objects.visible.any(axis=1)).tolist()]
    crowds = [annotation for annotation in file.annotations if annotation.is_crowd()]
    kept = [annotations[row] for row in kept_rows]
    refs, match_notes = match_annotations(file, kept, images)
    size_notes = require_matching_sizes(
        objects.select(kept_rows), [file.image_of(annotation) for annotation in kept], refs
    )
    notes = (
        *_note_left_out(path, crowds, "crowd"),
        *_note_left_out(path, without_points, "no visible point"),
        *objects.notes,
        *match_notes,
        *size_notes,
    )
    return replace(objects.select(kept_rows), refs=refs, notes=notes)


def build_objects(
    file: CocoFile, annotations: Sequence[CocoAnnotation], min_visibility: int = 1
) -> AnnotatedObjects:
    """Return the objects of these annotations, with image paths and frame numbers as in the label file.

    Args:
        file: The label file.
        annotations: Annotations of single objects of one category.
        min_visibility: See `read_ground_truth`.
    """
    if not annotations:
        raise InputError(f"{file.path} annotates no objects; give a file with points of the images")
    category = file.category(annotations)
    names = category.point_names(annotations[0])
    points = read_keypoints(annotations, names)
    is_visible = points[..., 2] >= max(min_visibility, 1)
    normalizer, notes = read_declared_normalizer(category, names)
    return AnnotatedObjects(
        refs=tuple(file.image_of(annotation).ref() for annotation in annotations),
        names=names,
        xy=np.where(is_visible[..., None], points[..., :2], np.nan),
        hidden=is_visible & (points[..., 2] == 1),
        boxes=np.array([annotation.box() or (np.nan,) * 4 for annotation in annotations], np.float64),
        mirror=category.mirror(len(names)),
        normalizer=normalizer,
        fields=file.fields(annotations),
        source=file.path,
        where=tuple(annotation.where for annotation in annotations),
        notes=notes,
    )


def read_label_file(path: Path) -> CocoFile:
    """Read a label file of any supported format; corrections get the current names of their landmarks."""
    if path.suffix.lower() in _TABLE_SUFFIXES:
        return read_dlc_labels(path)
    if not is_coco(path):
        return read_label_studio_labels(path)
    file = read_coco(path)
    file.check_ids()
    return use_current_landmarks(file)


def is_coco(path: Path) -> bool:
    """Return True for a COCO file, the only format from which the images can be located."""
    # A COCO file is a JSON object, an export of Label Studio is a list.
    return path.suffix.lower() not in _TABLE_SUFFIXES and not read_text_input(path).lstrip().startswith("[")


def find_common_points(first: AnnotatedObjects, second: AnnotatedObjects) -> tuple[str, ...]:
    """Return the names of the points that both data sets have, in the order of `second`."""
    shared_names = tuple(name for name in second.names if name in first.names)
    if not shared_names:
        raise InputError(
            f"{first.source} and {second.source} have no point in common; use the same point names in "
            "both files"
        )
    return shared_names


def _note_left_out(path: Path, annotations: Sequence[CocoAnnotation], reason: str) -> tuple[str, ...]:
    """Return a note about annotations that were left out; empty if there are none."""
    if not annotations:
        return ()
    first = annotations[0].where.removeprefix(f"{path}: ")
    count, verb = len(annotations), choose_form(len(annotations), "was", "were")
    return (
        f"{path}: {describe_count(count, 'annotation')} {verb} left out ({reason}); the first is {first}",
    )
