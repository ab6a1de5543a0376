"""The label-free checks of a detector on a sample of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from selfmark.config import Config
from selfmark.detector import Detector
from selfmark.evaluation.consistency import (
    cluster_separation,
    deformation_errors,
    detection_rates,
    mirror_errors,
)
from selfmark.evaluation.individuals import check_individuals
from selfmark.evaluation.protocol import Metrics, to_json_list
from selfmark.evaluation.stage1_landmarks import FirstLandmarks, find_stage1_landmarks
from selfmark.evaluation.trust import judge_landmarks
from selfmark.image_ref import ImageRef
from selfmark.images.store import ImageStore, load_store
from selfmark.sampling import evenly_spaced


def run_label_free_checks(
    detector: Detector,
    stage1: FirstLandmarks,
    refs: Sequence[ImageRef],
    config: Config,
    image_store: ImageStore | None = None,
) -> Metrics:
    """Measure the stability, symmetry, detection and separation of each landmark, and rate its trust.

    At most `evaluation.num_samples` images are checked, evenly spaced among `refs`. They are taken from
    `image_store` if it is given, otherwise decoded.
    """
    settings, batch = config.evaluation, config.runtime.predict_batch
    chosen = [refs[row] for row in evenly_spaced(len(refs), settings.num_samples)]
    store = (
        image_store.select(chosen) if image_store else load_store(chosen, config.images, float("inf"), None)
    )
    generator = torch.Generator(detector.device).manual_seed(settings.seed)
    deformed = deformation_errors(
        detector, store.pixels, settings.deformations, config.augment, generator, batch
    )
    located = [detector.locate(part) for part in torch.split(store.pixels, batch)]
    xy, peaks = (torch.cat(column).cpu().numpy().astype(np.float64) for column in zip(*located, strict=True))
    landmarks = find_stage1_landmarks(stage1, store.pixels)
    result = judge_landmarks(
        deformed,
        mirror_errors(detector, store.pixels, batch) if config.flip.train else None,
        landmarks.found,
        cluster_separation(landmarks.descriptor, landmarks.label, stage1.centroids.cpu().numpy()),
        peaks,
        settings.agreement_radius,
    )
    individuals = check_individuals(xy, store.pixels, config, detector.device)
    return {
        "images": len(store),
        "deformation": to_json_list(result.deformation),
        "stable": to_json_list(result.stable),
        "symmetric": to_json_list(result.symmetric),
        "found": to_json_list(result.found),
        "detected": to_json_list(detection_rates(peaks, config.heatmaps.threshold)),
        "score": to_json_list(result.score),
        "separation": to_json_list(result.separation),
        "purity": to_json_list(individuals.purity),
        "constellation": to_json_list(individuals.constellation),
        "unexplained": to_json_list(individuals.unexplained),
        "duplicates": individuals.duplicates,
        "trust": to_json_list(result.trust),
        "order": [int(landmark) for landmark in result.order],
    }
