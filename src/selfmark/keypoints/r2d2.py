"""R2D2 (Revaud et al. 2019): keypoints that are both repeatable and reliable to describe.

A fully convolutional net in the manner of L2-Net. Nothing is ever shrunk: where L2-Net would halve the
image, all later kernels are dilated instead, so that every pixel gets its own descriptor.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.keypoints.learned_detector import LearnedDetector, load_network

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

# Kernel, outputs and dilation of the nine convolutions. The three 2 x 2 ones with growing holes stand in for
# one 8 x 8 kernel; their padding of half the dilation keeps them centered.
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
    """RGB [B, 3, H, W] in 0..1 -> score [B, H, W], descriptors [B, 128, H, W].

    `ops` counts its layers as the published state dict does: a norm without learned scale follows every
    convolution but the last, a ReLU follows the norm after 3 x 3 kernels only.
    """

    def __init__(self) -> None:
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
        self.clf = nn.Conv2d(inputs, 2, kernel_size=1)  # reliability: unreliable against reliable
        self.sal = nn.Conv2d(inputs, 1, kernel_size=1)  # repeatability

    def forward(self, rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = rgb.new_tensor(IMAGENET_MEAN)[:, None, None]
        deviation = rgb.new_tensor(IMAGENET_DEVIATION)[:, None, None]
        features = self.ops((rgb - mean) / deviation)
        energy = features.square()
        reliability = self.clf(energy).softmax(dim=1)[:, 1]
        excess = F.softplus(self.sal(energy))[:, 0]
        repeatability = excess / (1 + excess)
        return repeatability * reliability, F.normalize(features, dim=1)


def r2d2(settings: FirstKeypoints, device: torch.device) -> LearnedDetector:
    """The detector with its published weights, at the working size only (no image pyramid).

    Points are taken by rank: the product of its two confidences has a scale of its own, for which a
    threshold chosen with SuperPoint in mind means nothing.
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
