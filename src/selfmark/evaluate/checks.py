"""The checks that need no labels, on a sample of images: what a user without annotations can know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from selfmark.config import Config
from selfmark.detector import Detector
from selfmark.evaluate.consistency import deformation_errors, detection_rates, mirror_errors, separation
from selfmark.evaluate.protocol import Figures, numbers
from selfmark.evaluate.stage1 import Stage1, stage1_landmarks
from selfmark.evaluate.trust import judge
from selfmark.images.sources import ImageRef
from selfmark.images.store import load_store


def checks_without_labels(
    detector: Detector, stage1: Stage1, refs: Sequence[ImageRef], config: Config
) -> Figures:
    """Stability, symmetry, detection and separation of each landmark, and how far to trust it.

    At most `evaluation.look_at` images are looked at, evenly spaced among `refs`.
    """
    settings, batch = config.evaluation, config.runtime.predict_batch
    spaced = np.unique(np.linspace(0, len(refs) - 1, min(settings.look_at, len(refs))).astype(int))
    store = load_store([refs[row] for row in spaced], config.images, float("inf"), None)
    generator = torch.Generator(detector.device).manual_seed(settings.seed)
    deformed = deformation_errors(
        detector, store.pixels, settings.deformations, config.augment, generator, batch
    )
    score = torch.cat([detector.locate(part).score for part in torch.split(store.pixels, batch)])
    peaks = score.cpu().numpy().astype(np.float64)
    found = stage1_landmarks(stage1, store.pixels)
    result = judge(
        deformed,
        mirror_errors(detector, store.pixels, batch) if config.flip.train else None,
        found.found,
        separation(found.descriptor, found.label, stage1.centroids.cpu().numpy()),
        peaks,
        settings.near,
    )
    return {
        "images": len(store),
        "deformation": numbers(result.deformation),
        "stable": numbers(result.stable),
        "symmetric": numbers(result.symmetric),
        "found": numbers(result.found),
        "detected": numbers(detection_rates(peaks, config.heatmaps.threshold)),
        "score": numbers(result.score),
        "separation": numbers(result.separation),
        "trust": numbers(result.trust),
        "order": [int(landmark) for landmark in result.order],
    }
