"""What the learned detectors share: loading their weights, running in small batches, reading the maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints import weights_cache
from selfmark.keypoints.peaks import strongest_peaks
from selfmark.points import Keypoints, concatenate_keypoints

# R2D2 keeps 128 channels at full resolution: 16 images of 256 x 256 pixels take about 1.5 GB at its widest.
IMAGES_PER_PASS = 16

Network = TypeVar("Network", bound=nn.Module)


def load_network(network: Network, settings: FirstKeypoints, device: torch.device) -> Network:
    """Fill `network` with the weights the settings name, to the last tensor, ready to be run."""
    path = weights_cache.find_weights(settings.detector, settings.weights)
    state = weights_cache.load_weights(path, settings.detector)
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split(":", 1)[-1].split())[:120]
        raise InputError(
            f"{path} does not hold weights of the {settings.detector} network: {reason}"
        ) from error
    network.eval().requires_grad_(False).to(device)
    if device.type == "cpu":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # 1.7 times as fast there
    return network


@dataclass(frozen=True)
class LearnedDetector:
    """A network that scores and describes every pixel, and the rule that picks points from its maps.

    network:   RGB images [B, 3, H, W] in 0..1 -> score [B, H, W] and descriptors [B, D, H/stride, W/stride]
    stride:    image pixels per descriptor cell
    multiple:  the network wants sides that are a multiple of this
    threshold: least score; -inf where the score's scale means nothing to the user
    """

    name: str
    network: nn.Module
    stride: int
    multiple: int
    threshold: float
    nms_radius: int
    max_points: int
    device: torch.device

    @torch.no_grad()
    def detect(self, images: torch.Tensor) -> Keypoints:
        """Points of a batch of images (uint8 [B, 3, H, W]), on the detector's device."""
        parts = []
        for start in range(0, len(images), IMAGES_PER_PASS):
            found = self._detect_few(images[start : start + IMAGES_PER_PASS])
            parts.append(Keypoints(found.xy, found.image_index + start, found.score, found.descriptor))
        return concatenate_keypoints(parts)

    def _detect_few(self, images: torch.Tensor) -> Keypoints:
        height, width = images.shape[-2:]
        rgb = images.to(self.device, torch.float32) / 255.0
        # The edge is repeated, because a border of zeros would be a corner in every image.
        rgb = F.pad(rgb, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        score, descriptors = self.network(rgb)
        return strongest_peaks(
            score[:, :height, :width],
            descriptors,
            self.stride,
            self.nms_radius,
            self.threshold,
            self.max_points,
        )
