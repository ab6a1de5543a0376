"""Read LS3D: 300W-LP for training, LS3D-W Balanced for testing, both with 68 3D facial points.

The root contains the folders of the two archives. 300W_LP contains images in AFW, HELEN, IBUG and LFPW. Their
points are in folders of the same names below `landmarks`, as NAME_pts.mat.
LS3D-W-balanced-20-03-2017/new_dataset contains 7,200 numbered images. Next to each image is a file with its
points (.t7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects, build_annotated_objects
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.dataset import Dataset, compute_tight_boxes, find_path, list_files
from selfmark.paper.datasets.face_points import SIXTY_EIGHT, SIXTY_EIGHT_MIRROR
from selfmark.paper.datasets.head_yaw import YAW_RANGES, classify_yaw, estimate_yaw
from selfmark.paper.datasets.numpy_files import load_arrays
from selfmark.paper.datasets.torch7_files import read_tensor
from selfmark.points import FloatArray
from selfmark.wording import choose_form, describe_count

_TITLE = "300W-LP and LS3D-W Balanced"
# The mirrored copies in the folders *_Flip are left out, because discovery mirrors images itself.
_PARTS = ("AFW", "HELEN", "IBUG", "LFPW")
_BALANCED = ("LS3D-W-balanced-20-03-2017", "LS3D-W-balanced", "LS3D-W-Balanced", "LS3D-W/LS3D-W-balanced")
# Height of the forehead, relative to the height of the tight box around the points. As in the authors'
# program, boxes extend above the points by this height.
_FOREHEAD = 1 / 3


def read(root: Path) -> Dataset:
    """Read 300W-LP and the balanced test set, with boxes around the points and the forehead."""
    train_folder = find_path(root, "300W_LP", "300W-LP", title=_TITLE)
    test_folder = find_path(
        root, *(f"{name}/new_dataset" for name in _BALANCED), "new_dataset", *_BALANCED, title=_TITLE
    )
    train, train_notes = _read_300w_lp(root, train_folder)
    test, test_notes = _read_balanced(root, test_folder)
    note = (
        "boxes are made from the points unless --boxes gives others; the paper trained with boxes of a "
        "detector"
    )
    return Dataset(
        name="ls3d",
        root=root,
        category="face",
        names=SIXTY_EIGHT,
        mirror=SIXTY_EIGHT_MIRROR,
        normalizer="box",
        settings={"evaluation.ridge": 0.1},  # as in the authors' program
        train=train,
        test=test,
        notes=(note, *train_notes, *test_notes),
    )


def _read_300w_lp(root: Path, folder: Path) -> tuple[AnnotatedObjects, list[str]]:
    """Return the objects of 300W-LP, sorted by part and name, and notes."""
    for part in _PARTS:
        find_path(folder, part, title="300W-LP")
    images = [image for part in _PARTS for image in list_files(folder / part, "*.jpg")]
    if not images:
        raise InputError(
            f"{folder} contains no images such as AFW/AFW_134212_1_0.jpg; unpack the archive again"
        )
    candidates = [
        (folder / "landmarks" / image.parent.name / f"{image.stem}_pts.mat", image.with_suffix(".mat"))
        for image in images
    ]
    point_files = [_find_first(paths) for paths in candidates]
    _require_any_points(images, point_files, candidates)
    # The .mat file next to an image has only 2D points (`pt2d`), whose jaw follows the visible contour.
    num_2d = sum(path is not None and path.parent.parent == folder for path in point_files)
    split_note = (
        f"{describe_count(num_2d, 'image')} of 300W-LP {choose_form(num_2d, 'has', 'have')} no points in "
        "'landmarks'; the points in the .mat file beside the image are used"
    )
    objects, notes = _read_objects(root, folder, images, point_files)
    return objects, [split_note, *notes] if num_2d else notes


def _read_balanced(root: Path, folder: Path) -> tuple[AnnotatedObjects, list[str]]:
    """Return the objects of LS3D-W Balanced, sorted by number, and notes.

    The fields of an object are the yaw of the head and its range. The archive does not give the yaw, so it is
    estimated from the points.
    """
    images = [path for path in list_files(folder, "*") if path.suffix.lower() in (".jpg", ".png")]
    if not images:
        raise InputError(f"{folder} contains no images such as 1.jpg; unpack the archive again")
    unnumbered_paths = [path for path in images if not path.stem.isdecimal()]
    if unnumbered_paths:
        raise InputError(
            f"{min(unnumbered_paths)}: images of LS3D-W Balanced must be named by number, as 1.jpg"
        )
    images.sort(key=lambda path: int(path.stem))
    candidates = [tuple(image.with_suffix(suffix) for suffix in (".t7", ".mat", ".npy")) for image in images]
    point_files = [_find_first(paths) for paths in candidates]
    _require_any_points(images, point_files, candidates)
    objects, notes = _read_objects(root, folder, images, point_files)
    yaw = estimate_yaw(objects.xy)
    ranges = classify_yaw(yaw)
    fields = {"yaw": tuple(round(angle, 1) for angle in yaw.tolist()), "yaw_bucket": ranges}
    counts = ", ".join(f"{ranges.count(name)} with {name}" for name in YAW_RANGES)
    split_note = (
        f"the yaw of test images is estimated from their points: {counts} degrees; the paper has 2,400 in "
        "each range"
    )
    return replace(objects, fields=fields), [split_note, *notes]


def _find_first(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def _require_any_points(
    images: Sequence[Path], point_files: Sequence[Path | None], candidates: Sequence[Sequence[Path]]
) -> None:
    if not any(point_files):
        expected = " or ".join(map(str, candidates[0]))
        raise InputError(
            f"none of the {len(images)} images has a file of points; the file of the first image would be "
            f"{expected}"
        )


def _read_objects(
    root: Path,
    folder: Path,
    images: Sequence[Path],
    point_files: Sequence[Path | None],
) -> tuple[AnnotatedObjects, list[str]]:
    """Return the images that have points, and a note if some images have none."""
    labeled = [(row, path) for row, path in enumerate(point_files) if path is not None]
    # Both data sets are 1-based: MATLAB wrote 300W-LP, and the Torch program of LS3D-W's authors adds 1.
    xy = np.stack([_read_points(path) for _, path in labeled]) - 1
    boxes = compute_tight_boxes(xy)
    boxes[:, 1] -= _FOREHEAD * boxes[:, 3]
    boxes[:, 3] *= 1 + _FOREHEAD
    num_without = len(images) - len(labeled)
    refs = [ImageRef(images[row].relative_to(root)) for row, _ in labeled]
    note = (
        f"{describe_count(num_without, 'image')} of {folder.name} "
        f"{choose_form(num_without, 'has no points and was', 'have no points and were')} left out"
    )
    objects = build_annotated_objects(refs, SIXTY_EIGHT, xy, boxes)
    return objects, [note] if num_without else []


def _read_points(path: Path) -> FloatArray:
    """Return the points [68, 2] of a file, 1-based and without depth."""
    if path.suffix == ".t7":
        points: FloatArray = read_tensor(path)
    elif path.suffix == ".npy":
        array = load_arrays(path).get("")
        if array is None or array.dtype.kind not in "fiu":
            raise InputError(f"{path} is not an array of numbers (.npy)")
        points = array.astype(np.float64)
    else:
        content = matlab_files.load_matlab(path)
        name = next((name for name in ("pts_3d", "pt3d_68") if name in content), "pt2d")
        points = matlab_files.get_matlab_numbers(path, content, name, (None, None))
    count = len(SIXTY_EIGHT)
    if points.ndim == 2 and points.shape[1] == count and points.shape[0] in (2, 3):
        points = points.T
    if points.ndim != 2 or points.shape[0] != count or points.shape[1] not in (2, 3):
        raise InputError(
            f"{path}: expected {count} points, found {' x '.join(map(str, points.shape))} numbers"
        )
    if not np.isfinite(points).all():
        raise InputError(f"{path}: some coordinates are not numbers")
    return points[:, :2]
