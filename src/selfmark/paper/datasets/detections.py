"""Replace the points or boxes of a data set with those of a detector.

The paper uses the 68 points of one detector and the boxes of another for CelebA and AFLW. Detections are
matched to images by file name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.box_matching import attach_boxes
from selfmark.paper.datasets.dataset import Dataset
from selfmark.paper.datasets.detection_files import read_points
from selfmark.paper.datasets.measurable import drop_unmeasurable
from selfmark.points import FloatArray
from selfmark.wording import choose_form, describe_count


def replace_points(dataset: Dataset, file: Path) -> Dataset:
    """Return the data set with the points of a file; leave out images without points, and add a note.

    Objects are also left out if the normalizer (the length that errors are divided by) is zero or unknown
    with the new points. If there is a split `fit`, `train` keeps all its images: `train` is then used only
    for discovery, which needs no points.
    """
    detections = _strip_unknown_names(read_points(file), dataset)
    splits, notes = {}, []
    for name, split in dataset.splits.items():
        matched_rows = _match_detections(split, detections, file)
        has_points = matched_rows >= 0
        xy = np.where(has_points[:, None, None], detections.xy[matched_rows], np.nan)
        splits[name] = replace(
            split,
            names=detections.names,
            mirror=detections.mirror,
            xy=xy,
            hidden=has_points[:, None] & detections.hidden[matched_rows],
        )
        if name == "train" and dataset.fit is not None:
            continue
        if not has_points.any():
            raise InputError(
                f"{file} has no points for any of the {len(split)} objects of the {name} split: the first "
                f"image in the file is '{detections.paths[0]}', the first image of the split is "
                f"'{split.paths[0]}'"
            )
        if not has_points.all():
            splits[name] = splits[name].select(has_points)
            notes.append(_note_missing(int((~has_points).sum()), name, f"points in {file}"))
    return drop_unmeasurable(
        replace(
            dataset,
            names=detections.names,
            mirror=detections.mirror,
            train=splits["train"],
            test=splits["test"],
            fit=splits.get("fit"),
            notes=(*dataset.notes, *notes),
        )
    )


def replace_boxes(dataset: Dataset, file: Path) -> Dataset:
    """Return the data set with the boxes of a file; leave out images without a box, and add a note.

    If an image has several boxes, an object gets the box whose center is closest to its points. A split for
    which the file has no boxes keeps its own boxes, because detectors are often run only on training images.
    """
    refs = {
        name: [ImageRef(dataset.root / ref.path, ref.frame) for ref in split.refs]
        for name, split in dataset.splits.items()
    }
    images = dict.fromkeys(ref for split_refs in refs.values() for ref in split_refs)
    boxes_by_image: dict[str, list[FloatArray]] = defaultdict(list)
    for ref in attach_boxes(list(images), file, lambda message: None):
        boxes_by_image[ref.name].append(np.array(ref.box, dtype=np.float64))
    splits, notes = {}, []
    for name, split in dataset.splits.items():
        boxes = np.full((len(split), 4), np.nan)
        for row, ref in enumerate(refs[name]):
            if ref.name in boxes_by_image:
                candidates = np.stack(boxes_by_image[ref.name])
                centers = candidates[:, :2] + candidates[:, 2:] / 2 - 0.5
                boxes[row] = candidates[_find_closest(centers, split.xy[row])]
        has_box = np.isfinite(boxes[:, 0])
        if not has_box.any():
            notes.append(f"{file} has no boxes for the {name} split, so this split keeps its own boxes")
            continue
        splits[name] = replace(split, boxes=boxes).select(has_box)
        if not has_box.all():
            notes.append(_note_missing(int((~has_box).sum()), name, f"box in {file}"))
    return dataset.replace_splits(splits, notes)


def _note_missing(count: int, split: str, missing_entry: str) -> str:
    """Return a note about objects of a split that have no points or no box."""
    verb = choose_form(count, "has", "have")
    return f"{describe_count(count, 'object')} of the {split} split {verb} no {missing_entry}"


def _strip_unknown_names(detections: AnnotatedObjects, dataset: Dataset) -> AnnotatedObjects:
    """Remove spaces around the names of images, except those of images that have them in their names."""
    known = {ref.path.name for split in dataset.splits.values() for ref in split.refs}
    refs = tuple(
        ref if ref.path.name in known else replace(ref, path=Path(str(ref.path).strip()))
        for ref in detections.refs
    )
    return replace(detections, refs=refs)


def _match_detections(
    split: AnnotatedObjects, detections: AnnotatedObjects, file: Path
) -> npt.NDArray[np.int64]:
    """Return the row of the detection closest to each object in its image, [N]; -1 if there is none."""
    rows_by_name: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for row in np.flatnonzero(detections.visible.any(axis=1)).tolist():
        rows_by_name[detections.refs[row].path.name, detections.refs[row].frame].append(row)
    image_of: dict[int, Path] = {}  # the image that each detection belongs to
    matched_rows = np.full(len(split), -1, dtype=np.int64)
    for index, ref in enumerate(split.refs):
        path = ref.path
        same_name = rows_by_name.get((path.name, ref.frame), ())
        candidates = [row for row in same_name if _is_same_file(detections.refs[row].path.parts, path.parts)]
        if not candidates:
            continue
        for row in candidates:
            if image_of.setdefault(row, path) != path:
                raise InputError(
                    f"{file}: '{detections.paths[row]}' can be {image_of[row]} or {path}; include the folder "
                    "in the name"
                )
        centers = np.stack([_center(detections.xy[row]) for row in candidates])
        matched_rows[index] = candidates[_find_closest(centers, split.xy[index])]
    return matched_rows


def _is_same_file(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return True if the longer of two paths ends with the shorter one.

    >>> _is_same_file(("celeba", "Img", "1.jpg"), ("Img", "1.jpg"))
    True
    >>> _is_same_file(("wild", "1.jpg"), ("Img", "1.jpg"))
    False
    """
    length = min(len(first), len(second))
    return tuple(first[-length:]) == tuple(second[-length:])


def _find_closest(centers: FloatArray, xy: FloatArray) -> int:
    """Return the index of the center that is closest to the mean of the points; 0 if there are no points.

    Args:
        centers: [C, 2] candidates.
        xy: [L, 2] points; NaN if not annotated.
    """
    distance = np.linalg.norm(centers - _center(xy), axis=1)
    return int(np.nanargmin(distance)) if np.isfinite(distance).any() else 0


def _center(xy: FloatArray) -> FloatArray:
    known = xy[np.isfinite(xy).all(axis=1)]
    return known.mean(axis=0) if len(known) else np.full(2, np.nan)
