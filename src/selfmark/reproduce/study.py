"""What a measurement works on: labelled images, a run, the settings; and images loaded with their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from selfmark.config import Config
from selfmark.errors import InputError
from selfmark.evaluate.detectors import precision_radius
from selfmark.evaluate.labels import GroundTruth, read_ground_truth
from selfmark.evaluate.normalise import default_spec
from selfmark.images.crop import to_network
from selfmark.images.sources import collect
from selfmark.images.store import ImageStore, load_store
from selfmark.points import FloatArray


@dataclass(frozen=True)
class Study:
    """One measurement.

    run:       folder of the training; None where nothing is trained
    config:    its settings, with those of the evaluation
    test:      COCO file of the images errors are measured on
    fit:       COCO file of the images regressors are fitted on
    by:        annotation fields asked for
    detectors: generic keypoint detectors asked for
    folder:    where pictures go, and a store too large for memory
    """

    run: Path | None
    config: Config
    test: Path
    fit: Path
    by: tuple[str, ...]
    detectors: tuple[str, ...]
    folder: Path
    device: torch.device

    @property
    def trained(self) -> Path:
        if self.run is None:
            raise ValueError("this measurement needs a training")
        return self.run


@dataclass(frozen=True)
class Shown:
    """N images as the network sees them and their annotated points.

    truth: the objects
    store: the images
    xy:    [N, L, 2] annotated points in network pixels
    """

    truth: GroundTruth
    store: ImageStore
    xy: FloatArray

    def nearest(
        self, points: FloatArray, image: npt.NDArray[np.int64], config: Config
    ) -> npt.NDArray[np.int64]:
        """The annotated point within the radius of precision of each point [P, 2], [P]; -1: there is none."""
        radius = precision_radius(self.truth, self.store.regions, default_spec(self.truth), config)
        offset = points[:, None].astype(np.float64) - self.xy[image]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        distance = np.where(self.truth.visible[image], distance, np.inf)
        found = distance.argmin(axis=1)
        near = distance[np.arange(len(found)), found] <= radius[image]
        chosen: npt.NDArray[np.int64] = np.where(near, found, -1).astype(np.int64)
        return chosen


def read_truth(path: Path, config: Config) -> GroundTruth:
    """The objects of a COCO file that was made here: it names its own images."""
    return read_ground_truth(path, collect([path]), config.evaluation.least_visibility)


def show(study: Study, path: Path, rows: Sequence[int] | None = None) -> Shown:
    """Load the images of a file, all or these; those that cannot be read are left out."""
    truth = read_truth(path, study.config)
    if rows is not None:
        truth = truth.select(rows)
    store = load_store(truth.refs, study.config.images, study.config.runtime.store_gigabytes, study.folder)
    if not len(store):
        raise InputError(f"none of the {len(truth)} images of {path} could be read")
    used = set(store.refs)
    truth = truth.select([row for row, ref in enumerate(truth.refs) if ref in used])
    return Shown(truth, store, to_network(truth.xy, store.regions[:, None], study.config.images.size))


def spread(count: int, most: int) -> list[int]:
    """At most so many of `count` rows, evenly spaced.

    >>> spread(10, 4), spread(2, 4)
    ([0, 3, 6, 9], [0, 1])
    """
    return [int(row) for row in np.unique(np.linspace(0, count - 1, min(most, count)).astype(int))]
