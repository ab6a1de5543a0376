"""Run learned keypoint detectors: load weights, compute score maps in small batches, find their peaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from selfmark import weights_cache
from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints.memory_limit import limit_images
from selfmark.keypoints.peaks import find_strongest_peaks
from selfmark.points import Keypoints, concatenate_keypoints

IMAGES_PER_PASS = 16  # maximum; fewer if the images are large

Network = TypeVar("Network", bound=nn.Module)


def load_network(network: Network, settings: FirstKeypoints, device: torch.device) -> Network:
    """Load the weights named in the settings into `network` and prepare it for inference.

    Raises:
        InputError: if the weights are missing or do not match the network exactly.
    """
    path = weights_cache.find_weights(settings.detector, settings.weights)
    state = weights_cache.load_weights(path, settings.detector)
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split(":", 1)[-1].split())[:120]
        raise InputError(
            f"{path} does not contain weights of the {settings.detector} network: {reason}"
        ) from error
    network.eval().requires_grad_(False).to(device)
    if device.type == "cpu":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 1.7 times faster on CPU
    return network


@dataclass(frozen=True)
class LearnedDetector:
    """Keypoint detector: a network that computes score and descriptor maps, and limits for selecting points.

    network:    maps RGB images [B, 3, H, W] in 0..1 to score [B, H, W] and descriptors
                [B, D, H/stride, W/stride]
    stride:     image pixels per descriptor cell
    multiple:   H and W must be multiples of this many pixels; other images are padded
    threshold:  minimum score; -inf if the score is not a probability
    nms_radius: radius of the non-maximum suppression, in pixels
    max_points: maximum number of points per image
    pixel_bytes: memory that the network takes per image pixel, measured; the default holds for R2D2 and
                ALIKE, which compute a descriptor for every pixel
    """

    name: str
    network: nn.Module
    stride: int
    multiple: int
    threshold: float
    nms_radius: int
    max_points: int
    device: torch.device
    pixel_bytes: int = 1_800

    @torch.no_grad()
    def detect(self, images: torch.Tensor) -> Keypoints:
        """Find keypoints in images [B, 3, H, W] uint8; the result is on the detector's device."""
        parts = []
        height, width = images.shape[-2:]
        batch = limit_images(IMAGES_PER_PASS, height * width * self.pixel_bytes, self.device)
        for start in range(0, len(images), batch):
            part = self._detect_in_one_pass(images[start : start + batch])
            parts.append(Keypoints(part.xy, part.image_index + start, part.score, part.descriptor))
        return concatenate_keypoints(parts)

    def _detect_in_one_pass(self, images: torch.Tensor) -> Keypoints:
        height, width = images.shape[-2:]
        rgb = images.to(self.device, torch.float32) / 255.0
        # Replicate the edge: zero padding would create a corner, and detectors take corners for keypoints.
        rgb = F.pad(rgb, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        score, descriptors = self.network(rgb)
        return find_strongest_peaks(
            score[:, :height, :width],
            descriptors,
            self.stride,
            self.nms_radius,
            self.threshold,
            self.max_points,
        )
