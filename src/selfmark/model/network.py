"""The paper's networks: an hourglass with hierarchical residual blocks, Phi with two heads, Psi with K maps.

Sec. 3.2 and Implementation Details: backbone of Newell et al. with the block of Bulat et al. At 256 channels
Phi has 6.77 M parameters, as the authors' program has. GroupNorm, because batches are small and mix images
with their deformations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import Network


class Block(nn.Module):
    """Hierarchical residual block: 3x3 convolutions giving 1/2, 1/4, 1/4 of the channels, plus a skip."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        half, quarter = outputs // 2, outputs // 4
        self.norm1 = nn.GroupNorm(groups, inputs)
        self.conv1 = nn.Conv2d(inputs, half, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, half)
        self.conv2 = nn.Conv2d(half, quarter, 3, padding=1, bias=False)
        self.norm3 = nn.GroupNorm(groups, quarter)
        self.conv3 = nn.Conv2d(quarter, quarter, 3, padding=1, bias=False)
        self.skip: nn.Module = nn.Identity()
        if inputs != outputs:
            self.skip = nn.Sequential(
                nn.GroupNorm(groups, inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False)
            )

    def forward(self, x: Tensor) -> Tensor:
        first = self.conv1(F.relu(self.norm1(x)))
        second = self.conv2(F.relu(self.norm2(first)))
        third = self.conv3(F.relu(self.norm3(second)))
        result: Tensor = torch.cat([first, second, third], dim=1) + self.skip(x)
        return result


class Hourglass(nn.Module):
    """One level: a branch at this resolution plus a branch through half of it."""

    def __init__(self, depth: int, channels: int, groups: int) -> None:
        super().__init__()
        self.here = Block(channels, channels, groups)
        self.down = Block(channels, channels, groups)
        self.inner: nn.Module = (
            Hourglass(depth - 1, channels, groups) if depth > 1 else Block(channels, channels, groups)
        )
        self.up = Block(channels, channels, groups)

    def forward(self, x: Tensor) -> Tensor:
        below = self.up(self.inner(self.down(F.avg_pool2d(x, 2))))
        result: Tensor = self.here(x) + F.interpolate(below, scale_factor=2.0, mode="nearest")
        return result


class Backbone(nn.Module):
    """Phi_b: image [B, 3, S, S] in 0..1 to features [B, channels, S/4, S/4]."""

    def __init__(self, settings: Network) -> None:
        super().__init__()
        width, groups = settings.channels, settings.norm_groups
        self.stem = nn.Conv2d(3, width // 4, 7, stride=2, padding=3)
        self.stem_norm = nn.GroupNorm(groups, width // 4)
        self.block1 = Block(width // 4, width // 2, groups)
        self.block2 = Block(width // 2, width // 2, groups)
        self.block3 = Block(width // 2, width, groups)
        self.hourglass = Hourglass(settings.depth, width, groups)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(images - 0.5)))
        x = F.avg_pool2d(self.block1(x), 2)
        result: Tensor = self.hourglass(self.block3(self.block2(x)))
        return result


class Head(nn.Module):
    """Block, 1x1 convolution, norm, ReLU, then the last layer: a 1x1 convolution to `outputs` maps."""

    def __init__(self, settings: Network, outputs: int) -> None:
        super().__init__()
        width, groups = settings.channels, settings.norm_groups
        self.block = Block(width, width, groups)
        self.mix = nn.Conv2d(width, width, 1)
        self.norm = nn.GroupNorm(groups, width)
        self.last = nn.Conv2d(width, outputs, 1)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.last(F.relu(self.norm(self.mix(self.block(features)))))
        return result


class PhiMaps(NamedTuple):
    """What Phi sees in B images: `confidence` [B, 1, h, w] in 0..1 and `features` [B, d, h, w]."""

    confidence: Tensor
    features: Tensor


class Phi(nn.Module):
    """Stage 1 network: where landmarks are (detector head) and what they look like (descriptor head)."""

    def __init__(self, settings: Network) -> None:
        super().__init__()
        self.backbone = Backbone(settings)
        self.detector = Head(settings, 1)
        self.descriptor = Head(settings, settings.descriptor)

    def forward(self, images: Tensor) -> PhiMaps:
        shared = self.backbone(images)
        return PhiMaps(torch.sigmoid(self.detector(shared)), self.descriptor(shared))


class Psi(nn.Module):
    """Stage 2 network: K heatmaps, one per landmark."""

    def __init__(self, settings: Network, landmarks: int) -> None:
        super().__init__()
        self.backbone = Backbone(settings)
        self.head = Head(settings, landmarks)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.backbone(images))
        return result

    @classmethod
    def from_phi(cls, phi: Phi, settings: Network, landmarks: int) -> Psi:
        """Start from Stage 1's weights, all but the last layer (Implementation Details, Stage 2)."""
        psi = cls(settings, landmarks)
        psi.backbone.load_state_dict(phi.backbone.state_dict())
        inherited = {
            name: value for name, value in phi.detector.state_dict().items() if not name.startswith("last.")
        }
        psi.head.load_state_dict(inherited, strict=False)
        return psi


def place(network: nn.Module, device: torch.device) -> None:
    """On the CPU convolutions are fastest with channels last; on the GPU eager GroupNorm is slow that way."""
    network.to(device)
    if device.type == "cpu":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
