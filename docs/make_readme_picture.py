"""Draw docs/images/readme.jpg: the trustworthy landmarks of a run in images it was not trained on.

    python docs/make_readme_picture.py RUN IMAGE...

The picture in the repository shows 8 of the 40 test images of flies-dpk: 000001.jpg, 000005.jpg, ...,
000029.jpg. The run learned from the 60 training images of this data set:

    selfmark discover images/train -k 10 --device cpu -o RUN

It was made at commit 62cada58 with one thread (OMP_NUM_THREADS=1). All ten landmarks had a trust of at least
0.78.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

import selfmark
from selfmark.points import FloatArray
from selfmark.report.landmark_pictures import Picture, draw_contact_sheet

PATH = Path(__file__).parent / "images" / "readme.jpg"
COLUMNS = 4
SIDE = 384  # side of an image before the whole sheet is scaled to WIDTH, pixels
WIDTH = 1600  # pixels of the picture
MIN_TRUST = 0.5  # landmarks with less trust are not drawn; a user would hide them on the naming page
JPEG_QUALITY = 85  # keeps the file below 300 KB


def draw_picture(run: str, images: Sequence[str]) -> Picture:
    """Return a sheet [H, W, 3] RGB of the images with the landmarks of the detector in `run`."""
    metrics = json.loads((Path(run) / "metrics.json").read_text(encoding="utf-8"))
    points = selfmark.load(run)(list(images)).xy
    points[:, np.array(metrics["unlabelled"]["trust"]) < MIN_TRUST] = np.nan
    squares, points_in_squares = zip(
        *(_make_square(path, xy) for path, xy in zip(images, points, strict=True)), strict=True
    )
    sheet = draw_contact_sheet(np.stack(squares), np.stack(points_in_squares), COLUMNS)
    height = round(sheet.shape[0] * WIDTH / sheet.shape[1])
    return cv2.resize(sheet, (WIDTH, height), interpolation=cv2.INTER_AREA).astype("uint8")


def _make_square(path: str, xy: FloatArray) -> tuple[Picture, FloatArray]:
    """Pad an image to a square of side SIDE; return it with its points [K, 2] in the new pixels."""
    image = cv2.imread(path)
    if image is None:
        raise SystemExit(f"cannot read {path}")
    height, width = image.shape[:2]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    edges = (top, side - height - top, left, side - width - left)
    padded = cv2.copyMakeBorder(image[..., ::-1], *edges, cv2.BORDER_CONSTANT, value=(255, 255, 255))
    resized = cv2.resize(padded, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC).astype("uint8")
    return resized, (xy + (left, top) + 0.5) * (SIDE / side) - 0.5


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    cv2.imwrite(
        str(PATH),
        draw_picture(sys.argv[1], sys.argv[2:])[..., ::-1],
        [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY],
    )
