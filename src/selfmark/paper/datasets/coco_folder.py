"""Read data sets as COCO files: train.json, test.json, and fit.json if regressors have images of their own.

`selfmark datasets write` writes these files. They can replace the official files of a data set, for example
with other crops or labels. In this case, a note beside the results says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError, escape_control_characters
from selfmark.evaluation.label_files import build_objects
from selfmark.image_ref import ImageRef
from selfmark.images.coco import CocoFile, read_coco
from selfmark.paper.datasets.body_annotations import pair_points_by_side
from selfmark.paper.datasets.dataset import SPLITS, Dataset, compute_tight_boxes

_TIGHT_TOLERANCE = 1.0  # largest difference between boxes that count as equal, in pixels
_MAX_DESCRIPTION = 200  # largest number of characters of a description
_ALLOWED_SETTINGS = ("images.", "evaluation.")  # settings that a data set may change start with one of these


def is_coco_folder(root: Path) -> bool:
    """Return True if a folder contains a data set as COCO files."""
    return all((root / f"{split}.json").is_file() for split in ("train", "test"))


def read_coco_folder(name: str, root: Path) -> Dataset:
    """Read the data set called `name` from the COCO files of a folder; annotated crowds are left out."""
    paths = {split: root / f"{split}.json" for split in SPLITS}
    files = {split: read_coco(path) for split, path in paths.items() if path.is_file()}
    objects = {split: _read_split(root, file) for split, file in files.items()}
    train = objects["train"]
    for split, part in objects.items():
        if part.names != train.names:
            raise InputError(f"{root}: train.json and {split}.json name different points")
    return Dataset(
        name=name,
        root=root,
        category=files["train"].category(files["train"].single_objects()).name,
        names=train.names,
        mirror=train.mirror or pair_points_by_side(train.names),
        normalizer=train.normalizer or "box",
        settings=_read_settings(files["train"]),
        train=train,
        test=objects["test"],
        notes=(_describe_origin(name, files["train"]), *_note_tight_boxes(train)),
        fit=objects.get("fit"),
    )


def _read_split(root: Path, file: CocoFile) -> AnnotatedObjects:
    file.check_ids()
    annotations = file.single_objects()
    objects = build_objects(file, annotations)
    images = [file.image_of(annotation) for annotation in annotations]
    folder = file.image_folder(images[0])
    paths = [folder / image.file_name for image in images]
    refs = [
        ImageRef(
            path.relative_to(root) if path.is_relative_to(root) else path,
            image.frame(),
            clip=image.clip_frame(),
        )
        for path, image in zip(paths, images, strict=True)
    ]
    # The excluded keys say which frame of which video an image is; they do not describe the object.
    fields = {
        key: tuple("" if value is None else value for value in values)
        for key, values in objects.fields.items()
        if key not in ("frame", "video_id", "frame_id")
    }
    return replace(objects, refs=tuple(refs), fields=fields)


def _note_tight_boxes(objects: AnnotatedObjects) -> tuple[str, ...]:
    """Return a note if all boxes only enclose the points, as in many files without annotated boxes."""
    has_points = objects.visible.any(axis=1)
    if not has_points.any():
        return ()
    if not np.allclose(
        objects.boxes[has_points], compute_tight_boxes(objects.xy[has_points]), atol=_TIGHT_TOLERANCE
    ):
        return ()
    return (
        "its boxes only enclose the points, so little else is visible in the crops; remove 'bbox' from the "
        "files to use whole images",
    )


def _describe_origin(name: str, file: CocoFile) -> str:
    """Return a note that the official files were not used, with the description in the file."""
    description = file.info.get("description")
    described = ""
    if isinstance(description, str) and description.strip() not in ("", name):
        shortened = escape_control_characters(description.strip())[:_MAX_DESCRIPTION]
        described = f" described as '{shortened}'"
    return f"read from COCO files{described}, not from its official files"


def _read_settings(file: CocoFile) -> dict[str, Any]:
    """Return a mapping from dotted names to the settings that the file changes."""
    settings = file.info.get("selfmark")
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(
        str(name).startswith(_ALLOWED_SETTINGS) for name in settings
    ):
        raise InputError(
            f"{file.path}: 'selfmark' under 'info' may only contain settings of images and evaluation"
        )
    return settings
