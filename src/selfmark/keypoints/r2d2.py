"""Implement R2D2 (Revaud et al. 2019): keypoints that are both repeatable and reliable.

The network is similar to L2-Net, but never downsamples. Where L2-Net would halve the resolution, the dilation
of all later kernels is doubled instead, so that every pixel gets its own descriptor.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.features.imagenet_colors import IMAGENET_MEAN, IMAGENET_STD
from selfmark.keypoints.learned_detector import LearnedDetector, load_network

# Kernel, outputs and dilation of the nine convolutions. The three 2x2 convolutions with increasing dilation
# replace one 8x8 kernel; a padding of half the dilation keeps them centered.
LAYERS = (
    (3, 32, 1),
    (3, 32, 1),
    (3, 64, 1),
    (3, 64, 2),
    (3, 128, 2),
    (3, 128, 4),
    (2, 128, 4),
    (2, 128, 8),
    (2, 128, 16),
)


class R2D2(nn.Module):
    """Network of R2D2.

    The layers of `ops` have the same numbers as in the published state dict. Every convolution except the
    last is followed by a norm without learned scale, and every 3x3 convolution also by a ReLU.
    """

    def __init__(self) -> None:
        """Create the network."""
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for kernel, outputs, dilation in LAYERS:
            padding = (kernel - 1) * dilation // 2
            layers.append(nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation))
            layers.append(nn.BatchNorm2d(outputs, affine=False))
            if kernel == 3:
                layers.append(nn.ReLU(inplace=True))
            inputs = outputs
        self.ops = nn.Sequential(*layers[:-1])
        self.clf = nn.Conv2d(inputs, 2, kernel_size=1)  # reliability: channels "unreliable" and "reliable"
        self.sal = nn.Conv2d(inputs, 1, kernel_size=1)  # repeatability

    def forward(self, rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map RGB [B, 3, H, W] in 0..1 to score [B, H, W] and descriptors [B, 128, H, W]."""
        mean = rgb.new_tensor(IMAGENET_MEAN)[:, None, None]
        deviation = rgb.new_tensor(IMAGENET_STD)[:, None, None]
        features = self.ops((rgb - mean) / deviation)
        squared = features.square()
        reliability = self.clf(squared).softmax(dim=1)[:, 1]
        salience = F.softplus(self.sal(squared))[:, 0]
        repeatability = salience / (1 + salience)
        return repeatability * reliability, F.normalize(features, dim=1)


def create_r2d2(settings: FirstKeypoints, device: torch.device) -> LearnedDetector:
    """Create the detector with its published weights.

    The detector runs at one scale, without an image pyramid. It selects the points with the highest scores
    and ignores `settings.threshold`, because a score is not a probability but a product of two confidences.
    """
    return LearnedDetector(
        name="r2d2",
        network=load_network(R2D2(), settings, device),
        stride=1,
        multiple=1,
        threshold=-math.inf,
        nms_radius=settings.nms_radius,
        max_points=settings.max_points,
        device=device,
    )
