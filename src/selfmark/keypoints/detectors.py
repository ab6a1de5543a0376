"""Define the interface of the generic keypoint detectors, and create a detector by its name."""

from __future__ import annotations

from typing import Protocol

import torch

from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints.alike import create_alike
from selfmark.keypoints.opencv_detectors import create_orb, create_sift
from selfmark.keypoints.r2d2 import create_r2d2
from selfmark.keypoints.selfmark_detector import create_selfmark_detector
from selfmark.keypoints.superpoint import create_superpoint
from selfmark.points import Keypoints


class KeypointDetector(Protocol):
    """Detector of generic keypoints, at most `FirstKeypoints.max_points` per image."""

    @property
    def name(self) -> str:
        """Return the name of the detector in the settings."""
        ...

    def detect(self, images: torch.Tensor) -> Keypoints:
        """Find keypoints in RGB images [B, 3, H, W] uint8.

        Returns:
            Keypoints with `xy` in pixels of these images, `image_index` in 0..B-1 and `descriptor` [P, D]
            float32. They are sorted by image, and the best points of an image come first.
        """
        ...


def create_detector(settings: FirstKeypoints, device: torch.device) -> KeypointDetector:
    """Create the detector named in the settings and load its weights."""
    match settings.detector:
        case "selfmark":
            return create_selfmark_detector(settings, device)
        case "sift":
            return create_sift(settings, device)
        case "orb":
            return create_orb(settings, device)
        case "superpoint":
            return create_superpoint(settings, device)
        case "r2d2":
            return create_r2d2(settings, device)
        case "alike-t" | "alike-n":
            return create_alike(settings.detector, settings, device)
        case "file":
            raise InputError(
                "keypoints.detector 'file' only reads keypoints.points_file; choose another detector to find "
                "keypoints in new images"
            )
