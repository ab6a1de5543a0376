"""Implement SuperPoint (DeTone et al. 2018), the detector of the first keypoints in the paper.

The network is a VGG-like encoder with two heads. For every cell of 8x8 pixels, the detector head predicts
which pixel of the cell is a keypoint, or that no pixel is, by a softmax over 64 + 1 channels. The descriptor
head computes one descriptor per cell.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.keypoints.learned_detector import LearnedDetector, load_network

CELL = 8


class SuperPoint(nn.Module):
    """Network of SuperPoint; layers have the names of the published state dict."""

    def __init__(self) -> None:
        """Create the network."""
        super().__init__()

        def conv3(inputs: int, outputs: int) -> nn.Conv2d:
            return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)

        self.conv1a, self.conv1b = conv3(1, 64), conv3(64, 64)
        self.conv2a, self.conv2b = conv3(64, 64), conv3(64, 64)
        self.conv3a, self.conv3b = conv3(64, 128), conv3(128, 128)
        self.conv4a, self.conv4b = conv3(128, 128), conv3(128, 128)
        self.convPa, self.convPb = conv3(128, 256), nn.Conv2d(256, CELL * CELL + 1, kernel_size=1)
        self.convDa, self.convDb = conv3(128, 256), nn.Conv2d(256, 256, kernel_size=1)

    def forward(self, rgb: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map RGB [B, 3, H, W] in 0..1 to score [B, H, W] and descriptors [B, 256, H/8, W/8].

        H and W must be multiples of 8.
        """
        luma = rgb.new_tensor([0.299, 0.587, 0.114])  # ITU-R BT.601, as in OpenCV
        x = torch.einsum("bchw,c->bhw", rgb, luma)[:, None]
        x = self.conv1b(self.conv1a(x).relu()).relu()
        x = self.conv2b(self.conv2a(F.max_pool2d(x, 2)).relu()).relu()
        x = self.conv3b(self.conv3a(F.max_pool2d(x, 2)).relu()).relu()
        x = self.conv4b(self.conv4a(F.max_pool2d(x, 2)).relu()).relu()

        # Channel 8 r + c is row r, column c of the cell; the last channel means "no point in this cell".
        pixels = self.convPb(self.convPa(x).relu()).softmax(dim=1)[:, :-1]
        score = F.pixel_shuffle(pixels, CELL)[:, 0]
        descriptors = F.normalize(self.convDb(self.convDa(x).relu()), dim=1)
        return score, descriptors


def create_superpoint(settings: FirstKeypoints, device: torch.device) -> LearnedDetector:
    """Create the detector with its published weights; `settings.threshold` is a probability."""
    return LearnedDetector(
        name="superpoint",
        network=load_network(SuperPoint(), settings, device),
        stride=CELL,
        multiple=CELL,
        threshold=settings.threshold,
        nms_radius=settings.nms_radius,
        max_points=settings.max_points,
        device=device,
        pixel_bytes=540,
    )
