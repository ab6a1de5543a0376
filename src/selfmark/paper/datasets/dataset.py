"""The one form that every data set of the paper is brought into, and how it is written down.

A reader (one module per official layout) turns folders and list files into a `Dataset`. Written as COCO files
that name the original images where they are, it is what `discover` and `evaluate` take from anyone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.errors import InputError
from selfmark.points import FloatArray
from selfmark.run.files import atomic_write


@dataclass(frozen=True)
class Dataset:
    """A category of objects with the paper's split.

    name:       as in `registry.DATASETS`
    root:       folder that the paths of the objects' images are relative to
    category:   what the objects are, e.g. "face"
    names:      L names of the points
    mirror:     L: each point's partner in the mirrored image
    normalizer: what errors are divided by, a spec of `evaluate.normalize` (Sec. 4.2)
    settings:   what the paper or its authors' program changes for this data set, by dotted name, e.g.
                images.body_scale
    train:      what landmarks are discovered in and, unless `fit` is given, regressors fitted on
    test:       what errors are measured on
    notes:      sentences on what was left out or could not be done as in the paper
    fit:        what regressors are fitted on, where that is not `train`
    """

    name: str
    root: Path
    category: str
    names: tuple[str, ...]
    mirror: tuple[int, ...]
    normalizer: str
    settings: Mapping[str, Any]
    train: AnnotatedObjects
    test: AnnotatedObjects
    notes: tuple[str, ...] = ()
    fit: AnnotatedObjects | None = None

    def __post_init__(self) -> None:
        if sorted(self.mirror) != list(range(len(self.names))):
            raise ValueError("mirror must name every point once")
        for split in self.splits.values():
            if split.names != self.names:
                raise ValueError(f"every split must have the points {self.names}, not {split.names}")

    @property
    def splits(self) -> dict[str, AnnotatedObjects]:
        """The splits by name: train, fit where there is one, test."""
        fit = {} if self.fit is None else {"fit": self.fit}
        return {"train": self.train, **fit, "test": self.test}

    def changed(self, splits: Mapping[str, AnnotatedObjects], notes: Sequence[str]) -> Dataset:
        """The same with other objects in these splits, and with further notes."""
        return replace(
            self,
            train=splits.get("train", self.train),
            fit=splits.get("fit", self.fit),
            test=splits.get("test", self.test),
            notes=(*self.notes, *notes),
        )


def write_coco(dataset: Dataset, folder: Path) -> tuple[Path, Path]:
    """Write train.json and test.json, which name the images where they are; returns their paths.

    Where regressors are fitted on other images than those of train.json, those are in fit.json.
    """
    try:
        (folder / "fit.json").unlink(missing_ok=True)  # of another data set
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    for name, split in dataset.splits.items():
        write_coco_split(dataset, split, folder / f"{name}.json")
    return folder / "train.json", folder / "test.json"


def write_coco_split(dataset: Dataset, split: AnnotatedObjects, path: Path) -> None:
    """Write objects of a data set to a COCO file that names the images by their absolute paths."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(_coco(dataset, split)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {path.parent}: {error.strerror}") from error


def _coco(dataset: Dataset, split: AnnotatedObjects) -> dict[str, Any]:
    category = {
        "id": 1,
        "name": dataset.category,
        "keypoints": list(dataset.names),
        "skeleton": [],
        "flip_idx": list(dataset.mirror),
        "normaliser": dataset.normalizer,
    }
    root = dataset.root.resolve()
    images: dict[tuple[str, int | None], dict[str, Any]] = {}
    annotations = []
    unknown = [0] * (3 * len(dataset.names))  # one for all: there may be 200,000 of them
    for row, ref in enumerate(split.refs):
        key = (str(root / ref.path), ref.frame)
        if key not in images:
            image: dict[str, Any] = {"id": len(images) + 1, "file_name": key[0]}
            if ref.frame is not None:
                image["frame"] = ref.frame
            if ref.clip is not None:
                image |= {"video_id": ref.clip[0], "frame_id": ref.clip[1]}
            images[key] = image
        known = split.visible[row]
        annotation: dict[str, Any] = {
            "id": row + 1,
            "image_id": images[key]["id"],
            "category_id": 1,
            "keypoints": _triples(split.xy[row], known, split.hidden[row]) if known.any() else unknown,
            "num_keypoints": int(known.sum()),
            "iscrowd": 0,
        }
        if np.isfinite(split.boxes[row]).all():
            annotation["bbox"] = split.boxes[row].tolist()
        annotations.append(annotation | {name: values[row] for name, values in split.fields.items()})
    return {
        "info": {"description": dataset.name, "selfmark": dict(dataset.settings)},
        "images": list(images.values()),
        "annotations": annotations,
        "categories": [category],
    }


def _triples(xy: FloatArray, known: npt.NDArray[np.bool_], hidden: npt.NDArray[np.bool_]) -> list[float]:
    """x, y, v of each point; zeros where it is not annotated."""
    sight = np.where(known, np.where(hidden, 1, 2), 0)
    places = np.where(known[:, None], xy, 0.0)
    return [value for (x, y), v in zip(places.tolist(), sight.tolist(), strict=True) for value in (x, y, v)]


# --- what readers share ------------------------------------------------------------------------------------


def find_path(root: Path, *names: str, of: str) -> Path:
    """The first of these paths that exists below the root; which files were looked for if none does."""
    for name in names:
        if (root / name).exists():
            return root / name
    looked = " or ".join(f"'{name}'" for name in names)
    raise InputError(
        f"{root} is not laid out as {of} is: there is no {looked} in it; 'selfmark datasets list' says where "
        "to get it"
    )


def list_files(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder that a pattern matches, sorted, but hidden ones: macOS makes ._1.jpg of 1.jpg."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def files_exist(paths: Sequence[Path]) -> npt.NDArray[np.bool_]:
    """Whether each of the files is there, [N].

    Every folder is listed once: to ask for many thousand files one by one takes minutes on a disk far away.
    """
    folders = {path.parent for path in paths}
    there = {folder: set(os.listdir(folder)) if folder.is_dir() else set() for folder in folders}
    return np.array([path.name in there[path.parent] for path in paths], bool)


def tight_box(xy: FloatArray) -> FloatArray:
    """The tightest boxes [N, 4] around annotated points [N, L, 2], pixel centers at integers.

    >>> tight_box(np.array([[[2.0, 3.0], [np.nan, np.nan], [5.0, 3.0]]])).tolist()
    [[2.5, 3.5, 3.0, 0.0]]
    """
    low, high = np.nanmin(xy, axis=1), np.nanmax(xy, axis=1)
    return np.concatenate([low + 0.5, high - low], axis=1)
