"""Shrink settings and data sets for `run.py --smoke`, which makes trial runs of a few seconds on a CPU.

Trial runs check that the code runs from end to end. Their numbers mean nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from experiments import Settings
from quality_data import Dataset

from selfmark.run.files import read_json, write_json
from selfmark.sampling import evenly_spaced

IMAGES = 60  # maximum number of training images and of test images
SMOKE: Settings = {
    "K": 8,
    "images.size": 64,
    "network.channels": 32,
    "network.norm_groups": 4,
    "network.descriptor": 16,
    "network.depth": 2,
    "keypoints.image_size": 128,
    "keypoints.outlier_sample": 2000,
    "keypoints.outlier_neighbors": 10,
    "heatmaps.threshold": 0.0,
    "correspondence.restarts": 1,
    "correspondence.iterations": 5,
    "loss.random_negatives": 8,
    "warmup.iterations": 6,
    "rounds.count": 2,
    "rounds.iterations": 4,
    "stage2.iterations": 6,
    "stage2.batch": 4,
    "runtime.batch": 3,
    "runtime.checkpoint_every": 2,
    "evaluation.num_samples": 16,
    "evaluation.completion_iterations": 20,
}


def reduce_dataset(dataset: Dataset, folder: Path) -> Dataset:
    """Return the data set with few images, and write its label files to the folder."""
    reduced = {name: _thin(folder, name) for name in (dataset.labels, dataset.train_labels)}
    inputs = tuple(_thin(folder, name) if name.endswith(".json") else name for name in dataset.inputs)
    if inputs == dataset.inputs:  # folders of images; list the images of the reduced training labels instead
        inputs = (_write_list(folder, reduced[dataset.train_labels]),)
    return replace(
        dataset,
        inputs=inputs,
        images=tuple(reduced.get(name, name) for name in dataset.images),
        labels=reduced[dataset.labels],
        train_labels=reduced[dataset.train_labels],
        video=_thin(folder, dataset.video) if dataset.video else "",
    )


def _thin(folder: Path, name: str) -> str:
    """Write a copy of a label file with at most IMAGES images, and return its name."""
    if (folder / f"thin-{name}").exists():
        return f"thin-{name}"
    content = read_json(folder / name)
    images = content["images"]
    # Keep consecutive frames of a video, because motion is measured between them.
    is_video = "frame" in images[0]
    rows = np.arange(min(IMAGES, len(images))) if is_video else evenly_spaced(len(images), IMAGES)
    kept = [images[row] for row in rows]
    ids = {image["id"] for image in kept}
    content["images"] = kept
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] in ids]
    write_json(content, folder / f"thin-{name}")
    return f"thin-{name}"


def _write_list(folder: Path, labels: str) -> str:
    """Write a text file that lists the images of a label file, relative to the data set's folder."""
    names = [f"images/{image['file_name']}" for image in read_json(folder / labels)["images"]]
    path = (folder / labels).with_suffix(".txt")
    if not path.exists():
        path.write_text("\n".join(names) + "\n", encoding="utf-8")
    return path.name
