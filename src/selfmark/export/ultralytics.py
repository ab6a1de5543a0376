"""Ultralytics pose: a folder with images, one text file of labels per image, and data.yaml.

An image's labels are looked for by its path, with `images` replaced by `labels`; so the images must stand in
the folder, as links to the user's files where that can be done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml
from PIL import Image

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export.frame_files import atomic_folder, require_absent, save_frames
from selfmark.export.pose_tables import require_writable
from selfmark.image_ref import Box, ImageRef
from selfmark.images.decode import read_image
from selfmark.model.card import ModelCard

FloatArray = npt.NDArray[np.float64]

VALIDATION_SHARE = (
    0.1  # the last images, so that neighboring frames of a video are on one side but at the cut
)
_READABLE = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")  # by Ultralytics


@dataclass
class _Labeled:
    """One image or frame, the name of its files, and its labels, one row per object."""

    ref: ImageRef
    name: str
    rows: list[str] = field(default_factory=list)


def write_ultralytics(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/ultralytics with train and val, each of images and labels, and return its data.yaml.

    The last tenth of the images is for validation. Frames of videos are written as JPEG.
    """
    target = folder / "ultralytics"
    require_absent(target)
    require_writable(folder)
    images = _label(predictions)
    if len(images) < 2:
        raise InputError("Ultralytics needs two images or more, to train on some and to validate on others")
    validation = max(1, int(len(images) * VALIDATION_SHARE))
    with atomic_folder(target) as temporary:
        _write_split(images[:-validation], temporary / "train")
        _write_split(images[-validation:], temporary / "val")
        (temporary / "data.yaml").write_text(_data_yaml(card), encoding="utf-8")
    return target / "data.yaml"


def _data_yaml(card: ModelCard) -> str:
    values = {
        # No 'path': Ultralytics then takes the folder of this file, which so can be moved.
        "train": "train/images",
        "val": "val/images",
        "names": {0: "object"},
        "kpt_shape": [len(card.names), 3],
        "flip_idx": list(card.mirror),
        "kpt_names": {0: list(card.names)},
        # Passed over by Ultralytics, read by sleap-io.
        "node_names": list(card.names),
        "skeleton": [list(edge) for edge in card.skeleton],
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None)


# --- labels ----------------------------------------------------------------------------------------


def _label(predictions: Iterable[Prediction]) -> list[_Labeled]:
    found: dict[str, _Labeled] = {}
    for refs, sizes, landmarks in predictions:
        for row, ref in enumerate(refs):
            if ref.name not in found:
                frame = "" if ref.frame is None else f"_frame{ref.frame:06d}"
                found[ref.name] = _Labeled(ref, f"{len(found):06d}_{ref.path.stem}{frame}")
            found[ref.name].rows.append(
                label_row(landmarks.xy[row].astype(np.float64), ref.box, sizes[row].astype(np.float64))
            )
    return list(found.values())


def label_row(xy: FloatArray, box: Box | None, size: FloatArray) -> str:
    """`class cx cy w h`, then `x y v` per landmark, as shares of the image's width and height.

    Ultralytics refuses an image with a point outside, so such a point is marked as absent: 0 0 0.

    >>> label_row(np.array([[9.5, 4.5], [29.5, 14.5], [40.0, 3.0]]), None, np.array([40.0, 20.0]))
    '0 0.5 0.5 0.5 0.5 0.25 0.25 2 0.75 0.75 2 0 0 0'
    """
    points = (xy + 0.5) / size  # from pixel centers at integers to corners
    inside = ((points >= 0) & (points <= 1)).all(axis=1)
    low, high = _corners(points[inside], box, size)
    marked = np.column_stack([points, np.full(len(points), 2.0)])
    marked[~inside] = 0
    numbers = np.concatenate([(low + high) / 2, high - low, marked.ravel()])
    return " ".join(["0", *(f"{number:.8g}" for number in numbers)])


def _corners(points: FloatArray, box: Box | None, size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The object's own box within the image; else that of its points, a pixel wide at least; else all."""
    if box is not None:
        x, y, width, height = box
        corners = np.array([[x, y], [x + width, y + height]]) / size
    elif len(points):
        pixel = 1 / size
        middle = (points.min(axis=0) + points.max(axis=0)) / 2
        half = np.maximum(np.ptp(points, axis=0), pixel) / 2
        corners = np.stack([middle - half, middle + half])
    else:
        corners = np.array([[0.0, 0.0], [1.0, 1.0]])
    low, high = np.clip(corners, 0, 1)
    return low, high


# --- images ----------------------------------------------------------------------------------------


def _write_split(images: list[_Labeled], folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    (folder / "labels").mkdir()
    frames: dict[Path, dict[int, Path]] = {}
    for image in images:
        (folder / "labels" / f"{image.name}.txt").write_text("\n".join(image.rows) + "\n", encoding="ascii")
        if image.ref.frame is None:
            _place(image.ref.path, folder / "images" / image.name)
        else:
            target = folder / "images" / f"{image.name}.jpg"
            frames.setdefault(image.ref.path, {})[image.ref.frame] = target
    for video, targets in frames.items():
        save_frames(video, targets)


def _place(path: Path, target: Path) -> None:
    """Link an image; copy it where links cannot be made; convert it where Ultralytics cannot read it."""
    suffix = path.suffix.lower()
    if suffix not in _READABLE:
        Image.fromarray(read_image(path, float("inf"))).save(f"{target}.png")
        return
    try:
        os.symlink(path.absolute(), f"{target}{suffix}")
    except (OSError, NotImplementedError):
        shutil.copyfile(path, f"{target}{suffix}")
