"""`run.py --smoke`: runs of seconds on a CPU, to see that everything fits; their figures mean nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rows import Settings
from sets import DataSet

from selfmark.run.files import read_json, write_json

IMAGES = 60  # of training and of testing
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


def thinned(dataset: DataSet, folder: Path) -> DataSet:
    """The data set with few training and test images, evenly spaced; label files for it go to its folder."""
    named = {name: _thin(folder, name) for name in (dataset.labels, dataset.train_labels)}
    inputs = tuple(
        named[name] if name in named else _thin(folder, name) if name.endswith(".json") else name
        for name in dataset.inputs
    )
    if dataset.train_labels not in dataset.inputs and inputs == dataset.inputs:
        inputs = (_listed(folder, named[dataset.train_labels]),)
    return replace(
        dataset,
        inputs=inputs,
        images=tuple(named.get(name, name) for name in dataset.images),
        labels=named[dataset.labels],
        train_labels=named[dataset.train_labels],
        video=_thin(folder, dataset.video) if dataset.video else "",
    )


def _thin(folder: Path, name: str) -> str:
    if (folder / f"thin-{name}").exists():
        return f"thin-{name}"
    content = read_json(folder / name)
    images = content["images"]
    # Of a video neighboring frames are kept, for motion is measured between them.
    video = "frame" in images[0]
    rows = np.arange(min(IMAGES, len(images))) if video else _spread(len(images))
    kept = [images[row] for row in rows]
    ids = {image["id"] for image in kept}
    content["images"] = kept
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] in ids]
    write_json(content, folder / f"thin-{name}")
    return f"thin-{name}"


def _listed(folder: Path, labels: str) -> str:
    """A text list of the images of a label file whose images lie in images/."""
    names = [f"images/{image['file_name']}" for image in read_json(folder / labels)["images"]]
    if not (folder / "thin-train.txt").exists():
        (folder / "thin-train.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    return "thin-train.txt"


def _spread(count: int) -> Sequence[int]:
    rows: list[int] = np.unique(np.linspace(0, count - 1, min(IMAGES, count)).astype(int)).tolist()
    return rows
