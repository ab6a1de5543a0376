"""Find faces with OpenCV's Haar cascade, for users without a better detector."""

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
_SCALE_STEP, _MIN_NEIGHBORS = 1.1, 5  # arguments of detectMultiScale


def use_found_faces(dataset: Dataset, on_progress: Callable[[int, int], None] | None = None) -> Dataset:
    """Return the data set with a box around the largest face in each image.

    The cascade misses faces in profile. In these data sets, such faces have about the same size and place as
    other faces. An image without a detected face therefore gets the median box, relative to the image size.

    Args:
        dataset: A data set of faces.
        on_progress: Called with the number of finished images and the number of all images.
    """
    if dataset.category != "face":
        raise InputError(f"{dataset.name} is not a data set of faces: leave out --find-faces")
    cascade = _load_cascade()
    files = list(dict.fromkeys(file for split in dataset.splits.values() for file in split.paths))
    relative_boxes = np.full((len(files), 4), np.nan)  # boxes, relative to the image size
    sizes = np.full((len(files), 4), np.nan)  # width, height, width, height of each image
    for row, file in enumerate(files):
        # The box of an unreadable image stays NaN, which means no box. `selfmark discover` reports such
        # images.
        with suppress(UnreadableImage):
            pixels = read_image(dataset.root / file, Images().max_megapixels)
            sizes[row] = np.tile(pixels.shape[1::-1], 2)
            relative_boxes[row] = _find_largest(cascade, pixels) / sizes[row]
        if on_progress is not None:
            on_progress(row + 1, len(files))
    is_readable, has_face = np.isfinite(sizes[:, 0]), np.isfinite(relative_boxes[:, 0])
    if not has_face.any():
        raise InputError(f"no face was found in any of the {len(files)} images of {dataset.root}")
    boxes = np.where(has_face[:, None], relative_boxes, np.nanmedian(relative_boxes, axis=0)) * sizes
    row_of = {file: row for row, file in enumerate(files)}
    splits = {
        name: replace(split, boxes=boxes[[row_of[file] for file in split.paths]])
        for name, split in dataset.splits.items()
    }
    num_readable, num_with_face = int(is_readable.sum()), int(has_face.sum())
    note = (
        "boxes are those of OpenCV's Haar cascade, while the paper used S3FD; in "
        f"{num_readable - num_with_face} of {num_readable} images it found no face, so the median box is used"
    )
    return dataset.replace_splits(splits, [note])


def _load_cascade() -> Any:
    path = Path(cv2.__file__).parent / "data" / _CASCADE
    if not hasattr(cv2, "CascadeClassifier") or not path.is_file():  # OpenCV 5 has removed it.
        raise InputError(
            f"OpenCV {cv2.__version__} has no face cascade; install 'opencv-python-headless<5', or run "
            "another face detector and give its boxes with --boxes"
        )
    return cv2.CascadeClassifier(str(path))


def _find_largest(cascade: Any, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return x, y, w, h of the largest face; NaN if none is found."""
    gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    boxes = cascade.detectMultiScale(gray, _SCALE_STEP, _MIN_NEIGHBORS)
    faces = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    return faces[np.argmax(faces[:, 2] * faces[:, 3])] if len(faces) else np.full(4, np.nan)
