"""Compute t-SNE maps of the descriptors of points in test images, and the annotated point near each point."""

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
from selfmark.paper.reproduction.table_metrics import Results
from selfmark.points import FloatArray
from selfmark.report.embedding import tsne
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

MAX_IMAGES, MAX_POINTS = 100, 1000


def map_keypoints(task: MeasurementTask) -> Results:
    """Map the descriptors of the first keypoints, from which a training would start."""
    images = load_image_sample(task, MAX_IMAGES)
    config = task.config
    keypoints = detect_first_keypoints(
        images.store.pixels, images.store.bounds, config.keypoints, task.device, config.runtime.predict_batch
    )
    if keypoints.descriptor is None:
        raise InputError(f"the keypoint detector '{config.keypoints.detector}' has no descriptors to map")
    image_index, descriptor = keypoints.image_index.cpu().numpy(), keypoints.descriptor.cpu().numpy()
    return _compute_map(task, images, descriptor, keypoints.xy.cpu().numpy(), image_index)


def map_stage1_landmarks(task: MeasurementTask) -> Results:
    """Map the descriptors of the landmarks that Stage 1 finds."""
    images = load_image_sample(task, MAX_IMAGES)
    stage1 = Stage1.load(Run.open(task.run_folder), task.device)
    landmarks = find_stage1_landmarks(stage1, images.store.pixels)
    xy = landmarks.xy[landmarks.image, landmarks.label]
    return _compute_map(task, images, landmarks.descriptor, xy, landmarks.image)


def _compute_map(
    task: MeasurementTask,
    images: LabeledImages,
    descriptor: FloatArray,
    xy: FloatArray,
    image_index: npt.NDArray[np.int64],
) -> Results:
    """Return the t-SNE map of points: for each, x and y in the map and the annotated point that it lies on.

    Args:
        task: Inputs of the measurement.
        images: Images with their annotations.
        descriptor: [P, D] descriptors of the points.
        xy: [P, 2] places of the points, in network pixels.
        image_index: [P] image of each point.

    Returns:
        "map": list of [x, y, index of the annotated point]; the index is -1 if there is none.
    """
    if not len(descriptor):
        raise InputError(f"no points were found in the {len(images.store)} test images of {task.test}")
    rows = evenly_spaced(len(descriptor), MAX_POINTS)
    projected = tsne(descriptor[rows]).tolist()
    nearest = images.find_nearest(xy[rows], image_index[rows], task.config).tolist()
    return {"map": [[x, y, point] for (x, y), point in zip(projected, nearest, strict=True)]}
