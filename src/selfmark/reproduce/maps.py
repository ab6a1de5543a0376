"""Maps of descriptors: t-SNE of points of test images, each with the annotated point it lies on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.evaluate.shown import Shown
from selfmark.evaluate.stage1 import Stage1, stage1_landmarks
from selfmark.keypoints.first import first_keypoints
from selfmark.points import FloatArray
from selfmark.report.tsne import tsne
from selfmark.reproduce.metrics import Figures
from selfmark.reproduce.study import Study, show_some, spread
from selfmark.run import Run

IMAGES, POINTS = 100, 1000  # shown at most


def of_keypoints(study: Study) -> Figures:
    """Of the generic detector that a training with these settings would start from."""
    shown = show_some(study, IMAGES)
    config = study.config
    found = first_keypoints(
        shown.store.pixels, shown.store.bounds, config.keypoints, study.device, config.runtime.predict_batch
    )
    if found.descriptor is None:
        raise InputError(f"the points of '{config.keypoints.detector}' have no descriptors to make a map of")
    image, descriptor = found.image_index.cpu().numpy(), found.descriptor.cpu().numpy()
    return _map(study, shown, descriptor, found.xy.cpu().numpy(), image)


def of_stage1(study: Study) -> Figures:
    """Of the landmarks Stage 1 finds."""
    shown = show_some(study, IMAGES)
    found = stage1_landmarks(Stage1.load(Run.open(study.trained), study.device), shown.store.pixels)
    return _map(study, shown, found.descriptor, found.xy[found.image, found.label], found.image)


def _map(
    study: Study, shown: Shown, descriptor: FloatArray, xy: FloatArray, image: npt.NDArray[np.int64]
) -> Figures:
    if not len(descriptor):
        raise InputError(f"no points were found in {len(shown.store)} images of {study.test}")
    rows = spread(len(descriptor), POINTS)
    places = tsne(descriptor[rows])
    near = shown.nearest(xy[rows], image[rows], study.config)
    return {"map": [[x, y, point] for (x, y), point in zip(places.tolist(), near.tolist(), strict=True)]}
