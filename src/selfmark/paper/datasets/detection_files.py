"""Points that a detector found, read from a file: COCO keypoints, a table, or arrays."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.coco import read_coco, read_keypoints
from selfmark.images.input_files import read_text
from selfmark.paper.datasets.face_points import face_point_names
from selfmark.paper.datasets.list_files import parse_numbers, read_rows


def read_points(path: Path) -> AnnotatedObjects:
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
    if not len(found):
        raise InputError(f"{path} holds no points")
    return found


def _coco(path: Path) -> AnnotatedObjects:
    file = read_coco(path)
    file.check_ids()
    annotations = file.single_objects()
    if not annotations:
        raise InputError(f"{path} annotates no objects; give a file with points of the images")
    category = file.category(annotations)
    names = category.point_names(annotations[0])
    mirror = category.mirror(len(names))
    if not mirror:
        names, mirror = face_point_names(len(names), str(path))
    points = read_keypoints(annotations, names)
    refs = [file.image_of(annotation).ref() for annotation in annotations]
    xy = np.where(points[..., 2:] > 0, points[..., :2], np.nan)
    return replace(annotate_images(refs, names, xy, hidden=points[..., 2] == 1), mirror=mirror)


def _table(path: Path) -> AnnotatedObjects:
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
        values.append(parse_numbers(line[1:], where))
    if not images:
        raise InputError(f"{path} holds no points")
    return _detected(path, images, np.array(values, dtype=np.float64).reshape(len(images), -1, 2))


def _arrays(path: Path) -> AnnotatedObjects:
    content = _load(path)
    if not {"names", "xy"} <= set(content):
        raise InputError(f"{path} needs the arrays 'names' and 'xy'")
    return _detected(path, [str(name) for name in content["names"].ravel()], content["xy"])


def _array(path: Path) -> AnnotatedObjects:
    beside = path.with_suffix(".txt")
    if not beside.is_file():
        raise InputError(f"there is no {beside}, which names the images of {path.name} line by line")
    names = [name for _, (name,) in read_rows(beside, 1)]
    return _detected(path, names, _load(path).get("", np.zeros(0)))


def _load(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a file by name; the only one of an .npy has none."""
    try:  # Python objects in arrays could run anything, so they are not read
        content = np.load(path, allow_pickle=False)
        return dict(content) if isinstance(content, np.lib.npyio.NpzFile) else {"": np.asarray(content)}
    except Exception as error:  # a damaged file makes NumPy fail in any way
        raise InputError(f"{path} is not a file of plain NumPy arrays, or it is damaged") from error


def _detected(path: Path, images: Sequence[str], xy: npt.NDArray[np.generic]) -> AnnotatedObjects:
    if xy.dtype.kind not in "fiu" or xy.ndim != 3 or xy.shape[0] != len(images) or xy.shape[2] != 2:
        raise InputError(
            f"{path}: {len(images)} images need points of shape {len(images)} x L x 2, not "
            f"{' x '.join(map(str, xy.shape))} of type {xy.dtype}"
        )
    names, mirror = face_point_names(xy.shape[1], str(path))
    refs = [ImageRef(Path(image)) for image in images]
    return replace(annotate_images(refs, names, xy.astype(np.float64)), mirror=mirror)
