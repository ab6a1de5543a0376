"""Labeled images as network pixels with their annotated points, for measurements without a trained run."""

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

    Attributes:
        truth: The annotated objects.
        store: The images.
        xy: [N, L, 2] annotated points in network pixels.
    """

    truth: AnnotatedObjects
    store: ImageStore
    xy: FloatArray

    def nearest(
        self, points: FloatArray, image: npt.NDArray[np.int64], config: Config
    ) -> npt.NDArray[np.int64]:
        """Return the annotated point nearest to each point [P, 2] of image [P]; -1 if none is near enough."""
        radius = precision_radius(self.truth, self.store.regions, default_normalizer(self.truth), config)
        offset = points[:, None].astype(np.float64) - self.xy[image]
        distance = np.hypot(offset[..., 0], offset[..., 1])
        distance = np.where(self.truth.visible[image], distance, np.inf)
        nearest = distance.argmin(axis=1)
        is_near = distance[np.arange(len(nearest)), nearest] <= radius[image]
        chosen: npt.NDArray[np.int64] = np.where(is_near, nearest, -1).astype(np.int64)
        return chosen


def load_labeled_images(truth: AnnotatedObjects, config: Config, folder: Path | None) -> LabeledImages:
    """Load the images of annotated objects; unreadable images are left out.

    Args:
        truth: The objects.
        config: Settings of images and of the memory they may take.
        folder: Folder for an image store that does not fit in memory.
    """
    store = load_store(truth.refs, config.images, config.runtime.store_gigabytes, folder)
    readable = set(store.refs)
    truth = truth.select([row for row, ref in enumerate(truth.refs) if ref in readable])
    return LabeledImages(truth, store, to_network(truth.xy, store.regions[:, None], config.images.size))


def precision_radius(truth: AnnotatedObjects, regions: FloatArray, spec: str, config: Config) -> FloatArray:
    """Return the radius [N] in which a keypoint counts as correct, in network pixels.

    It is a fraction of the inter-ocular distance or, for objects without eyes, of the normalizer `spec`.
    """
    size = config.images.size
    try:
        length = normalizer_in_network_pixels(truth, regions, "inter_ocular", size)
    except InputError:
        length = normalizer_in_network_pixels(truth, regions, spec, size)
    return config.evaluation.precision_fraction * length
