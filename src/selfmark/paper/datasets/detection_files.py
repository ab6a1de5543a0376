"""Points that a detector found, read from a file: COCO keypoints, a table, or arrays."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.images.coco import read_coco, read_keypoints
from selfmark.images.input_files import read_text
from selfmark.paper.datasets.face_points import face_point_names
from selfmark.paper.datasets.list_files import parse_numbers, read_rows
from selfmark.points import FloatArray


@dataclass(frozen=True)
class Detections:
    """L points of D detected objects.

    images: D: the image of each, as the file names it
    frame:  [D] int64, 0-based frame of a video; -1 for a still image
    xy:     [D, L, 2] float64, pixel centers at integers; NaN where not found
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
    file = read_coco(path)
    file.check_image_ids()
    file.check_annotation_ids()
    annotations = file.single_objects()
    if not annotations:
        raise InputError(f"{path} holds no points")
    category = file.category(annotations)
    names = category.point_names(annotations[0])
    mirror = category.mirror(len(names))
    if not mirror:
        names, mirror = face_point_names(len(names), str(path))
    points = read_keypoints(annotations, names)
    images = [file.image_of(annotation) for annotation in annotations]
    return Detections(
        tuple(image.file_name for image in images),
        np.array([_frame(image.values.get("frame")) for image in images], dtype=np.int64),
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
        values.append(parse_numbers(line[1:], where))
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
    names = [name for _, (name,) in read_rows(beside, 1)]
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
    names, mirror = face_point_names(xy.shape[1], str(path))
    return Detections(
        tuple(images),
        np.full(len(images), -1, dtype=np.int64),
        xy.astype(np.float64),
        np.zeros(xy.shape[:2], dtype=bool),
        names,
        mirror,
    )
