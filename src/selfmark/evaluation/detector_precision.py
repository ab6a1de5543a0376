"""Precision of generic keypoint detectors: how many of their points lie on an annotated one."""

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
from selfmark.evaluation.protocol import Figures
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
) -> Figures:
    """Share of each detector's keypoints near an annotated point, in percent; no run is needed.

    Args:
        truth: annotated images.
        spec: what the radius is a share of where there are no eyes, see `evaluate.normalize`.
        detectors: names, as in keypoints.detector.
        config: of images, keypoints and evaluation.
        device: where detection runs.
        folder: where a store too large for memory may lie.
    """
    shown = load_labeled_images(truth, config, folder)
    store = shown.store
    radius = precision_radius(shown.truth, store.regions, spec, config)
    figures: Figures = {}
    for name in detectors:
        found = detect_first_keypoints(
            store.pixels,
            store.bounds,
            settings_for_detector(name, config),
            device,
            config.runtime.predict_batch,
        )
        figures[name] = _percent(found, shown.xy, shown.truth, radius)
    return figures


def settings_for_detector(name: str, config: Config) -> FirstKeypoints:
    """Settings of another detector that finds points as the run's own did: as many, as far apart."""
    kept = {
        key: getattr(config.keypoints, key) for key in ("image_size", "threshold", "nms_radius", "max_points")
    }
    return section_from_dict(FirstKeypoints, {**kept, "detector": name}, "--detectors")


def run_keypoint_precision(run: Run, train: LabeledRun, spec: str, config: Config) -> float | None:
    """Of the keypoints the run started from, where the images it started on are labeled."""
    skipped = {event["name"] for event in run.events() if event["event"] == "skipped"}
    used = [ref for ref in run.refs() if ref.name not in skipped]
    labeled = {(ref.path.resolve(), ref.frame, ref.box): row for row, ref in enumerate(train.truth.refs)}
    row_of = np.array([labeled.get((ref.path.resolve(), ref.frame, ref.box), -1) for ref in used])
    if not (row_of >= 0).any():
        return None
    points = run.load_or_compute_keypoints("first", _absent)
    owner = row_of[points.image_index.numpy()]
    kept = torch.from_numpy(owner >= 0)
    of_truth = Keypoints(points.xy[kept], torch.from_numpy(owner[owner >= 0]), points.score[kept])
    truth = to_network(train.truth.xy, train.found.regions[:, None], config.images.size)
    radius = precision_radius(train.truth, train.found.regions, spec, config)
    return _percent(of_truth, truth, train.truth, radius)


def _percent(points: Keypoints, xy: FloatArray, truth: AnnotatedObjects, radius: FloatArray) -> float:
    return 100 * keypoint_precision(
        points.xy.cpu().numpy(), points.image_index.cpu().numpy(), xy, truth.visible, radius
    )


def _absent() -> Any:
    raise InputError("this run has lost its first keypoints (points/first.safetensors)")
