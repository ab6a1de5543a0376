"""The one contract of all first-keypoint detectors, and the door through which they are made."""

from __future__ import annotations

from typing import Protocol

import torch

from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints.alike import alike
from selfmark.keypoints.opencv_detectors import orb, sift
from selfmark.keypoints.r2d2 import r2d2
from selfmark.keypoints.selfmark_detector import selfmark
from selfmark.keypoints.superpoint import superpoint
from selfmark.points import Keypoints


class KeypointDetector(Protocol):
    """Finds generic keypoints, at most `max_points` of the settings in each image."""

    @property
    def name(self) -> str: ...

    def detect(self, images: torch.Tensor) -> Keypoints:
        """Points of images given as uint8 [B, 3, H, W] RGB.

        `xy` counts in pixels of these images, `image_index` runs over 0..B-1 and never falls, the points of
        an image come best first, and `descriptor` is [P, D] float32.
        """
        ...


def create_detector(settings: FirstKeypoints, device: torch.device) -> KeypointDetector:
    """The detector the settings name, with its weights loaded."""
    match settings.detector:
        case "selfmark":
            return selfmark(settings, device)
        case "sift":
            return sift(settings, device)
        case "orb":
            return orb(settings, device)
        case "superpoint":
            return superpoint(settings, device)
        case "r2d2":
            return r2d2(settings, device)
        case "alike-t" | "alike-n":
            return alike(settings.detector, settings, device)
        case "file":
            raise InputError(
                "keypoints.detector 'file' detects nothing: it reads keypoints.points_file; "
                "choose a detector to find points in new images"
            )
