"""Points and boxes of a detector, read from a file, in place of those of a data set.

The paper annotates CelebA and AFLW anew with the 68 points of a detector and takes boxes of another; any file
of such detections will do. It is joined by the names of the images.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from selfmark.datasets.facial import known_points
from selfmark.datasets.form import DataSet, Objects
from selfmark.datasets.lists import numbers, rows
from selfmark.errors import InputError
from selfmark.evaluate import coco_points
from selfmark.images.sources import ImageRef, read_text
from selfmark.objects.place import with_boxes
from selfmark.points import FloatArray


@dataclass(frozen=True)
class Detections:
    """L points of D detected objects.

    images: D: the image of each, as the file names it
    frame:  [D] int64, 0-based frame of a video; -1 for a still image
    xy:     [D, L, 2] float64, pixel centres at integers; NaN where not found
    hidden: [D, L] bool, found but said to be out of sight
    names:  L names of the points
    mirror: L: each point's partner in the mirrored image
    """

    images: tuple[str, ...]
    frame: npt.NDArray[np.int64]
    xy: FloatArray
    hidden: npt.NDArray[np.bool_]
    names: tuple[str, ...]
    mirror: tuple[int, ...]


# --- in place of what a data set has ----------------------------------------------------------------


def reannotated(dataset: DataSet, file: Path) -> DataSet:
    """The data set with the points of a file; images without any are left out and counted in a note.

    Where regressors are fitted on a split of their own, landmarks are still discovered in all images of
    `train`: that needs no points.
    """
    found = read_points(file)
    splits, notes = {}, []
    for name, split in dataset.splits.items():
        matched = _nearest(split, found, file)
        known = matched >= 0
        xy = np.where(known[:, None, None], found.xy[matched], np.nan)
        splits[name] = replace(split, xy=xy, hidden=known[:, None] & found.hidden[matched])
        if name == "train" and dataset.fit is not None:
            continue
        if not known.any():
            raise InputError(
                f"{file} has points of none of the {len(split)} images of the {name} split; it names "
                f"'{found.images[0]}', the data set '{split.files[0]}'"
            )
        if not known.all():
            splits[name] = splits[name].select(known)
            notes.append(f"{int((~known).sum())} images of the {name} split have no points in {file}")
    return replace(
        dataset,
        names=found.names,
        mirror=found.mirror,
        train=splits["train"],
        test=splits["test"],
        fit=splits.get("fit"),
        notes=(*dataset.notes, *notes),
    )


def boxed(dataset: DataSet, file: Path) -> DataSet:
    """The data set with the boxes of a file; images without one are left out and counted in a note.

    Of several boxes of an image an object gets the one whose centre is nearest its points. A split of which
    the file has nothing keeps the boxes it has: detectors are often run on training images only.
    """
    refs = {name: _refs(dataset.root, split) for name, split in dataset.splits.items()}
    given: dict[str, list[FloatArray]] = defaultdict(list)
    images = dict.fromkeys(ref for some in refs.values() for ref in some)
    for ref in with_boxes(list(images), file, lambda sentence: None):
        given[ref.name].append(np.array(ref.box, dtype=np.float64))
    splits, notes = {}, []
    for name, split in dataset.splits.items():
        box = np.full((len(split), 4), np.nan)
        for row, ref in enumerate(refs[name]):
            if ref.name in given:
                centres = np.stack([one[:2] + one[2:] / 2 - 0.5 for one in given[ref.name]])
                box[row] = given[ref.name][_closest(centres, split.xy[row])]
        known = np.isfinite(box[:, 0])
        if not known.any():
            notes.append(f"{file} has no boxes of the {name} split, which keeps its own")
            continue
        splits[name] = replace(split, box=box).select(known)
        if not known.all():
            notes.append(f"{int((~known).sum())} images of the {name} split have no box in {file}")
    return dataset.changed(splits, notes)


def _refs(root: Path, split: Objects) -> list[ImageRef]:
    return [
        ImageRef(root / path, None if frame < 0 else frame)
        for path, frame in zip(split.files, split.frame.tolist(), strict=True)
    ]


def _nearest(split: Objects, found: Detections, file: Path) -> npt.NDArray[np.int64]:
    """The detection of each object, [N], -1 where there is none: of several in an image the nearest."""
    by_name: dict[tuple[str, int], list[int]] = defaultdict(list)
    seen = np.any(np.isfinite(found.xy).all(axis=2), axis=1)
    for row in np.flatnonzero(seen).tolist():
        by_name[PurePath(found.images[row]).name, int(found.frame[row])].append(row)
    parts = [PurePath(image).parts for image in found.images]
    owner: dict[int, Path] = {}
    chosen = np.full(len(split), -1, dtype=np.int64)
    for row, (path, frame) in enumerate(zip(split.files, split.frame.tolist(), strict=True)):
        matched = [one for one in by_name.get((path.name, frame), ()) if _same_file(parts[one], path.parts)]
        if not matched:
            continue
        for one in matched:
            if owner.setdefault(one, path) != path:
                raise InputError(
                    f"{file}: '{found.images[one]}' may be {owner[one]} or {path}; name it with its folders"
                )
        centres = np.stack([_centre(found.xy[one]) for one in matched])
        chosen[row] = matched[_closest(centres, split.xy[row])]
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


def _closest(centres: FloatArray, xy: FloatArray) -> int:
    """Which of the centres [C, 2] is nearest the middle of the points; the first where there are none."""
    distance = np.linalg.norm(centres - _centre(xy), axis=1)
    return int(np.nanargmin(distance)) if np.isfinite(distance).any() else 0


def _centre(xy: FloatArray) -> FloatArray:
    seen = xy[np.isfinite(xy).all(axis=1)]
    return seen.mean(axis=0) if len(seen) else np.full(2, np.nan)


# --- files of points --------------------------------------------------------------------------------


def read_points(path: Path) -> Detections:
    """The points of a file: COCO keypoints (.json), a table (.csv), or arrays (.npz, .npy).

    A row of a table is an image and x, y of each point. Arrays are xy [D, L, 2]: with `names` [D] in an .npz,
    as the only one in an .npy with the names of the images line by line in the .txt beside it.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; see that the path is right")
    readers = {".json": _coco, ".csv": _table, ".npz": _arrays, ".npy": _array}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: points are read from {', '.join(readers)} files")
    found = reader(path)
    if not found.images:
        raise InputError(f"{path} holds no points")
    return found


def _coco(path: Path) -> Detections:
    content, named, annotations = coco_points.load(path)
    labelled = [entry for entry in annotations if not coco_points.is_crowd(entry)]
    if not labelled:
        raise InputError(f"{path} holds no points")
    where, category = coco_points.category_of(path, content, labelled)
    names = coco_points.point_names(where, category, labelled[0])
    mirror = coco_points.mirror_of(where, category, len(names))
    if not mirror:
        names, mirror = known_points(len(names), str(path))
    points = coco_points.keypoints_of(labelled, names)
    images = [named[entry["image_id"]][1] for _, entry in labelled]
    return Detections(
        tuple(str(image["file_name"]) for image in images),
        np.array([_frame(image.get("frame")) for image in images], dtype=np.int64),
        np.where(points[..., 2:] > 0, points[..., :2], np.nan),
        points[..., 2] == 1,
        names,
        mirror,
    )


def _frame(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else -1


def _table(path: Path) -> Detections:
    try:
        lines = list(csv.reader(read_text(path).splitlines()))
    except csv.Error as error:
        raise InputError(f"{path} is not a table: {error}") from error
    header = lines[0] if lines else []
    if (
        len(header) < 3
        or len(header) % 2 == 0
        or header[1].strip().lower() not in ("x", "x0", "x1", "x_0", "x_1")
    ):
        raise InputError(
            f"{path}, line 1: the columns are image,x1,y1,x2,y2 and so on, not '{','.join(header)[:60]}'"
        )
    images, values = [], []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        where = f"{path}, line {number}"
        if len(line) != len(header):
            raise InputError(f"{where}: {len(header)} columns are expected, not {len(line)}")
        images.append(line[0].strip())
        values.append(numbers(line[1:], where))
    if not images:
        raise InputError(f"{path} holds no points")
    return _detected(path, images, np.array(values, dtype=np.float64).reshape(len(images), -1, 2))


def _arrays(path: Path) -> Detections:
    content = _load(path)
    if not {"names", "xy"} <= set(content):
        raise InputError(f"{path} needs the arrays 'names' and 'xy'")
    return _detected(path, [str(name) for name in content["names"].ravel()], content["xy"])


def _array(path: Path) -> Detections:
    beside = path.with_suffix(".txt")
    if not beside.is_file():
        raise InputError(f"there is no {beside}, which names the images of {path.name} line by line")
    names = [name for _, (name,) in rows(beside, 1)]
    return _detected(path, names, _load(path).get("", np.zeros(0)))


def _load(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a file by name; the only one of an .npy has none."""
    try:  # Python objects in arrays could run anything, so they are not read
        content = np.load(path, allow_pickle=False)
        return dict(content) if isinstance(content, np.lib.npyio.NpzFile) else {"": np.asarray(content)}
    except Exception as error:  # a damaged file makes NumPy fail in any way
        raise InputError(f"{path} is not a file of plain NumPy arrays, or it is damaged") from error


def _detected(path: Path, images: Sequence[str], xy: npt.NDArray[np.generic]) -> Detections:
    if xy.dtype.kind not in "fiu" or xy.ndim != 3 or xy.shape[0] != len(images) or xy.shape[2] != 2:
        raise InputError(
            f"{path}: {len(images)} images need points of shape {len(images)} x L x 2, not "
            f"{' x '.join(map(str, xy.shape))} of type {xy.dtype}"
        )
    names, mirror = known_points(xy.shape[1], str(path))
    return Detections(
        tuple(images),
        np.full(len(images), -1, dtype=np.int64),
        xy.astype(np.float64),
        np.zeros(xy.shape[:2], dtype=bool),
        names,
        mirror,
    )
