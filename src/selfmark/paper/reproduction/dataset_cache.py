"""Read each data set of a folder only once, and write label files from it.

`discover` and `evaluate` read the label files: COCO files of the splits, and CSV files of first keypoints,
from which a training starts.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, used_image_settings
from selfmark.errors import InputError
from selfmark.images.crop import compute_crop_regions, region_sides
from selfmark.paper.datasets import dataset_registry
from selfmark.paper.datasets.dataset import Dataset, write_coco_split
from selfmark.paper.datasets.detections import replace_boxes, replace_points
from selfmark.paper.reproduction.experiment import StartPoints
from selfmark.points import FloatArray
from selfmark.run.files import atomic_open
from selfmark.run.guarded_files import create_file, make_folders
from selfmark.run.locks import exclusive

FOLDERS = {"human36m32": "human36m"}  # data sets that use the folder of another data set
_JITTER_SIZE = 256  # `StartPoints.jitter` is in pixels of crops of this size, whatever the preset


@dataclass(frozen=True)
class CachedDataset:
    """A data set and the files that are written from it.

    Attributes:
        base: Data set as it was read; landmarks are discovered in its training images.
        data: The same data set with the number of points that an experiment needs; errors are measured on it.
        folder: Folder for the files.
    """

    base: Dataset
    data: Dataset
    folder: Path

    @property
    def fit(self) -> AnnotatedObjects:
        """Objects on which regressors are fitted: the split `fit` if it exists, else the training split."""
        return self.data.train if self.data.fit is None else self.data.fit

    def labels_digest(self, seed: int, fit_images: int | None) -> str:
        """Return a digest of the labels for testing and of the labels for fitting regressors."""
        fit = sample_objects(self.fit, fit_images, seed)
        return compute_annotations_digest(self.data, self.data.test) + compute_annotations_digest(
            self.data, fit
        )

    def write_train_file(self) -> Path:
        """Write the COCO file of the training images unless it exists; return its path."""
        return self._write_coco_file("train", self.base, self.base.train)

    def write_test_file(self) -> Path:
        """Write the COCO file of the test images unless it exists; return its path."""
        return self._write_coco_file("test", self.data, self.data.test)

    def write_fit_file(self, seed: int, fit_images: int | None) -> Path:
        """Write the COCO file for fitting regressors unless it exists; return its path.

        Args:
            seed: Seed of the random sample.
            fit_images: Number of objects to draw; None for all.
        """
        return self._write_coco_file("fit", self.data, sample_objects(self.fit, fit_images, seed))

    def select_start_objects(self, start: StartPoints) -> AnnotatedObjects:
        """Return the training objects that have at least one of the start points.

        Raises:
            InputError: A start point does not exist, or no training object has any of them.
        """
        if max(start.points) >= len(self.data.names):
            raise InputError(
                f"start point {max(start.points)} does not exist: {self.data.name} has points 0 to "
                f"{len(self.data.names) - 1}"
            )
        train = self.data.train
        has_start_point = np.any(np.isfinite(train.xy[:, list(start.points)]).all(axis=2), axis=1)
        if not has_start_point.any():
            raise InputError(
                f"annotated points of {self.data.name} were requested as first keypoints, but none of its "
                f"{len(train)} training images has any of them"
            )
        return train.select(has_start_point)

    def write_start_train_file(self, start: StartPoints) -> Path:
        """Write the COCO file of the training images with start points unless it exists; return its path.

        Other training images are left out, because nothing would be learned from them.
        """
        return self._write_coco_file("started", self.data, self.select_start_objects(start))

    def start_notes(self, start: StartPoints) -> list[str]:
        """Return a note if some training images have no start points."""
        used, count = len(self.select_start_objects(start)), len(self.base.train)
        if used == count:
            return []
        return [
            f"landmarks are discovered in {used} of {count} training images: the others have none of the "
            "points used as first keypoints"
        ]

    def write_start_points_file(self, start: StartPoints, seed: int, config: Config) -> Path:
        """Write the CSV file of randomly shifted start points unless it exists; return its path."""
        labels = compute_annotations_digest(self.data, self.data.train)
        images = ", ".join(f"{name}={value!r}" for name, value in used_image_settings(config.images).items())
        inputs = f"{start.fingerprint}/{seed}/Images({images})/{labels}/{self._root}"
        folder = self.folder / f"start-{_short_digest(inputs)}"
        make_folders(folder)
        with exclusive(folder, wait=True):
            if not (folder / "points.csv").exists():
                self._write_start_points(start, seed, config, folder / "points.csv")
        return folder / "points.csv"

    def _write_start_points(self, start: StartPoints, seed: int, config: Config, path: Path) -> None:
        train = self.select_start_objects(start)
        scale = self._crop_sides(train, config)[:, None, None] / _JITTER_SIZE
        rng = np.random.default_rng(seed)
        shift = rng.uniform(-start.jitter, start.jitter, (len(train), len(start.points), 2)) * scale
        points = train.xy[:, list(start.points)] + shift
        with atomic_open(path, newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["image", "x", "y"])
            for row, ref in enumerate(train.refs):
                name = replace(ref, path=self._root / ref.path).name
                visible = points[row][np.isfinite(points[row]).all(axis=1)]
                writer.writerows([name, f"{x:.3f}", f"{y:.3f}"] for x, y in visible.tolist())

    @property
    def _root(self) -> Path:
        return self.base.root.resolve()

    def _crop_sides(self, train: AnnotatedObjects, config: Config) -> FloatArray:
        """Return the side [N] of the square crop that the network sees, in pixels of the original image."""
        uses_whole_image = np.isnan(train.boxes).any(axis=1)
        sizes = np.ones((len(train), 2))  # The size of an image is not used if the object has a box.
        for row in np.flatnonzero(uses_whole_image):
            with Image.open(self.data.root / train.paths[row]) as image:  # This reads only the header.
                sizes[row] = image.size
        sides: FloatArray = region_sides(compute_crop_regions(sizes, train.boxes, config.images))
        return sides

    def _write_coco_file(self, name: str, data: Dataset, objects: AnnotatedObjects) -> Path:
        # Every file is called train.json; the folder is named after the split. The file contains absolute
        # paths, so a data set that was moved gets a new file.
        inputs = f"{compute_annotations_digest(data, objects)}/{self._root}"
        folder = self.folder / f"{name}-{_short_digest(inputs)}"
        make_folders(folder)
        with exclusive(folder, wait=True):
            if not (folder / "complete").exists():
                write_coco_split(data, objects, folder / "train.json")
                create_file(folder / "complete").close()
        return folder / "train.json"


class DatasetCache:
    """Data sets in the subfolders of `root`, each read only once; files written from them are below `output`.

    Most faces are annotated with five points. If an experiment needs 68 points, the points of a detector are
    read from a file next to the data set's folder, e.g. celeba-68.json. If celeba-boxes.json or
    celeba-boxes.csv exists, the boxes of a detector are read from it.
    """

    def __init__(self, root: Path, output: Path) -> None:
        """Create an empty cache.

        Args:
            root: Folder with one folder per data set.
            output: Folder for files that are written from the data sets.
        """
        self.root = root
        self.output = output
        self._loaded: dict[tuple[str, int | None], CachedDataset] = {}  # keys: name and number of points

    def why_missing(self, name: str, points: int | None) -> str:
        """Return a sentence that says why a data set cannot be used; empty if it can be used."""
        try:
            self.load(name, points)
        except InputError as error:
            return str(error)
        return ""

    def load(self, name: str, points: int | None = None) -> CachedDataset:
        """Return a data set with this number of annotated points; None for the points that it has.

        Data sets are kept in memory, because reading a large one takes minutes.
        """
        if (name, points) not in self._loaded:
            base = self._read_base(name) if points is None else self.load(name).base
            data = base if points in (None, len(base.names)) else self._read_points(base, name, points)
            self._loaded[name, points] = CachedDataset(base, data, self.output / name)
        return self._loaded[name, points]

    # --- the protocol `experiment_plan.DatasetLibrary` -----------------------------------------------------

    def settings(self, name: str) -> Mapping[str, Any]:
        """Return the settings that the paper changes for this data set."""
        return self.load(name).base.settings

    def train_digest(self, name: str) -> str:
        """Return a digest of the training images."""
        return compute_objects_digest(self.load(name).base.train)

    def start_digest(self, name: str, points: int | None, start: StartPoints) -> str:
        """Return a digest of the training images that have start points, and of their annotated points."""
        cached = self.load(name, points)
        return compute_annotations_digest(cached.data, cached.select_start_objects(start))

    def labels_digest(self, name: str, points: int | None, seed: int, fit_images: int | None) -> str:
        """Return a digest of the test images, the images for fitting regressors, and the labels of both."""
        return self.load(name, points).labels_digest(seed, fit_images)

    # --- reading -------------------------------------------------------------------------------------------

    def _read_base(self, name: str) -> Dataset:
        folder = self.root / FOLDERS.get(name, name)
        if name not in dataset_registry.DATASETS:
            raise InputError(f"selfmark has no reader for the data set '{name}'")
        if not folder.is_dir():
            title = dataset_registry.DATASETS[name].title
            raise InputError(
                f"the data set {title} was expected in {folder}, which does not exist; "
                f"'selfmark datasets check {name} {folder}' lists the files that must be in it"
            )
        data = dataset_registry.read_dataset(name, folder)
        boxes = self._find_file(name, "boxes", (".json", ".csv"))
        return data if boxes is None else replace_boxes(data, boxes)

    def _read_points(self, base: Dataset, name: str, points: int) -> Dataset:
        suffixes, folder = (".json", ".csv", ".npz", ".npy"), FOLDERS.get(name, name)
        file = self._find_file(name, str(points), suffixes)
        if file is None:
            raise InputError(
                f"{self.root / folder} has {len(base.names)} annotated points, but {points} are needed; put "
                f"the points of a detector next to it as {folder}-{points}, with one of {', '.join(suffixes)}"
            )
        data = replace_points(base, file)
        if len(data.names) != points:
            raise InputError(f"{file} has {len(data.names)} points per image, not {points}")
        return data

    def _find_file(self, name: str, content: str, suffixes: Sequence[str]) -> Path | None:
        """Return the file FOLDER-`content` next to the data set's folder; None if it does not exist."""
        files = (self.root / f"{FOLDERS.get(name, name)}-{content}{suffix}" for suffix in suffixes)
        return next((file for file in files if file.is_file()), None)


def sample_objects(objects: AnnotatedObjects, count: int | None, seed: int) -> AnnotatedObjects:
    """Return a random sample of `count` objects in their order; all if `count` is None or larger."""
    if count is None or count >= len(objects):
        return objects
    rows = np.sort(np.random.default_rng(seed).choice(len(objects), count, replace=False))
    return objects.select(rows)


def compute_objects_digest(objects: AnnotatedObjects) -> str:
    """Return a digest of the files, frames, boxes and clips of objects, without their annotations."""
    digest = hashlib.sha256("\n".join(map(str, objects.paths)).encode("utf-8", errors="surrogateescape"))
    frames = [-1 if frame is None else frame for frame in objects.frames]
    digest.update(np.array(frames, np.int64).tobytes())
    digest.update(np.ascontiguousarray(objects.boxes).tobytes())
    clips = tuple(ref.clip for ref in objects.refs)
    digest.update(repr(clips).encode() if any(clips) else b"")
    return digest.hexdigest()


def compute_annotations_digest(data: Dataset, objects: AnnotatedObjects) -> str:
    """Return a digest of objects and of all their annotations."""
    digest = hashlib.sha256(f"{data.names}/{data.mirror}/{data.normalizer}".encode())
    digest.update(compute_objects_digest(objects).encode())
    digest.update(np.ascontiguousarray(objects.xy).tobytes())
    digest.update(np.ascontiguousarray(objects.hidden).tobytes())
    digest.update(repr(sorted(objects.fields.items())).encode())
    return digest.hexdigest()


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:12]
