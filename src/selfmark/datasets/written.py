"""Data sets as COCO files: train.json, test.json, and fit.json where regressors are fitted on other images.

This is what `selfmark datasets write` makes. Whoever has a data set in this form, cut out or labelled anew
perhaps, can put it in place of the official files, and a note says so wherever its figures stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfmark.datasets.bodies import mirror
from selfmark.datasets.form import DataSet, Objects
from selfmark.errors import InputError
from selfmark.evaluate.coco_points import (
    box_of,
    category_of,
    declared_normaliser,
    is_crowd,
    keypoints_of,
    load,
    mirror_of,
    point_names,
)
from selfmark.evaluate.labels import fields_of
from selfmark.images.sources import coco_folder, coco_frame

SPLITS = ("train", "fit", "test")


@dataclass(frozen=True)
class _Part:
    """What one of the files says."""

    category: str
    names: tuple[str, ...]
    mirror: tuple[int, ...]
    normaliser: str
    settings: Mapping[str, Any]
    objects: Objects


def is_written(root: Path) -> bool:
    """Whether a folder holds a data set in this form."""
    return all((root / f"{split}.json").is_file() for split in ("train", "test"))


def read(name: str, root: Path) -> DataSet:
    """The data set called `name` in this form; crowds are left out."""
    parts = {split: _part(root, split) for split in SPLITS if (root / f"{split}.json").is_file()}
    first = parts["train"]
    for split, part in parts.items():
        if part.names != first.names:
            raise InputError(f"{root}: train.json and {split}.json name different points")
    return DataSet(
        name=name,
        root=root,
        category=first.category,
        names=first.names,
        mirror=first.mirror or mirror(first.names),
        normaliser=first.normaliser or "box",
        settings=first.settings,
        train=first.objects,
        test=parts["test"].objects,
        notes=(f"{name} was read from COCO files, not from its official files",),
        fit=parts["fit"].objects if "fit" in parts else None,
    )


def _part(root: Path, split: str) -> _Part:
    path = root / f"{split}.json"
    content, images, annotations = load(path)
    single = [entry for entry in annotations if not is_crowd(entry)]
    if not single:
        raise InputError(f"{path} annotates no single objects")
    where, category = category_of(path, content, single)
    names = point_names(where, category, single[0])
    points = keypoints_of(single, names)
    named = [images[entry["image_id"]] for _, entry in single]
    folder = coco_folder(path, named[0][1]["file_name"])
    files = [folder / image["file_name"] for _, image in named]
    frames = [coco_frame(file, image, place) for file, (place, image) in zip(files, named, strict=True)]
    fields = fields_of([entry for _, entry in single], [image for _, image in named])
    fields.pop("frame", None)  # of a video: not what an object is like
    return _Part(
        str(category.get("name", "object")),
        names,
        mirror_of(where, category, len(names)),
        declared_normaliser(where, category, names)[0],
        _settings(path, content),
        Objects(
            tuple(file.relative_to(root) if file.is_relative_to(root) else file for file in files),
            np.array([-1 if frame is None else frame for frame in frames], np.int64),
            np.array([box_of(entry) or (np.nan,) * 4 for entry in single], np.float64),
            np.where(points[..., 2:] > 0, points[..., :2], np.nan),
            points[..., 2] == 1,
            {
                name: tuple("" if value is None else value for value in values)
                for name, values in fields.items()
            },
        ),
    )


def _settings(path: Path, content: Any) -> dict[str, Any]:
    """How the objects are cut out, where the file says so."""
    info = content.get("info")
    settings = info.get("selfmark") if isinstance(info, dict) else None
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(str(name).startswith("images.") for name in settings):
        raise InputError(f"{path}: 'selfmark' under 'info' may only hold settings of images")
    return settings
