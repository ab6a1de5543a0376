"""Labeled images as the network sees them, with their annotated points: for what needs no detector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config
from selfmark.errors import InputError
from selfmark.evaluation.labeled_run import normalizer_in_network_pixels
from selfmark.evaluation.normalizers import default_normalizer
from selfmark.images.crop import to_network
from selfmark.images.store import ImageStore, load_store
from selfmark.points import FloatArray


@dataclass(frozen=True)
class LabeledImages:
    """N images and their annotated points.

    truth: the objects
    store: the images
    xy:    [N, L, 2] annotated points in network pixels
    """

    truth: AnnotatedObjects
    store: ImageStore
    xy: FloatArray

    def nearest(
        self, points: FloatArray, image: npt.NDArray[np.int64], config: Config
    ) -> npt.NDArray[np.int64]:
        """The annotated point within the radius of precision of each point [P, 2], [P]; -1: there is none."""
        radius = precision_radius(self.truth, self.store.regions, default_normalizer(self.truth), config)
        offset = points[:, None].astype(np.float64) - self.xy[image]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        distance = np.where(self.truth.visible[image], distance, np.inf)
        found = distance.argmin(axis=1)
        near = distance[np.arange(len(found)), found] <= radius[image]
        chosen: npt.NDArray[np.int64] = np.where(near, found, -1).astype(np.int64)
        return chosen


def load_labeled_images(truth: AnnotatedObjects, config: Config, folder: Path | None) -> LabeledImages:
    """Load the images of labeled objects; those that cannot be read are left out.

    Args:
        truth: the objects.
        config: of images, and how many of them fit into memory.
        folder: where a store too large for memory may lie.
    """
    store = load_store(truth.refs, config.images, config.runtime.store_gigabytes, folder)
    used = set(store.refs)
    truth = truth.select([row for row, ref in enumerate(truth.refs) if ref in used])
    return LabeledImages(truth, store, to_network(truth.xy, store.regions[:, None], config.images.size))


def precision_radius(truth: AnnotatedObjects, regions: FloatArray, spec: str, config: Config) -> FloatArray:
    """A tenth of the inter-ocular distance; for objects without eyes, of whatever errors are divided by."""
    size = config.images.size
    try:
        length = normalizer_in_network_pixels(truth, regions, "inter_ocular", size)
    except InputError:
        length = normalizer_in_network_pixels(truth, regions, spec, size)
    return config.evaluation.precision_fraction * length
