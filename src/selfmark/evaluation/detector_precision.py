"""Measure the precision of keypoint detectors: the percentage of keypoints near an annotated point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, FirstKeypoints, section_from_dict
from selfmark.errors import InputError
from selfmark.evaluation.labeled_images import compute_precision_radius, load_labeled_images
from selfmark.evaluation.labeled_run import LabeledRun
from selfmark.evaluation.precision import keypoint_precision
from selfmark.evaluation.protocol import Metrics
from selfmark.images.crop import to_network
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.points import FloatArray, Keypoints
from selfmark.run.folder import Run


def measure_detector_precisions(
    truth: AnnotatedObjects,
    spec: str,
    detectors: Sequence[str],
    config: Config,
    device: torch.device,
    folder: Path | None,
) -> Metrics:
    """Measure the percentage of each detector's keypoints near an annotated point.

    Args:
        truth: Annotated objects.
        spec: Normalizer, see `compute_precision_radius`.
        detectors: Names of detectors, see the setting `keypoints.detector`.
        config: Settings of images, keypoints and evaluation.
        device: Device for detection.
        folder: Folder for the decoded images if they do not fit in memory; None if they are known to fit.

    Returns:
        Mapping from the name of a detector to the percentage; NaN if the detector finds no keypoint in the
        labeled images.
    """
    labeled = load_labeled_images(truth, config, folder)
    store = labeled.store
    radius = compute_precision_radius(labeled.truth, store.regions, spec, config)
    precisions: Metrics = {}
    for name in detectors:
        keypoints = detect_first_keypoints(
            store.pixels,
            store.bounds,
            build_detector_settings(name, config),
            device,
            config.runtime.predict_batch,
        )
        precisions[name] = _measure_percentage(keypoints, labeled.xy, labeled.truth, radius)
    return precisions


def build_detector_settings(name: str, config: Config) -> FirstKeypoints:
    """Return settings for a detector.

    Image size, threshold, NMS radius and maximum number of points are those of `config`.

    Raises:
        InputError: If there is no detector with this name.
    """
    shared = {
        key: getattr(config.keypoints, key) for key in ("image_size", "threshold", "nms_radius", "max_points")
    }
    return section_from_dict(FirstKeypoints, {**shared, "detector": name}, "--detectors")


def measure_first_keypoint_precision(run: Run, train: LabeledRun, spec: str, config: Config) -> float | None:
    """Measure the precision of a run's first keypoints, in percent.

    The first keypoints are those that a generic keypoint detector found, after outliers were removed. Stage 1
    starts from them.

    Args:
        run: The run.
        train: Labeled images; those that the run was trained on are used.
        spec: Normalizer, see `compute_precision_radius`.
        config: Settings of images and evaluation.

    Returns:
        The precision; None if no training image of the run is labeled, NaN if the labeled ones have no
        keypoints.
    """
    # The image index of a keypoint counts only images that could be read.
    skipped = {event["name"] for event in run.events() if event["event"] == "skipped"}
    used = [ref for ref in run.refs() if ref.name not in skipped]
    label_rows = {(ref.path.resolve(), ref.frame, ref.box): row for row, ref in enumerate(train.truth.refs)}
    # `row_of_image` maps each image to its row of labels, or to -1 if the image has no labels.
    row_of_image = np.array([label_rows.get((ref.path.resolve(), ref.frame, ref.box), -1) for ref in used])
    if not (row_of_image >= 0).any():
        return None
    points = run.load_or_compute_keypoints("first", _raise_missing)
    row = row_of_image[points.image_index.numpy()]
    is_labeled = torch.from_numpy(row >= 0)
    keypoints = Keypoints(points.xy[is_labeled], torch.from_numpy(row[row >= 0]), points.score[is_labeled])
    regions = train.predictions.regions
    truth = to_network(train.truth.xy, regions[:, None], config.images.size)
    radius = compute_precision_radius(train.truth, regions, spec, config)
    return _measure_percentage(keypoints, truth, train.truth, radius)


def _measure_percentage(
    keypoints: Keypoints, xy: FloatArray, truth: AnnotatedObjects, radius: FloatArray
) -> float:
    """Return the precision in percent; `xy` are the points of `truth` in network pixels."""
    return 100 * keypoint_precision(
        keypoints.xy.cpu().numpy(), keypoints.image_index.cpu().numpy(), xy, truth.visible, radius
    )


def _raise_missing() -> Any:
    raise InputError("the first keypoints of this run are missing (points/first.safetensors)")
