"""The one form that every data set of the paper is brought into, and how it is written down.

A reader (one module per official layout) turns folders and list files into a `Dataset`. Written as COCO files
that name the original images where they are, it is what `discover` and `evaluate` take from anyone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.image_ref import ClipFrame
from selfmark.points import FloatArray
from selfmark.run.files import atomic_write

Scalar = str | int | float | bool


@dataclass(frozen=True)
class SplitObjects:
    """N annotated objects of one split, in the order of the official lists.

    files:  N paths of images or videos, below the data set's root
    frame:  [N] int64, 0-based frame of a video; -1 for a still image
    box:    [N, 4] float64 x, y, w, h in pixels of the original, corner convention; NaN: the whole image
    xy:     [N, L, 2] float64 in pixels of the original, pixel centers at integers; NaN where not annotated
    hidden: [N, L] bool, annotated but said to be out of sight
    fields: by name, N values to break errors down by (yaw_bucket, activity, ...)
    clip:   N: of a still that is a frame of a film which film, and its 0-based frame; None of others; empty
            where none is
    """

    files: tuple[Path, ...]
    frame: npt.NDArray[np.int64]
    box: FloatArray
    xy: FloatArray
    hidden: npt.NDArray[np.bool_]
    fields: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    clip: tuple[ClipFrame | None, ...] = ()

    def __post_init__(self) -> None:
        count, points = len(self.files), self.xy.shape[1]
        shapes = (self.frame.shape, self.box.shape, self.xy.shape, self.hidden.shape)
        if shapes != ((count,), (count, 4), (count, points, 2), (count, points)):
            raise ValueError(f"arrays of {count} objects and {points} points have shapes {shapes}")
        if any(len(values) != count for values in self.fields.values()):
            raise ValueError(f"every field needs {count} values")
        if len(self.clip) not in (0, count):
            raise ValueError(f"{count} objects need as many films, or none")

    def __len__(self) -> int:
        return len(self.files)

    def select(self, rows: npt.NDArray[np.integer | np.bool_]) -> SplitObjects:
        rows = np.arange(len(self))[rows]
        return SplitObjects(
            tuple(self.files[row] for row in rows),
            self.frame[rows],
            self.box[rows],
            self.xy[rows],
            self.hidden[rows],
            {name: tuple(values[row] for row in rows) for name, values in self.fields.items()},
            tuple(self.clip[row] for row in rows) if self.clip else (),
        )


@dataclass(frozen=True)
class Dataset:
    """A category of objects with the paper's split.

    name:       as in `registry.DATASETS`
    root:       folder that `Objects.files` are relative to
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
    train: SplitObjects
    test: SplitObjects
    notes: tuple[str, ...] = ()
    fit: SplitObjects | None = None

    def __post_init__(self) -> None:
        if sorted(self.mirror) != list(range(len(self.names))):
            raise ValueError("mirror must name every point once")
        for split in self.splits.values():
            if split.xy.shape[1] != len(self.names):
                raise ValueError(f"{split.xy.shape[1]} points for {len(self.names)} names")

    @property
    def splits(self) -> dict[str, SplitObjects]:
        """The splits by name: train, fit where there is one, test."""
        fit = {} if self.fit is None else {"fit": self.fit}
        return {"train": self.train, **fit, "test": self.test}

    def changed(self, splits: Mapping[str, SplitObjects], notes: Sequence[str]) -> Dataset:
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
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fit.json").unlink(missing_ok=True)  # of another data set
        for name, split in dataset.splits.items():
            with atomic_write(folder / f"{name}.json") as temporary:
                temporary.write_text(json.dumps(_coco(dataset, split)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    return folder / "train.json", folder / "test.json"


def _coco(dataset: Dataset, split: SplitObjects) -> dict[str, Any]:
    category = {
        "id": 1,
        "name": dataset.category,
        "keypoints": list(dataset.names),
        "skeleton": [],
        "flip_idx": list(dataset.mirror),
        "normaliser": dataset.normalizer,
    }
    root = dataset.root.resolve()
    images: dict[tuple[str, int], dict[str, Any]] = {}
    annotations = []
    unknown = [0] * (3 * len(dataset.names))  # one for all: there may be 200,000 of them
    for row, file in enumerate(split.files):
        key = (str(root / file), int(split.frame[row]))
        if key not in images:
            image: dict[str, Any] = {"id": len(images) + 1, "file_name": key[0]}
            images[key] = image | ({"frame": key[1]} if key[1] >= 0 else {}) | _moment(split, row)
        known = np.isfinite(split.xy[row]).all(axis=1)
        annotation: dict[str, Any] = {
            "id": row + 1,
            "image_id": images[key]["id"],
            "category_id": 1,
            "keypoints": _triples(split.xy[row], known, split.hidden[row]) if known.any() else unknown,
            "num_keypoints": int(known.sum()),
            "iscrowd": 0,
        }
        if np.isfinite(split.box[row]).all():
            annotation["bbox"] = split.box[row].tolist()
        annotations.append(annotation | {name: values[row] for name, values in split.fields.items()})
    return {
        "info": {"description": dataset.name, "selfmark": dict(dataset.settings)},
        "images": list(images.values()),
        "annotations": annotations,
        "categories": [category],
    }


def _moment(split: SplitObjects, row: int) -> dict[str, Any]:
    """Which frame of which film a still is, in the words of COCO files of videos."""
    film = split.clip[row] if split.clip else None
    return {} if film is None else {"video_id": film[0], "frame_id": film[1]}


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
