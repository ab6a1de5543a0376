"""Boxes of faces found by OpenCV's cascade of Haar features, where no better detector has been run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.config import Images
from selfmark.errors import InputError
from selfmark.images.decode import UnreadableImage, read_image
from selfmark.paper.datasets.dataset import Dataset

_CASCADE = "haarcascade_frontalface_default.xml"
_STEP, _NEIGHBORS = 1.1, 5  # how the image is shrunk, and how many nearby hits make a face


def use_found_faces(dataset: Dataset, on_progress: Callable[[int, int], None] | None = None) -> Dataset:
    """The data set with the largest face of each image as its box; where none is found, the usual place.

    The cascade misses faces turned aside. They lie in an image where the others lie, in the middle and about
    as large, so they get the median box, in shares of the image.
    """
    if dataset.category != "face":
        raise InputError(f"faces can be found in images of faces, not in those of {dataset.name}")
    detector = _detector()
    files = list(dict.fromkeys(file for split in dataset.splits.values() for file in split.paths))
    shares = np.full((len(files), 4), np.nan)
    sizes = np.full((len(files), 4), np.nan)
    for row, file in enumerate(files):
        with suppress(UnreadableImage):  # it has no box then, and discovery counts it as lost
            pixels = read_image(dataset.root / file, Images().max_megapixels)
            sizes[row] = np.tile(pixels.shape[1::-1], 2)
            shares[row] = _largest(detector, pixels) / sizes[row]
        if on_progress is not None:
            on_progress(row + 1, len(files))
    found = np.isfinite(shares[:, 0])
    if not found.any():
        raise InputError(f"no face was found in any of the {len(files)} images of {dataset.root}")
    boxes = np.where(found[:, None], shares, np.nanmedian(shares, axis=0)) * sizes
    place = {file: row for row, file in enumerate(files)}
    splits = {
        name: replace(split, boxes=boxes[[place[file] for file in split.paths]])
        for name, split in dataset.splits.items()
    }
    note = (
        f"boxes are those of OpenCV's Haar cascade, where the paper took S3FD; in {int((~found).sum())} of "
        f"{len(files)} images it found no face, and the median box is taken"
    )
    return dataset.changed(splits, [note])


def _detector() -> Any:
    path = Path(cv2.__file__).parent / "data" / _CASCADE
    if not hasattr(cv2, "CascadeClassifier") or not path.is_file():  # as in OpenCV 5
        raise InputError(
            f"OpenCV {cv2.__version__} has no cascade for faces; install 'opencv-python-headless<5', or run "
            "a face detector of your choice and give its boxes with --boxes"
        )
    return cv2.CascadeClassifier(str(path))


def _largest(detector: Any, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """x, y, w, h of the largest face; NaN where there is none."""
    gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    faces = np.asarray(detector.detectMultiScale(gray, _STEP, _NEIGHBORS), dtype=np.float64).reshape(-1, 4)
    return faces[np.argmax(faces[:, 2] * faces[:, 3])] if len(faces) else np.full(4, np.nan)
