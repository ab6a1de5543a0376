"""The data sets of a folder, each read once, and the files made of them for `discover` and `evaluate`."""

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
from selfmark.config import Config
from selfmark.errors import InputError
from selfmark.images.crop import crop_regions
from selfmark.paper.datasets import registry
from selfmark.paper.datasets.dataset import Dataset, write_coco_split
from selfmark.paper.datasets.detections import replace_boxes, replace_points
from selfmark.paper.reproduction.experiment import StartPoints
from selfmark.points import FloatArray
from selfmark.run.files import atomic_write
from selfmark.run.locks import exclusive

FOLDERS = {"human36m32": "human36m"}  # data sets that are read from the files of another
_PIXELS = 256  # side of the image that a start's jitter is counted in, whatever the preset's


@dataclass(frozen=True)
class CachedDataset:
    """A data set, and the folder for what is made of it.

    base: as its reader gives it: what landmarks are discovered in
    data: with the points asked for: what errors are measured on
    """

    base: Dataset
    data: Dataset
    folder: Path

    @property
    def fit(self) -> AnnotatedObjects:
        """What regressors are fitted on: the training images, or those set aside for it."""
        return self.data.train if self.data.fit is None else self.data.fit

    def labels(self, seed: int, fit_images: int | None) -> str:
        """Changes whenever errors are measured on, or regressors fitted on, something else."""
        return annotations_digest(self.data, self.data.test) + annotations_digest(
            self.data, sample_objects(self.fit, fit_images, seed)
        )

    def train_file(self) -> Path:
        return self._written("train", self.base, self.base.train)

    def test_file(self) -> Path:
        return self._written("test", self.data, self.data.test)

    def fit_file(self, seed: int, fit_images: int | None) -> Path:
        """The labeled images that regressors are fitted on, all or so many of them."""
        return self._written("fit", self.data, sample_objects(self.fit, fit_images, seed))

    def started(self, start: StartPoints) -> AnnotatedObjects:
        """The training images that have annotated points to start from."""
        if max(start.points) >= len(self.data.names):
            raise InputError(
                f"first keypoints are to be point {max(start.points)} of {self.data.name}, which has "
                f"{len(self.data.names)} points only"
            )
        train = self.data.train
        known = np.any(np.isfinite(train.xy[:, list(start.points)]).all(axis=2), axis=1)
        if not known.any():
            raise InputError(
                f"first keypoints are to be annotated points of {self.data.name}, and none of its "
                f"{len(train)} training images has any"
            )
        return train.select(known)

    def started_train_file(self, start: StartPoints) -> Path:
        """Those images alone: of the others nothing would be learned, and nobody would know."""
        return self._written("started", self.data, self.started(start))

    def start_notes(self, start: StartPoints) -> list[str]:
        here, of = len(self.started(start)), len(self.base.train)
        why = "the others have none of the points that are started from"
        return [f"landmarks are discovered in {here} of {of} training images: {why}"] if here < of else []

    def start_file(self, start: StartPoints, seed: int, config: Config) -> Path:
        """First keypoints of these images as CSV: annotated points, each moved at random."""
        what = f"{start.fingerprint}/{seed}/{config.images}/{annotations_digest(self.data, self.data.train)}/{self._root}"
        folder = self.folder / f"start-{_short(what)}"
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder, wait=True):
            if not (folder / "points.csv").exists():
                self._write_start(start, seed, config, folder / "points.csv")
        return folder / "points.csv"

    def _write_start(self, start: StartPoints, seed: int, config: Config, path: Path) -> None:
        train = self.started(start)
        scale = self._sides(train, config)[:, None, None] / _PIXELS
        rng = np.random.default_rng(seed)
        moved = rng.uniform(-start.jitter, start.jitter, (len(train), len(start.points), 2)) * scale
        points = train.xy[:, list(start.points)] + moved
        with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["image", "x", "y"])
            for row, ref in enumerate(train.refs):
                name = replace(ref, path=self._root / ref.path).name
                known = points[row][np.isfinite(points[row]).all(axis=1)]
                writer.writerows([name, f"{x:.3f}", f"{y:.3f}"] for x, y in known.tolist())

    @property
    def _root(self) -> Path:
        return self.base.root.resolve()

    def _sides(self, train: AnnotatedObjects, config: Config) -> FloatArray:
        """Side [N] of what the network sees of each of the images, in pixels of the original."""
        whole_image = np.isnan(train.boxes).any(axis=1)
        sizes = np.ones((len(train), 2))
        for row in np.flatnonzero(whole_image):
            with Image.open(self.data.root / train.paths[row]) as image:  # the header alone
                sizes[row] = image.size
        sides: FloatArray = crop_regions(sizes, train.boxes, config.images)[:, 2]
        return sides

    def _written(self, name: str, data: Dataset, objects: AnnotatedObjects) -> Path:
        """A COCO file of these objects, written once."""
        # The file names images where they are, so data that was moved needs another.
        folder = self.folder / f"{name}-{_short(f'{annotations_digest(data, objects)}/{self._root}')}"
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder, wait=True):
            if not (folder / "complete").exists():
                write_coco_split(data, objects, folder / "train.json")
                (folder / "complete").touch()
        return folder / "train.json"


class DatasetCache:
    """Data sets below `root`, one folder each called as the data set, and where files are made of them.

    Faces come with five points. Where an experiment needs 68, the points of a detector are read from a file
    beside the data set's folder, e.g. celeba-68.json; boxes of a detector from celeba-boxes.json or .csv.
    """

    def __init__(self, root: Path, output: Path) -> None:
        self.root = root
        self.output = output
        self._read: dict[tuple[str, int | None], CachedDataset] = {}  # reading a large data set takes minutes

    def missing(self, name: str, points: int | None) -> str:
        """One sentence on why a data set cannot be used; empty if it can."""
        try:
            self.hold(name, points)
        except InputError as error:
            return str(error)
        return ""

    def hold(self, name: str, points: int | None = None) -> CachedDataset:
        """A data set, with so many annotated points if that is said."""
        if (name, points) not in self._read:
            base = self._base(name) if points is None else self.hold(name).base
            data = base if points in (None, len(base.names)) else self._with_points(base, name, points)
            self._read[name, points] = CachedDataset(base, data, self.output / name)
        return self._read[name, points]

    # --- what a plan asks, see `plan.Library` ----------------------------------------------------------

    def settings(self, name: str) -> Mapping[str, Any]:
        return self.hold(name).base.settings

    def trained_on(self, name: str) -> str:
        return objects_digest(self.hold(name).base.train)

    def started_from(self, name: str, points: int | None, start: StartPoints) -> str:
        held = self.hold(name, points)
        return annotations_digest(held.data, held.started(start))

    def measured_on(self, name: str, points: int | None, seed: int, fit_images: int | None) -> str:
        return self.hold(name, points).labels(seed, fit_images)

    def _base(self, name: str) -> Dataset:
        folder = self.root / FOLDERS.get(name, name)
        if name not in registry.DATASETS:
            raise InputError(f"this selfmark has no reader of the data set '{name}'")
        if not folder.is_dir():
            raise InputError(
                f"the data set {registry.DATASETS[name].title} was looked for in {folder}, which is not "
                f"there; 'selfmark datasets check {name} {folder}' says what must be in it"
            )
        data = registry.read_dataset(name, folder)
        boxes = self._beside(name, "boxes", (".json", ".csv"))
        return data if boxes is None else replace_boxes(data, boxes)

    def _with_points(self, base: Dataset, name: str, points: int) -> Dataset:
        suffixes, folder = (".json", ".csv", ".npz", ".npy"), FOLDERS.get(name, name)
        file = self._beside(name, str(points), suffixes)
        if file is None:
            raise InputError(
                f"{self.root / folder} has {len(base.names)} annotated points where {points} are needed; put "
                f"those of a detector beside it as {folder}-{points}, with one of {', '.join(suffixes)}"
            )
        data = replace_points(base, file)
        if len(data.names) != points:
            raise InputError(f"{file} has {len(data.names)} points of each image, not {points}")
        return data

    def _beside(self, name: str, what: str, suffixes: Sequence[str]) -> Path | None:
        files = (self.root / f"{FOLDERS.get(name, name)}-{what}{suffix}" for suffix in suffixes)
        return next((file for file in files if file.is_file()), None)


def sample_objects(objects: AnnotatedObjects, count: int | None, seed: int) -> AnnotatedObjects:
    """So many of the objects, drawn at random, in their order; all where there are no more."""
    if count is None or count >= len(objects):
        return objects
    rows = np.sort(np.random.default_rng(seed).choice(len(objects), count, replace=False))
    return objects.select(rows)


def objects_digest(objects: AnnotatedObjects) -> str:
    """A digest of which objects these are: files, frames, boxes, films."""
    digest = hashlib.sha256("\n".join(map(str, objects.paths)).encode("utf-8", errors="surrogateescape"))
    frames = [-1 if frame is None else frame for frame in objects.frames]
    digest.update(np.array(frames, np.int64).tobytes())
    digest.update(np.ascontiguousarray(objects.boxes).tobytes())
    clips = tuple(ref.clip for ref in objects.refs)
    digest.update(repr(clips).encode() if any(clips) else b"")
    return digest.hexdigest()


def annotations_digest(data: Dataset, objects: AnnotatedObjects) -> str:
    """A digest of objects and all that is annotated of them."""
    digest = hashlib.sha256(f"{data.names}/{data.mirror}/{data.normalizer}".encode())
    digest.update(objects_digest(objects).encode())
    digest.update(np.ascontiguousarray(objects.xy).tobytes())
    digest.update(np.ascontiguousarray(objects.hidden).tobytes())
    digest.update(repr(sorted(objects.fields.items())).encode())
    return digest.hexdigest()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:12]
