"""Points and boxes of a detector in place of those of a data set.

The paper annotates CelebA and AFLW anew with the 68 points of a detector and takes boxes of another; any file
of such detections will do. It is joined by the names of the images.
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


def replace_points(dataset: Dataset, file: Path) -> Dataset:
    """The data set with the points of a file; images without any are left out and counted in a note.

    Where regressors are fitted on a split of their own, landmarks are still discovered in all images of
    `train`: that needs no points. Its images without any are not counted, for nothing is lost.
    """
    found = read_points(file)
    splits, notes = {}, []
    for name, split in dataset.splits.items():
        matched = _nearest(split, found, file)
        known = matched >= 0
        xy = np.where(known[:, None, None], found.xy[matched], np.nan)
        splits[name] = replace(
            split,
            names=found.names,
            mirror=found.mirror,
            xy=xy,
            hidden=known[:, None] & found.hidden[matched],
        )
        if name == "train" and dataset.fit is not None:
            continue
        if not known.any():
            raise InputError(
                f"{file} has points of none of the {len(split)} images of the {name} split; it names "
                f"'{found.paths[0]}', the data set '{split.paths[0]}'"
            )
        if not known.all():
            splits[name] = splits[name].select(known)
            notes.append(f"{int((~known).sum())} images of the {name} split have no points in {file}")
    return drop_unmeasurable(
        replace(
            dataset,
            names=found.names,
            mirror=found.mirror,
            train=splits["train"],
            test=splits["test"],
            fit=splits.get("fit"),
            notes=(*dataset.notes, *notes),
        )
    )


def replace_boxes(dataset: Dataset, file: Path) -> Dataset:
    """The data set with the boxes of a file; images without one are left out and counted in a note.

    Of several boxes of an image an object gets the one whose center is nearest its points. A split of which
    the file has nothing keeps the boxes it has: detectors are often run on training images only.
    """
    refs = {
        name: [ImageRef(dataset.root / ref.path, ref.frame) for ref in split.refs]
        for name, split in dataset.splits.items()
    }
    given: dict[str, list[FloatArray]] = defaultdict(list)
    images = dict.fromkeys(ref for some in refs.values() for ref in some)
    for ref in attach_boxes(list(images), file, lambda sentence: None):
        given[ref.name].append(np.array(ref.box, dtype=np.float64))
    splits, notes = {}, []
    for name, split in dataset.splits.items():
        box = np.full((len(split), 4), np.nan)
        for row, ref in enumerate(refs[name]):
            if ref.name in given:
                centers = np.stack([one[:2] + one[2:] / 2 - 0.5 for one in given[ref.name]])
                box[row] = given[ref.name][_closest(centers, split.xy[row])]
        known = np.isfinite(box[:, 0])
        if not known.any():
            notes.append(f"{file} has no boxes of the {name} split, which keeps its own")
            continue
        splits[name] = replace(split, boxes=box).select(known)
        if not known.all():
            notes.append(f"{int((~known).sum())} images of the {name} split have no box in {file}")
    return dataset.changed(splits, notes)


def _nearest(split: AnnotatedObjects, found: AnnotatedObjects, file: Path) -> npt.NDArray[np.int64]:
    """The detection of each object, [N], -1 where there is none: of several in an image the nearest."""
    by_name: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for row in np.flatnonzero(found.visible.any(axis=1)).tolist():
        by_name[found.refs[row].path.name, found.refs[row].frame].append(row)
    owner: dict[int, Path] = {}
    chosen = np.full(len(split), -1, dtype=np.int64)
    for row, ref in enumerate(split.refs):
        path = ref.path
        candidates = by_name.get((path.name, ref.frame), ())
        matched = [one for one in candidates if _same_file(found.refs[one].path.parts, path.parts)]
        if not matched:
            continue
        for one in matched:
            if owner.setdefault(one, path) != path:
                raise InputError(
                    f"{file}: '{found.paths[one]}' may be {owner[one]} or {path}; name it with its folders"
                )
        centers = np.stack([_center(found.xy[one]) for one in matched])
        chosen[row] = matched[_closest(centers, split.xy[row])]
    return chosen


def _same_file(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a name may be that of a file: the shorter of the two is how the longer ends.

    >>> _same_file(("celeba", "Img", "1.jpg"), ("Img", "1.jpg"))
    True
    >>> _same_file(("wild", "1.jpg"), ("Img", "1.jpg"))
    False
    """
    length = min(len(one), len(other))
    return tuple(one[-length:]) == tuple(other[-length:])


def _closest(centers: FloatArray, xy: FloatArray) -> int:
    """Which of the centers [C, 2] is nearest the middle of the points; the first where there are none."""
    distance = np.linalg.norm(centers - _center(xy), axis=1)
    return int(np.nanargmin(distance)) if np.isfinite(distance).any() else 0


def _center(xy: FloatArray) -> FloatArray:
    seen = xy[np.isfinite(xy).all(axis=1)]
    return seen.mean(axis=0) if len(seen) else np.full(2, np.nan)
