"""Maps of descriptors: t-SNE of points of test images, each with the annotated point it lies on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.evaluation.labeled_images import LabeledImages
from selfmark.evaluation.stage1_landmarks import Stage1, find_stage1_landmarks
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.paper.reproduction.measurement_task import (
    MeasurementTask,
    load_image_sample,
)
from selfmark.paper.reproduction.table_metrics import Figures
from selfmark.points import FloatArray
from selfmark.report.embedding import tsne
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

IMAGES, POINTS = 100, 1000  # shown at most


def map_keypoints(study: MeasurementTask) -> Figures:
    """Of the generic detector that a training with these settings would start from."""
    shown = load_image_sample(study, IMAGES)
    config = study.config
    found = detect_first_keypoints(
        shown.store.pixels, shown.store.bounds, config.keypoints, study.device, config.runtime.predict_batch
    )
    if found.descriptor is None:
        raise InputError(f"the points of '{config.keypoints.detector}' have no descriptors to make a map of")
    image, descriptor = found.image_index.cpu().numpy(), found.descriptor.cpu().numpy()
    return _map(study, shown, descriptor, found.xy.cpu().numpy(), image)


def map_stage1_landmarks(study: MeasurementTask) -> Figures:
    """Of the landmarks Stage 1 finds."""
    shown = load_image_sample(study, IMAGES)
    found = find_stage1_landmarks(Stage1.load(Run.open(study.trained), study.device), shown.store.pixels)
    return _map(study, shown, found.descriptor, found.xy[found.image, found.label], found.image)


def _map(
    study: MeasurementTask,
    shown: LabeledImages,
    descriptor: FloatArray,
    xy: FloatArray,
    image: npt.NDArray[np.int64],
) -> Figures:
    if not len(descriptor):
        raise InputError(f"no points were found in {len(shown.store)} images of {study.test}")
    rows = evenly_spaced(len(descriptor), POINTS)
    places = tsne(descriptor[rows])
    near = shown.nearest(xy[rows], image[rows], study.config)
    return {"map": [[x, y, point] for (x, y), point in zip(places.tolist(), near.tolist(), strict=True)]}
