"""Define `Dataset`, the common form of the paper's data sets, with its COCO files and functions for readers.

There is one reader module per official layout. A reader turns folders and list files into a `Dataset`.
`discover` and `evaluate` read the COCO files that are written from a `Dataset`. These files contain the
absolute paths of the original images.
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
from selfmark.errors import InputError, report_write_errors
from selfmark.images.input_files import require_inputs_kept
from selfmark.points import FloatArray
from selfmark.run.files import to_json, write_text
from selfmark.run.guarded_files import make_folders, open_to_read, remove_file

SPLITS = ("train", "fit", "test")  # possible names of splits, and of their COCO files
# Beginning of the COCO files that selfmark writes, and the number of bytes in which their first entry ends.
_INFO_START = '{"info": '
_MAX_INFO_BYTES = 1 << 16


@dataclass(frozen=True)
class Dataset:
    """A category of objects with the paper's splits.

    Attributes:
        name: Name in `dataset_registry.DATASETS`.
        root: Folder that the paths of images are relative to.
        category: Name of the category, e.g. "face".
        names: Names of the L points.
        mirror: Index of each point's mirror partner.
        normalizer: Length that errors are divided by, as in `evaluation.normalizers` (Sec. 4.2 of the paper).
        settings: Mapping from dotted names to values, for settings that the paper or the authors' program
            changes for this data set.
        train: Objects in which landmarks are discovered.
        test: Objects on which errors are measured.
        notes: Sentences about what was left out or differs from the paper.
        fit: Objects on which regressors are fitted; None to use `train`.
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
        """Raise if mirror partners or the points of the splits are inconsistent."""
        if sorted(self.mirror) != list(range(len(self.names))):
            raise ValueError("mirror must name every point once")
        for split in self.splits.values():
            if split.names != self.names:
                raise ValueError(f"every split must have the points {self.names}, not {split.names}")

    @property
    def splits(self) -> dict[str, AnnotatedObjects]:
        """Mapping from the names of the splits to their objects: train, fit (if it exists) and test."""
        fit = {} if self.fit is None else {"fit": self.fit}
        return {"train": self.train, **fit, "test": self.test}

    def replace_splits(self, splits: Mapping[str, AnnotatedObjects], notes: Sequence[str]) -> Dataset:
        """Return the data set with the given splits replaced and the given notes added."""
        return replace(
            self,
            train=splits.get("train", self.train),
            fit=splits.get("fit", self.fit),
            test=splits.get("test", self.test),
            notes=(*self.notes, *notes),
        )


def write_coco_dataset(dataset: Dataset, folder: Path) -> tuple[Path, Path]:
    """Write train.json, test.json and, if there is a split for fitting regressors, fit.json.

    Returns:
        The paths of train.json and test.json.
    """
    require_replaceable(folder, dataset.root)
    with report_write_errors(f"to {folder}"):
        remove_file(folder / "fit.json")  # An earlier file may belong to another data set.
    for name, split in dataset.splits.items():
        write_coco_split(dataset, split, folder / f"{name}.json")
    return folder / "train.json", folder / "test.json"


def require_replaceable(folder: Path, root: Path, inputs: Sequence[Path | None] = ()) -> None:
    """Raise if `write_coco_dataset` would replace or remove an input, or a file that selfmark did not write.

    Args:
        folder: Output folder.
        root: Folder of the data set.
        inputs: Further files from which the data set is made.
    """
    paths = [folder / f"{name}.json" for name in SPLITS]
    advice = "choose another output folder with -o"
    require_inputs_kept(paths, (*root.glob("*.json"), *inputs), advice)
    with report_write_errors(f"to {folder}"):
        for path in paths:
            if path.exists() and not _is_written_by_selfmark(path):
                raise InputError(
                    f"{path} was not written by 'selfmark datasets write': {advice}, or remove it"
                )


def write_coco_split(dataset: Dataset, split: AnnotatedObjects, path: Path) -> None:
    """Write objects of a data set to a COCO file that names the images by their absolute paths."""
    with report_write_errors(f"to {path.parent}"):
        make_folders(path.parent)
        write_text(to_json(_to_coco(dataset, split)), path)


def _is_written_by_selfmark(path: Path) -> bool:
    """Return True if a file begins like those of `write_coco_split`; large files are not read completely."""
    with open_to_read(path) as handle:
        text = handle.read(_MAX_INFO_BYTES).decode("utf-8", errors="replace")
    if not text.startswith(_INFO_START):
        return False
    try:
        info, _ = json.JSONDecoder().raw_decode(text, len(_INFO_START))
    except (ValueError, RecursionError):
        return False
    return isinstance(info, dict) and isinstance(info.get("selfmark"), dict)


def _to_coco(dataset: Dataset, split: AnnotatedObjects) -> dict[str, Any]:
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
    no_points = [0] * (3 * len(dataset.names))  # shared by all objects without points, up to 200,000
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
            "keypoints": _to_triples(split.xy[row], known, split.hidden[row]) if known.any() else no_points,
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


def _to_triples(xy: FloatArray, known: npt.NDArray[np.bool_], hidden: npt.NDArray[np.bool_]) -> list[float]:
    """Return x, y and COCO's visibility of each point as a flat list; zeros if it is not annotated."""
    visibility = np.where(known, np.where(hidden, 1, 2), 0).tolist()
    points = np.where(known[:, None], xy, 0.0).tolist()
    triples: list[float] = []
    for (x, y), point_visibility in zip(points, visibility, strict=True):
        triples += (x, y, point_visibility)
    return triples


# --- functions that the readers share ----------------------------------------------------------------------


def find_path(root: Path, *names: str, title: str) -> Path:
    """Return the first of several paths that exists below the root.

    Args:
        root: Folder of the data set.
        names: Paths relative to the root.
        title: Title of the data set, for the message.

    Raises:
        InputError: None of the paths exists.
    """
    for name in names:
        if (root / name).exists():
            return root / name
    expected = " or ".join(f"'{name}'" for name in names)
    raise InputError(
        f"{root} does not have the layout of {title}: it contains no {expected}; 'selfmark datasets list' "
        "shows where to get it"
    )


def list_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern, sorted; leave out hidden files such as ._1.jpg from macOS."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def files_exist(paths: Sequence[Path]) -> npt.NDArray[np.bool_]:
    """Return a mask [N] of the files that exist.

    Every folder is listed once, because checking thousands of files one by one takes minutes on a network
    drive.
    """
    folders = {path.parent for path in paths}
    names = {folder: set(os.listdir(folder)) if folder.is_dir() else set() for folder in folders}
    return np.array([path.name in names[path.parent] for path in paths], bool)


def compute_tight_boxes(xy: FloatArray) -> FloatArray:
    """Return the smallest boxes [N, 4] around annotated points [N, L, 2]; NaN means not annotated.

    The center of the top left pixel is (0, 0) for points, but (0.5, 0.5) for boxes.

    >>> compute_tight_boxes(np.array([[[2.0, 3.0], [np.nan, np.nan], [5.0, 3.0]]])).tolist()
    [[2.5, 3.5, 3.0, 0.0]]
    """
    low, high = np.nanmin(xy, axis=1), np.nanmax(xy, axis=1)
    return np.concatenate([low + 0.5, high - low], axis=1)
