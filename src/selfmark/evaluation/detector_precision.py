"""Precision of generic keypoint detectors: the percentage of keypoints that lie on an annotated point."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, FirstKeypoints, section_from_dict
from selfmark.errors import InputError
from selfmark.evaluation.labeled_images import load_labeled_images, precision_radius
from selfmark.evaluation.labeled_run import LabeledRun
from selfmark.evaluation.precision import keypoint_precision
from selfmark.evaluation.protocol import Metrics
from selfmark.images.crop import to_network
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.points import FloatArray, Keypoints
from selfmark.run.folder import Run


def detector_precisions(
    truth: AnnotatedObjects,
    spec: str,
    detectors: Sequence[str],
    config: Config,
    device: torch.device,
    folder: Path | None,
) -> Metrics:
    """Measure the percentage of each detector's keypoints near an annotated point; no run is needed.

    Args:
        truth: Annotated objects.
        spec: Normalizer that sets the radius within which a keypoint is correct, for objects whose eyes are
            not annotated; see `normalizers`.
        detectors: Names, as in keypoints.detector.
        config: Settings of images, keypoints and evaluation.
        device: Device for detection.
        folder: Folder for an image store that does not fit in memory.
    """
    labeled = load_labeled_images(truth, config, folder)
    store = labeled.store
    radius = precision_radius(labeled.truth, store.regions, spec, config)
    precisions: Metrics = {}
    for name in detectors:
        keypoints = detect_first_keypoints(
            store.pixels,
            store.bounds,
            settings_for_detector(name, config),
            device,
            config.runtime.predict_batch,
        )
        precisions[name] = _percent(keypoints, labeled.xy, labeled.truth, radius)
    return precisions


def settings_for_detector(name: str, config: Config) -> FirstKeypoints:
    """Return settings for a detector with the image size, threshold, NMS radius and cap of `config`."""
    shared = {
        key: getattr(config.keypoints, key) for key in ("image_size", "threshold", "nms_radius", "max_points")
    }
    return section_from_dict(FirstKeypoints, {**shared, "detector": name}, "--detectors")


def run_keypoint_precision(run: Run, train: LabeledRun, spec: str, config: Config) -> float | None:
    """Measure the precision of a run's first keypoints; None if none of its images is labeled."""
    skipped = {event["name"] for event in run.events() if event["event"] == "skipped"}
    used = [ref for ref in run.refs() if ref.name not in skipped]
    row_of = {(ref.path.resolve(), ref.frame, ref.box): row for row, ref in enumerate(train.truth.refs)}
    labeled_row = np.array([row_of.get((ref.path.resolve(), ref.frame, ref.box), -1) for ref in used])
    if not (labeled_row >= 0).any():
        return None
    points = run.load_or_compute_keypoints("first", _raise_missing)
    row = labeled_row[points.image_index.numpy()]
    is_labeled = torch.from_numpy(row >= 0)
    keypoints = Keypoints(points.xy[is_labeled], torch.from_numpy(row[row >= 0]), points.score[is_labeled])
    regions = train.predictions.regions
    truth = to_network(train.truth.xy, regions[:, None], config.images.size)
    radius = precision_radius(train.truth, regions, spec, config)
    return _percent(keypoints, truth, train.truth, radius)


def _percent(keypoints: Keypoints, xy: FloatArray, truth: AnnotatedObjects, radius: FloatArray) -> float:
    return 100 * keypoint_precision(
        keypoints.xy.cpu().numpy(), keypoints.image_index.cpu().numpy(), xy, truth.visible, radius
    )


def _raise_missing() -> Any:
    raise InputError("the first keypoints of this run are missing (points/first.safetensors)")
