"""Write Ultralytics pose data: a folder with images, a text file of labels per image, and data.yaml.

Ultralytics finds the labels of an image by replacing `images` with `labels` in its path. The images must
therefore be inside the exported folder; they are links to the user's files if the file system supports links.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export.frame_files import save_frames, save_image
from selfmark.export.output_files import require_absent, require_writable
from selfmark.export.trust_entries import trust_entries
from selfmark.image_ref import Box, ImageRef
from selfmark.images.decode import read_image
from selfmark.model.card import ModelCard
from selfmark.run.files import atomic_folder, write_text
from selfmark.run.guarded_files import copy_file, create_file, make_folders

FloatArray = npt.NDArray[np.float64]

# Fraction of the images for validation. The last images are used, not random ones, so that neighboring frames
# of a video stay in the same split.
VALIDATION_FRACTION = 0.1
_READABLE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")


@dataclass
class _LabeledImage:
    """An image or video frame, the stem of its image file and label file, and one label per object."""

    ref: ImageRef
    name: str
    rows: list[str] = field(default_factory=list)


def write_ultralytics(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/ultralytics and return its data.yaml.

    The folders `train` and `val` contain images and labels. The last tenth of the images is for validation.
    Video frames are saved as JPEG.
    """
    target = folder / "ultralytics"
    require_absent(target)
    require_writable(folder)
    images = _collect_labels(predictions)
    if len(images) < 2:
        raise InputError("Ultralytics needs at least two images: one to train on and one to validate on")
    num_validation = max(1, int(len(images) * VALIDATION_FRACTION))
    with atomic_folder(target) as temporary:
        _write_split(images[:-num_validation], temporary / "train")
        _write_split(images[-num_validation:], temporary / "val")
        write_text(_build_data_yaml(card), temporary / "data.yaml")
    return target / "data.yaml"


def _build_data_yaml(card: ModelCard) -> str:
    values = {
        # Without a key 'path', image paths are relative to data.yaml, so that the folder can be moved.
        "train": "train/images",
        "val": "val/images",
        "names": {0: "object"},
        "kpt_shape": [len(card.names), 3],
        "flip_idx": list(card.mirror),
        "kpt_names": {0: list(card.names)},
        # Ultralytics ignores the following entries; sleap-io reads the first two.
        "node_names": list(card.names),
        "skeleton": [list(edge) for edge in card.skeleton],
        **trust_entries(card),
    }
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None)


class _Dumper(yaml.SafeDumper):
    """Safe dumper that escapes U+0085, a line end in YAML, which is otherwise read back as a space."""

    def represent_text(self, text: str) -> yaml.Node:
        style = '"' if "\x85" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _Dumper.represent_text)


# --- Labels ----------------------------------------------------------------------------------------


def _collect_labels(predictions: Iterable[Prediction]) -> list[_LabeledImage]:
    images: dict[str, _LabeledImage] = {}
    for refs, sizes, landmarks in predictions:
        for row, ref in enumerate(refs):
            if ref.name not in images:
                frame = "" if ref.frame is None else f"_frame{ref.frame:06d}"
                images[ref.name] = _LabeledImage(ref, f"{len(images):06d}_{ref.path.stem}{frame}")
            images[ref.name].rows.append(
                format_label(landmarks.xy[row].astype(np.float64), ref.box, sizes[row].astype(np.float64))
            )
    return list(images.values())


def format_label(xy: FloatArray, box: Box | None, size: FloatArray) -> str:
    """Return `class cx cy w h`, then `x y v` per landmark, as fractions of the image's width and height.

    Ultralytics rejects labels with points outside the image, so these points are marked as absent: 0 0 0.

    Args:
        xy: [K, 2] pixels, pixel centers at integers.
        box: x, y, width and height of the object in pixels; None if unknown.
        size: [2] width and height of the image in pixels.

    >>> format_label(np.array([[9.5, 4.5], [29.5, 14.5], [40.0, 3.0]]), None, np.array([40.0, 20.0]))
    '0 0.5 0.5 0.5 0.5 0.25 0.25 2 0.75 0.75 2 0 0 0'
    """
    points = (xy + 0.5) / size  # measured from the corner of the image
    is_inside = ((points >= 0) & (points <= 1)).all(axis=1)
    low, high = _compute_box_corners(points[is_inside], box, size)
    keypoints = np.column_stack([points, np.full(len(points), 2.0)])
    keypoints[~is_inside] = 0
    numbers = np.concatenate([(low + high) / 2, high - low, keypoints.ravel()])
    return " ".join(["0", *(f"{number:.8g}" for number in numbers)])


def _compute_box_corners(
    points: FloatArray, box: Box | None, size: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return two corners of the object's box as fractions of the image size, clipped to the image.

    If the box is unknown, use the bounding box of the points, at least one pixel wide and high. If there are
    no points either, use the whole image.
    """
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


# --- Images ----------------------------------------------------------------------------------------


def _write_split(images: list[_LabeledImage], folder: Path) -> None:
    make_folders(folder / "images")
    make_folders(folder / "labels")
    frames: dict[Path, dict[int, Path]] = {}
    for image in images:
        with create_file(folder / "labels" / f"{image.name}.txt") as handle:
            handle.write(("\n".join(image.rows) + "\n").encode("ascii"))
        if image.ref.frame is None:
            _add_image(image.ref.path, folder / "images" / image.name)
        else:
            target = folder / "images" / f"{image.name}.jpg"
            frames.setdefault(image.ref.path, {})[image.ref.frame] = target
    for video, targets in frames.items():
        save_frames(video, targets)


def _add_image(path: Path, target: Path) -> None:
    """Link to an image; copy it if links are not supported; convert it if Ultralytics cannot read it."""
    suffix = path.suffix.lower()
    if suffix not in _READABLE_SUFFIXES:
        save_image(read_image(path, float("inf")), Path(f"{target}.png"))
        return
    try:
        os.symlink(path.absolute(), f"{target}{suffix}")
    except (OSError, NotImplementedError):
        copy_file(path, Path(f"{target}{suffix}"))
