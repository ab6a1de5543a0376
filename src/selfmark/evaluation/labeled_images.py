"""Load labeled images and their annotated points in network pixels, for measurements without a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config
from selfmark.errors import InputError
from selfmark.evaluation.labeled_run import measure_in_network_pixels
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.images.crop import to_network
from selfmark.images.store import ImageStore, load_store
from selfmark.points import FloatArray


@dataclass(frozen=True)
class LabeledImages:
    """N images and their annotated points.

    Attributes:
        truth: The N annotated objects.
        store: The N images.
        xy: [N, L, 2] annotated points in network pixels.
    """

    truth: AnnotatedObjects
    store: ImageStore
    xy: FloatArray

    def find_nearest(
        self, points: FloatArray, image: npt.NDArray[np.int64], config: Config
    ) -> npt.NDArray[np.int64]:
        """Find the annotated point that is nearest to each of P points.

        Args:
            points: [P, 2] network pixels.
            image: [P] index of the image of each point.
            config: Settings of images and evaluation, see `compute_precision_radius`.

        Returns:
            [P] index of the annotated point; -1 if none is within the precision radius.
        """
        radius = compute_precision_radius(
            self.truth, self.store.regions, choose_normalizer(self.truth), config
        )
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
        truth: The annotated objects.
        config: Settings of images and of the memory that they may take.
        folder: Folder for the decoded images if they do not fit in memory; None if they are known to fit.
    """
    store = load_store(truth.refs, config.images, config.runtime.store_gigabytes, folder)
    readable = set(store.refs)
    truth = truth.select([row for row, ref in enumerate(truth.refs) if ref in readable])
    return LabeledImages(truth, store, to_network(truth.xy, store.regions[:, None], config.images.size))


def compute_precision_radius(
    truth: AnnotatedObjects, regions: FloatArray, spec: str, config: Config
) -> FloatArray:
    """Return the radius [N] within which a keypoint counts as correct, in network pixels.

    The radius is a fraction of the inter-ocular distance. If this distance cannot be measured for one of the
    objects, the radius of every object is a fraction of the normalizer `spec` instead.

    Args:
        truth: N annotated objects.
        regions: [N, 4] x, y, w, h of the network images in the originals.
        spec: The normalizer, see `normalizers`.
        config: Settings of images and evaluation.
    """
    size = config.images.size
    try:
        length = measure_in_network_pixels(truth, regions, "inter_ocular", size)
    except InputError:
        length = measure_in_network_pixels(truth, regions, spec, size)
    return config.evaluation.precision_fraction * length
