"""Read the points of a detector from COCO keypoints, a CSV table or NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.coco import read_coco, read_keypoints
from selfmark.images.input_files import read_csv_rows
from selfmark.paper.datasets.face_points import get_face_point_names
from selfmark.paper.datasets.list_files import parse_numbers, read_rows
from selfmark.paper.datasets.numpy_files import load_arrays


def read_points(path: Path) -> AnnotatedObjects:
    """Read the points of a file: COCO keypoints (.json), a table (.csv), or arrays (.npz, .npy).

    A table has a header line. Its other rows have the name of an image and x, y of each point. An .npz file
    contains the image names `names` [D] and the points `xy` [D, L, 2] of D detections. An .npy file contains
    only `xy`; the image names are in a .txt file of the same name, one per line.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; check the path")
    readers = {".json": _read_coco, ".csv": _read_table, ".npz": _read_npz, ".npy": _read_npy}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} must be one of {', '.join(readers)}")
    objects = reader(path)
    if not len(objects):
        raise InputError(f"{path} contains no points")
    return objects


def _read_coco(path: Path) -> AnnotatedObjects:
    file = read_coco(path)
    file.check_ids()
    annotations = file.single_objects()
    if not annotations:
        raise InputError(f"{path} annotates no objects; use a file with points of the images")
    category = file.category(annotations)
    names = category.point_names(annotations[0])
    mirror = category.mirror(len(names))
    if not mirror:
        names, mirror = get_face_point_names(len(names), str(path))
    points = read_keypoints(annotations, names)
    refs = [file.image_of(annotation).ref() for annotation in annotations]
    xy = np.where(points[..., 2:] > 0, points[..., :2], np.nan)
    return replace(build_annotated_objects(refs, names, xy, hidden=points[..., 2] == 1), mirror=mirror)


def _read_table(path: Path) -> AnnotatedObjects:
    lines = read_csv_rows(path)
    header = lines[0][1] if lines else []
    has_pairs = len(header) >= 3 and len(header) % 2 == 1
    if not has_pairs or header[1].strip().lower() not in ("x", "x0", "x1", "x_0", "x_1"):
        raise InputError(
            f"{path}, line 1: the columns must be image,x1,y1,x2,y2 and so on, not '{','.join(header)[:60]}'"
        )
    images, values = [], []
    for number, line in lines[1:]:
        if not line:
            continue
        where = f"{path}, line {number}"
        if len(line) != len(header):
            raise InputError(f"{where}: expected {len(header)} columns, found {len(line)}")
        images.append(line[0])
        values.append(parse_numbers(line[1:], where))
    if not images:
        raise InputError(f"{path} contains no points")
    return _build_objects(path, images, np.array(values, dtype=np.float64).reshape(len(images), -1, 2))


def _read_npz(path: Path) -> AnnotatedObjects:
    content = load_arrays(path)
    if not {"names", "xy"} <= set(content):
        raise InputError(f"{path} must contain the arrays 'names' and 'xy'")
    return _build_objects(path, [str(name) for name in content["names"].ravel()], content["xy"])


def _read_npy(path: Path) -> AnnotatedObjects:
    names_file = path.with_suffix(".txt")
    if not names_file.is_file():
        raise InputError(f"{path} needs a file {names_file} with the names of its images, one per line")
    names = [name for _, (name,) in read_rows(names_file, 1)]
    return _build_objects(path, names, load_arrays(path).get("", np.zeros(0)))


def _build_objects(path: Path, images: Sequence[str], xy: npt.NDArray[np.generic]) -> AnnotatedObjects:
    if xy.dtype.kind not in "fiu" or xy.ndim != 3 or xy.shape[0] != len(images) or xy.shape[2] != 2:
        raise InputError(
            f"{path}: {len(images)} images need points of shape {len(images)} x L x 2, not "
            f"{' x '.join(map(str, xy.shape))} of type {xy.dtype}"
        )
    names, mirror = get_face_point_names(xy.shape[1], str(path))
    refs = [ImageRef(Path(image)) for image in images]
    return replace(build_annotated_objects(refs, names, xy.astype(np.float64)), mirror=mirror)
