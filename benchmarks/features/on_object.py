"""Measure how many landmarks lie on the object.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/features/on_object.py NAME RUN... \
        --data-folder DATA --work WORK

RUN is a run folder. The script prints one line of JSON for each run, measured on the test images.

flies-dpk and mouse-openfield have a plain background. There, Otsu's threshold separates the pixels whose gray
level differs from that of the crop's border. The object is the connected region of these pixels with the
largest area in the crop's middle. In a crop without such a region, no landmark is on the object; the output
counts these crops. On birds-cub, the object is the convex hull of the annotated points, which misses parts of
wings and tails. A landmark is on the object if its distance from the object is at most 3 % of the side of the
crop.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import provenance
from quality_data import DATASETS, prepare_working_copy

import selfmark
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.images.store import load_store

TOLERANCE = 0.03  # maximum distance from the object, as a fraction of the crop's side


def find_object(crop: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return a mask [S, S] of the object of a crop [S, S, 3] RGB, enlarged by the tolerance.

    The mask is empty if no region lies in the crop's middle.
    """
    gray = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY).astype(np.float32)
    border = np.concatenate([gray[0], gray[-1], gray[:, 0], gray[:, -1]])
    difference = np.clip(np.abs(gray - np.median(border)), 0, 255).astype(np.uint8)
    _, mask = cv2.threshold(difference, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    _, labels = cv2.connectedComponents(mask)
    side = len(crop)
    center = labels[side // 3 : -side // 3, side // 3 : -side // 3]
    counts = np.bincount(center[center > 0])
    is_object = labels == counts.argmax() if len(counts) else np.zeros(labels.shape, bool)
    return _enlarge(is_object.astype(np.uint8))


def fill_hull(points: npt.NDArray[np.float64], side: int) -> npt.NDArray[np.bool_]:
    """Return a mask [S, S] of the convex hull of points [L, 2] in a crop, enlarged by the tolerance.

    Args:
        points: pixels of the crop; NaN where a point is not annotated.
        side: side S of the crop.
    """
    mask = np.zeros((side, side), np.uint8)
    annotated = points[~np.isnan(points[:, 0])].round().astype(np.int32)
    cv2.fillConvexPoly(mask, cv2.convexHull(annotated), 1)
    return _enlarge(mask)


def _enlarge(mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    radius = round(TOLERANCE * len(mask))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    return np.asarray(cv2.dilate(mask, kernel) > 0)


def main() -> None:
    """Print one line of JSON for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("flies-dpk", "mouse-openfield", "birds-cub"))
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="Folder for the working copy of the data.")
    arguments = parser.parse_args()
    dataset = DATASETS[arguments.name]
    folder = prepare_working_copy(arguments.name, arguments.data_folder, arguments.work)
    labels = folder / dataset.labels
    inputs = [str(labels)] if dataset.video else [str(folder / image) for image in dataset.images]
    objects = read_ground_truth(labels, list_images(inputs))
    for run in arguments.runs:
        detector = selfmark.load(run)
        store = load_store(objects.refs, detector.card.images, 16, None)
        crops, side = store.pixels, detector.card.images.size
        if arguments.name == "birds-cub":
            points = to_network(objects.xy, store.regions[:, None], side)
            masks = np.stack([fill_hull(row, side) for row in points])
        else:
            masks = np.stack([find_object(crop) for crop in crops.permute(0, 2, 3, 1).numpy()])
        pixel = detector.locate(crops).xy.round().long().clamp(0, masks.shape[1] - 1).numpy()
        on_object = masks[np.arange(len(pixel))[:, None], pixel[..., 1], pixel[..., 0]]
        row = {
            "data": arguments.name,
            "run": Path(run).parent.name,
            "images": len(pixel),
            "images_without_object": int((~masks.any(axis=(1, 2))).sum()),
            "object_fraction": round(float(masks.mean()), 4),
            "on_object": round(float(on_object.mean()), 4),
            "commit": provenance.read_commit(),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
