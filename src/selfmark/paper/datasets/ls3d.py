"""LS3D: 300W-LP to train, LS3D-W Balanced to test, both with the 68 points of 3D faces.

Below the root lie the folders of the two archives. 300W_LP holds images in AFW, HELEN, IBUG and LFPW, and in
`landmarks` under the same names their points, NAME_pts.mat. LS3D-W-balanced-20-03-2017/new_dataset holds
7,200 images named by number with the points of each beside it (.t7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from selfmark.annotations import AnnotatedObjects, annotate_images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.paper.datasets import matlab_files
from selfmark.paper.datasets.dataset import Dataset, find_path, list_files, tight_box
from selfmark.paper.datasets.face_points import SIXTY_EIGHT, SIXTY_EIGHT_MIRROR
from selfmark.paper.datasets.torch7_files import read_tensor
from selfmark.points import FloatArray

_OF = "300W-LP and LS3D-W Balanced"
# The mirrored copies in the *_Flip folders are left out: discovery mirrors images itself.
_PARTS = ("AFW", "HELEN", "IBUG", "LFPW")
_BALANCED = ("LS3D-W-balanced-20-03-2017", "LS3D-W-balanced", "LS3D-W-Balanced", "LS3D-W/LS3D-W-balanced")
# That the three ranges of yaw take turns in the numbering (1, 4, 7, ... nearly frontal) is assumed: the
# archive does not name them, nor does any description we know.
_YAW = {1: "0-30", 2: "30-60", 0: "60-90"}
_ABOVE = 1 / 3  # of the height of the points, added above them for the forehead, as in the authors' program


def read(root: Path) -> Dataset:
    """300W-LP and the balanced test set; boxes around the points with room for the forehead."""
    profiled = find_path(root, "300W_LP", "300W-LP", of=_OF)
    balanced = find_path(
        root, *(f"{name}/new_dataset" for name in _BALANCED), "new_dataset", *_BALANCED, of=_OF
    )
    train, train_notes = _profiled(root, profiled)
    test, test_notes = _balanced(root, balanced)
    note = (
        "boxes are made of the points unless --boxes gives others; for training the paper took a detector's"
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


def _profiled(root: Path, folder: Path) -> tuple[AnnotatedObjects, list[str]]:
    """300W-LP in the order of its parts and names, and what is to be said of it."""
    for part in _PARTS:
        find_path(folder, part, of="300W-LP")
    images = [image for part in _PARTS for image in list_files(folder / part, "*.jpg")]
    if not images:
        raise InputError(f"{folder} holds no images such as AFW/AFW_134212_1_0.jpg; unpack the archive again")
    wanted = [
        (folder / "landmarks" / image.parent.name / f"{image.stem}_pts.mat", image.with_suffix(".mat"))
        for image in images
    ]
    labels = [_first(paths) for paths in wanted]
    _require_points(images, labels, wanted)
    # The .mat beside an image has `pt2d` only, whose jaw follows the contour that is seen.
    plain = sum(path is not None and path.parent.parent == folder for path in labels)
    notes = [f"{plain} images of 300W-LP have no points in 'landmarks'; those of the file beside are taken"]
    return _objects(root, folder, images, labels, {}, notes if plain else [])


def _balanced(root: Path, folder: Path) -> tuple[AnnotatedObjects, list[str]]:
    """LS3D-W Balanced in the order of its numbers, with the range of yaw, and what is to be said of it."""
    images = [path for path in list_files(folder, "*") if path.suffix.lower() in (".jpg", ".png")]
    if not images:
        raise InputError(f"{folder} holds no images such as 1.jpg; unpack the archive again")
    odd = [path for path in images if not path.stem.isdecimal()]
    if odd:
        raise InputError(f"{min(odd)}: images of LS3D-W Balanced are named by number, which tells the yaw")
    images.sort(key=lambda path: int(path.stem))
    wanted = [tuple(image.with_suffix(suffix) for suffix in (".t7", ".mat", ".npy")) for image in images]
    labels = [_first(paths) for paths in wanted]
    _require_points(images, labels, wanted)
    fields = {"yaw_bucket": tuple(_YAW[int(image.stem) % 3] for image in images)}
    return _objects(root, folder, images, labels, fields, [])


def _first(paths: Sequence[Path]) -> Path | None:
    return next((path for path in paths if path.exists()), None)


def _require_points(
    images: Sequence[Path], labels: Sequence[Path | None], wanted: Sequence[Sequence[Path]]
) -> None:
    if not any(labels):
        looked = " or ".join(map(str, wanted[0]))
        raise InputError(
            f"none of {len(images)} images has a file of points; of the first it would be {looked}"
        )


def _objects(
    root: Path,
    folder: Path,
    images: Sequence[Path],
    labels: Sequence[Path | None],
    fields: Mapping[str, tuple[str, ...]],
    notes: list[str],
) -> tuple[AnnotatedObjects, list[str]]:
    """The images that have points, and the notes with how many have none."""
    known = [(row, path) for row, path in enumerate(labels) if path is not None]
    # Both sets count from 1: 300W-LP is MATLAB's, LS3D-W is Torch's, and its authors' program adds the 1 in
    # the end.
    xy = np.stack([_points(path) for _, path in known]) - 1
    box = tight_box(xy)
    box[:, 1] -= _ABOVE * box[:, 3]
    box[:, 3] *= 1 + _ABOVE
    without = len(images) - len(known)
    refs = [ImageRef(images[row].relative_to(root)) for row, _ in known]
    kept_fields = {name: tuple(values[row] for row, _ in known) for name, values in fields.items()}
    objects = annotate_images(refs, SIXTY_EIGHT, xy, box, fields=kept_fields)
    return objects, notes + (
        [f"{without} images of {folder.name} have no points and were left out"] if without else []
    )


def _points(path: Path) -> FloatArray:
    """The 68 points [68, 2] of a file as it counts them; a third coordinate, depth, is left out."""
    if path.suffix == ".t7":
        found: FloatArray = read_tensor(path)
    elif path.suffix == ".npy":
        try:
            found = np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not an array of numbers (.npy)") from error
    else:
        content = matlab_files.load_matlab(path)
        name = next((name for name in ("pts_3d", "pt3d_68") if name in content), "pt2d")
        found = matlab_files.matlab_numbers(path, content, name, (None, None))
    count = len(SIXTY_EIGHT)
    if found.ndim == 2 and found.shape[1] == count and found.shape[0] in (2, 3):
        found = found.T
    if found.ndim != 2 or found.shape[0] != count or found.shape[1] not in (2, 3):
        raise InputError(
            f"{path}: {count} points are expected, not {' x '.join(map(str, found.shape))} numbers"
        )
    if not np.isfinite(found).all():
        raise InputError(f"{path}: a point lies nowhere")
    return found[:, :2]
