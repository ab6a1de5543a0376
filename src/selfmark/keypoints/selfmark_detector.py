"""selfmark's own first keypoints: SuperPoint's network, trained anew on images free of any rights.

The weights come with the package, under its license; `training/keypoints` in the repository makes them.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources

import torch

from selfmark.config import FirstKeypoints
from selfmark.keypoints.learned_detector import LearnedDetector
from selfmark.keypoints.superpoint import superpoint

WEIGHTS = resources.files("selfmark.keypoints") / "selfmark.safetensors"


def selfmark(settings: FirstKeypoints, device: torch.device) -> LearnedDetector:
    """The detector with its packaged weights, or those `settings.weights` names.

    `settings.threshold` is a probability of its softmax, as SuperPoint's.
    """
    with resources.as_file(WEIGHTS) as packaged:
        named = replace(settings, weights=settings.weights or str(packaged))
        return replace(superpoint(named, device), name="selfmark")
