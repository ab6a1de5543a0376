"""Detect keypoints with SuperPoint and selfmark's own weights.

The weights were trained on synthetic and public-domain images. They are part of the package and have its
license. The scripts that train them are in the folder `training/keypoints` of the repository.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

import torch

from selfmark.config import FirstKeypoints
from selfmark.keypoints.learned_detector import LearnedDetector
from selfmark.keypoints.superpoint import create_superpoint

WEIGHTS = resources.files("selfmark.keypoints") / "selfmark.safetensors"


def create_selfmark_detector(settings: FirstKeypoints, device: torch.device) -> LearnedDetector:
    """Create the detector with the weights in `settings.weights`, or by default with the packaged weights.

    `settings.threshold` is a probability, as for SuperPoint.
    """
    with resources.as_file(WEIGHTS) as packaged:
        with_weights = replace(settings, weights=settings.weights or str(packaged))
        return replace(create_superpoint(with_weights, device), name="selfmark")
