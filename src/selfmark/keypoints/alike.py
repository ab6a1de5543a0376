"""Implement ALIKE (Zhao et al. 2022), a lightweight network with freely licensed weights.

Four blocks work at 1, 1/2, 1/8 and 1/32 of the resolution. Their features are upsampled to full size and
concatenated, and a 1x1 convolution computes a descriptor and a score for every pixel.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.keypoints.learned_detector import LearnedDetector, load_network

# Channels of the four blocks; the last number is also the length of a descriptor.
CHANNELS: dict[str, tuple[int, int, int, int]] = {
    "alike-t": (8, 16, 32, 64),
    "alike-n": (16, 32, 64, 128),
}
COARSEST = 32  # pixels per cell of the fourth block


class ConvBlock(nn.Module):
    """Two 3x3 convolutions with norm and ReLU; layers have the names of the published state dict."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Create a block from `inputs` to `outputs` channels."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def residual(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output before the last ReLU."""
        inner = self.bn1(self.conv1(x)).relu()
        result: torch.Tensor = self.bn2(self.conv2(inner))
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H, W]."""
        return self.residual(x).relu()


class SkipBlock(ConvBlock):
    """Block with a 1x1 skip connection, which the authors call `downsample`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Create a block from `inputs` to `outputs` channels."""
        super().__init__(inputs, outputs)
        self.downsample = nn.Conv2d(inputs, outputs, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H, W]."""
        result: torch.Tensor = self.residual(x) + self.downsample(x)
        return result.relu()


class Alike(nn.Module):
    """Network of ALIKE."""

    def __init__(self, channels: tuple[int, int, int, int]) -> None:
        """Create the network with these channels in its four blocks."""
        super().__init__()
        c1, c2, c3, c4 = channels
        self.block1, self.block2 = ConvBlock(3, c1), SkipBlock(c1, c2)
        self.block3, self.block4 = SkipBlock(c2, c3), SkipBlock(c3, c4)
        self.conv1, self.conv2, self.conv3, self.conv4 = (
            nn.Conv2d(inputs, c4 // 4, kernel_size=1, bias=False) for inputs in channels
        )
        self.convhead2 = nn.Conv2d(c4, c4 + 1, kernel_size=1, bias=False)

    def forward(self, rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map RGB [B, 3, H, W] in 0..1 to score [B, H, W] and descriptors [B, D, H, W].

        H and W must be multiples of 32.
        """
        full = self.block1(rgb)
        half = self.block2(F.max_pool2d(full, 2))
        eighth = self.block3(F.max_pool2d(half, 4))
        coarsest = self.block4(F.max_pool2d(eighth, 4))

        def upsample(features: torch.Tensor) -> torch.Tensor:
            # The rest of selfmark resizes without aligned corners. These weights were trained with them.
            return F.interpolate(features, rgb.shape[-2:], mode="bilinear", align_corners=True)

        stacked = torch.cat(
            (
                self.conv1(full).relu(),
                upsample(self.conv2(half).relu()),
                upsample(self.conv3(eighth).relu()),
                upsample(self.conv4(coarsest).relu()),
            ),
            dim=1,
        )
        head = self.convhead2(stacked)
        return head[:, -1].sigmoid(), F.normalize(head[:, :-1], dim=1)


def create_alike(
    name: Literal["alike-t", "alike-n"], settings: FirstKeypoints, device: torch.device
) -> LearnedDetector:
    """Create the tiny (t) or normal (n) detector with its published weights.

    The detector selects the points with the highest scores. It ignores `settings.threshold`, because its
    scores are not probabilities.
    """
    return LearnedDetector(
        name=name,
        network=load_network(Alike(CHANNELS[name]), settings, device),
        stride=1,
        multiple=COARSEST,
        threshold=-math.inf,
        nms_radius=settings.nms_radius,
        max_points=settings.max_points,
        device=device,
    )
