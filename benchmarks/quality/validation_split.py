"""Split the labeled training images of a data set: four fifths for training, one fifth for validation.

The split is always the same. Settings are chosen by errors on the validation part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from quality_data import Dataset

from selfmark.run.files import read_json, write_json

VALIDATION_FRACTION = 0.2
SEED = 7


def select_validation_part(dataset: Dataset, folder: Path) -> Dataset:
    """Return the data set with its training images split for validation, and write its label files.

    Discovery and regressors get four fifths; `labels` are those of the other fifth.
    """
    files = split_labels(folder / dataset.train_labels, is_video=bool(dataset.video))
    train, held_out = files["train"], files["held-out"]
    if dataset.train_labels in dataset.inputs:  # the label file is also an input, for its boxes
        other_inputs = tuple(name for name in dataset.inputs if name != dataset.train_labels)
        inputs, images = (*other_inputs, train.name), (train.name, held_out.name)
    else:
        inputs = tuple(f"images/{image['file_name']}" for image in read_json(train)["images"])
        images = dataset.images
    return replace(dataset, inputs=inputs, images=images, labels=held_out.name, train_labels=train.name)


def split_labels(path: Path, is_video: bool) -> dict[str, Path]:
    """Split the labels of a training set into two files next to it, unless they exist.

    Args:
        path: COCO file of the training set.
        is_video: Whether images are video frames. Then the last fifth is held out instead of a random fifth.

    Returns:
        Paths of the files "train" and "held-out".
    """
    written = {name: path.with_name(f"{path.stem}-validation-{name}.json") for name in ("held-out", "train")}
    if all(file.exists() for file in written.values()):
        return written
    content = read_json(path)
    images = content["images"]
    order = np.random.default_rng(SEED).permutation(len(images))
    if is_video:
        order = np.arange(len(images))[::-1]
    held_out = int(VALIDATION_FRACTION * len(images))
    for name, rows in (("held-out", order[:held_out]), ("train", order[held_out:])):
        chosen = [images[row] for row in np.sort(rows)]
        ids = {image["id"] for image in chosen}
        labels = [entry for entry in content["annotations"] if entry["image_id"] in ids]
        write_json({**content, "images": chosen, "annotations": labels}, written[name])
    return written
