"""Data sets as COCO files: train.json, test.json, and fit.json where regressors are fitted on other images.

This is what `selfmark datasets write` makes. Whoever has a data set in this form, cut out or labeled anew
perhaps, can put it in place of the official files, and a note says so wherever its figures stand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from selfmark.errors import InputError, escape_control_characters
from selfmark.images.coco import CocoFile
from selfmark.paper.datasets.body_readers import mirror_by_side
from selfmark.paper.datasets.coco_objects import CocoObjects, read_coco_objects
from selfmark.paper.datasets.dataset import Dataset, SplitObjects, tight_box

SPLITS = ("train", "fit", "test")
_ALIKE = 1.0  # pixels
_LONGEST = 200  # letters of a description
_OWN = ("images.", "evaluation.")  # what a data set may change: how it is seen, and how it is measured


def is_coco_folder(root: Path) -> bool:
    """Whether a folder holds a data set in this form."""
    return all((root / f"{split}.json").is_file() for split in ("train", "test"))


def read_coco_folder(name: str, root: Path) -> Dataset:
    """The data set called `name` in this form; crowds are left out."""
    paths = {split: root / f"{split}.json" for split in SPLITS}
    said = {split: read_coco_objects(path) for split, path in paths.items() if path.is_file()}
    first = said["train"]
    for split, part in said.items():
        if part.names != first.names:
            raise InputError(f"{root}: train.json and {split}.json name different points")
    objects = {split: _objects(root, paths[split], part) for split, part in said.items()}
    return Dataset(
        name=name,
        root=root,
        category=first.category,
        names=first.names,
        mirror=first.mirror or mirror_by_side(first.names),
        normalizer=first.normalizer or "box",
        settings=_settings(paths["train"], first.file),
        train=objects["train"],
        test=objects["test"],
        notes=(_origin(name, first.file), *_tight(objects["train"])),
        fit=objects.get("fit"),
    )


def _objects(root: Path, path: Path, said: CocoObjects) -> SplitObjects:
    folder = said.file.image_folder(said.images[0])
    files = [folder / image.file_name for image in said.images]
    frames = [image.frame() for image in said.images]
    fields = said.file.fields(said.entries)
    films = tuple(image.clip_frame() for image in said.images)
    for name in ("frame", "video_id", "frame_id"):  # where a picture is from, not what an object is like
        fields.pop(name, None)
    return SplitObjects(
        tuple(file.relative_to(root) if file.is_relative_to(root) else file for file in files),
        np.array([-1 if frame is None else frame for frame in frames], np.int64),
        said.box,
        np.where(said.points[..., 2:] > 0, said.points[..., :2], np.nan),
        said.points[..., 2] == 1,
        {name: tuple("" if value is None else value for value in values) for name, values in fields.items()},
        films if any(films) else (),
    )


def _tight(objects: SplitObjects) -> tuple[str, ...]:
    """A word on boxes that reach from point to point: files of points often have them for want of others."""
    seen = np.any(np.all(np.isfinite(objects.xy), axis=2), axis=1)
    if not seen.any() or not np.allclose(objects.box[seen], tight_box(objects.xy[seen]), atol=_ALIKE):
        return ()
    return (
        "its boxes are those around the points, so little else is cut out; leave 'bbox' out of the files "
        "where the whole image is meant",
    )


def _origin(name: str, file: CocoFile) -> str:
    """That the files are not the official ones, and what they are where they name other data."""
    described = file.info.get("description")
    other = isinstance(described, str) and described.strip() not in ("", name)
    words = (
        f", which are described as '{escape_control_characters(str(described).strip())[:_LONGEST]}'"
        if other
        else ""
    )
    return f"read from COCO files{words}, not from its official files"


def _settings(path: Path, file: CocoFile) -> dict[str, Any]:
    """How the objects are cut out, where the file says so."""
    settings = file.info.get("selfmark")
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(str(name).startswith(_OWN) for name in settings):
        raise InputError(f"{path}: 'selfmark' under 'info' may only hold settings of images and evaluation")
    return settings
