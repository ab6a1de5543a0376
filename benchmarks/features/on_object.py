"""Measure how many landmarks lie on the object, on images whose object differs from a plain background.

    PYTHONPATH=src:benchmarks:benchmarks/quality python benchmarks/features/on_object.py NAME RUN... \
        --data-folder DATA --work WORK

The object is the part of a crop that differs from the color of the crop's border (Otsu's threshold) and is
connected with its center. A landmark is on the object if it lies at most 3 % of the crop's side beside it.
The script prints one line of JSON for each run, for the test images of flies-dpk or mouse-openfield.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import provenance
from quality_data import DATASETS, working_copy

import selfmark
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.images.sources import list_images
from selfmark.images.store import load_store

TOLERANCE = 0.03  # of the crop's side


def find_object(crop: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return a mask [S, S] of the object of a crop [S, S, 3] RGB, enlarged by the tolerance."""
    gray = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY).astype(np.float32)
    border = np.concatenate([gray[0], gray[-1], gray[:, 0], gray[:, -1]])
    difference = np.clip(np.abs(gray - np.median(border)), 0, 255).astype(np.uint8)
    _, mask = cv2.threshold(difference, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    _, labels = cv2.connectedComponents(mask)
    side = len(crop)
    center = labels[side // 3 : -side // 3, side // 3 : -side // 3]
    counts = np.bincount(center[center > 0], minlength=2)
    radius = round(TOLERANCE * side)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    return np.asarray(cv2.dilate((labels == counts.argmax()).astype(np.uint8), kernel) > 0)


def main() -> None:
    """Print one line of JSON for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("flies-dpk", "mouse-openfield"))
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data-folder", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="Folder for the working copy of the data.")
    arguments = parser.parse_args()
    dataset = DATASETS[arguments.name]
    folder = working_copy(arguments.name, arguments.data_folder, arguments.work)
    labels = folder / dataset.labels
    inputs = [str(labels)] if dataset.video else [str(folder / image) for image in dataset.images]
    refs = read_ground_truth(labels, list_images(inputs)).refs
    for run in arguments.runs:
        detector = selfmark.load(run)
        crops = load_store(refs, detector.card.images, 16, None).pixels
        masks = np.stack([find_object(crop) for crop in crops.permute(0, 2, 3, 1).numpy()])
        cell = detector.locate(crops).xy.round().long().clamp(0, masks.shape[1] - 1).numpy()
        on_object = masks[np.arange(len(cell))[:, None], cell[..., 1], cell[..., 0]]
        row = {
            "data": arguments.name,
            "run": Path(run).parent.name,
            "images": len(cell),
            "object_fraction": round(float(masks.mean()), 4),
            "on_object": round(float(on_object.mean()), 4),
            "commit": provenance.commit(),
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
