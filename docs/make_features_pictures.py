"""Draw pictures for features.md. Each row shows the same images with the landmarks of one run.

    python docs/make_features_pictures.py PICTURE --runs RUN... --images IMAGE...

docs/images/features-flies.jpg shows test images 1, 9, 17, 25 and 33 of flies-dpk. The landmarks come from
three runs, which were made on a CPU with the 60 training images of this data set:

    selfmark discover IMAGES -k 16 --features none -o runs/none
    selfmark discover IMAGES -k 16 --method zero-shot -o runs/zero-shot
    selfmark discover IMAGES -k 16 -o runs/default

docs/images/features-mouse.jpg shows test images 1, 5, 9 and 13 of mirror-mouse. The landmarks come from two
runs on a CPU:

    selfmark discover images/train -k 16 --features none -o runs/mouse-none
    selfmark discover images/train -k 16 -o runs/mouse
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

import selfmark
from selfmark.report.landmark_pictures import Picture, draw_contact_sheet

SIDE = 384  # side of an image before the whole sheet is scaled to WIDTH, pixels
WIDTH = 1200  # pixels of the picture
JPEG_QUALITY = 80  # keeps the files below 150 KB


def draw_picture(runs: Sequence[str], images: Sequence[str]) -> Picture:
    """Return a sheet [H, W, 3] RGB with one row for each run and one column for each image."""
    squares = np.stack([_read_square(path) for path in images])
    points = [selfmark.load(run)(list(squares)).xy for run in runs]
    sheet = draw_contact_sheet(np.concatenate([squares] * len(runs)), np.concatenate(points), len(images))
    height = round(sheet.shape[0] * WIDTH / sheet.shape[1])
    return cv2.resize(sheet, (WIDTH, height), interpolation=cv2.INTER_AREA).astype("uint8")


def _read_square(path: str) -> Picture:
    """Read an image, cut out its central square and resize it to SIDE."""
    image = cv2.imread(path)
    if image is None:
        raise SystemExit(f"cannot read {path}")
    height, width = image.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[top : top + side, left : left + side, ::-1]
    return cv2.resize(square, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC).astype("uint8")


def main() -> None:
    """Draw a picture from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--runs", nargs="+", required=True)
    parser.add_argument("--images", nargs="+", required=True)
    arguments = parser.parse_args()
    sheet = draw_picture(arguments.runs, arguments.images)
    cv2.imwrite(str(arguments.picture), sheet[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])


if __name__ == "__main__":
    main()
