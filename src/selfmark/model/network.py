"""The paper's networks: an hourglass with hierarchical residual blocks, Phi with two heads, Psi with K maps.

Sec. 3.2 and Implementation Details: backbone of Newell et al. with the block of Bulat et al. At 256 channels
Phi has 6.77 M parameters, as the authors' program has. GroupNorm, because batches are small and mix images
with their deformations.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfmark.config import STRIDE, Network, Runtime
from selfmark.model.operations import PLAIN, Operations, Plain

_RUNTIME = Runtime()


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

    def forward(self, x: Tensor, operations: Operations = PLAIN) -> Tensor:
        return operations.block(self, x)


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

    def forward(self, x: Tensor, operations: Operations = PLAIN) -> Tensor:
        x, half = operations.with_half(x)

        def through_half() -> Tensor:
            inner = self.inner(self.down(half, operations), operations)
            result: Tensor = self.up(inner, operations)
            return result

        here, below = operations.both(lambda: self.here(x, operations), through_half)
        return operations.add_doubled(here, below)


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

    def forward(self, images: Tensor, operations: Operations = PLAIN) -> Tensor:
        x = operations.stem(self.stem, self.stem_norm, images)
        x = operations.halved_block(self.block1, x)
        x = self.block3(self.block2(x, operations), operations)
        result: Tensor = self.hourglass(x, operations)
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

    def hidden(self, features: Tensor, operations: Operations = PLAIN) -> Tensor:
        """All but the last layer: [B, channels, h, w]."""
        return operations.mix(self.mix, self.norm, self.block(features, operations))

    def forward(self, features: Tensor, operations: Operations = PLAIN) -> Tensor:
        return operations.last(self.last, self.hidden(features, operations))


class PhiMaps(NamedTuple):
    """What Phi sees in B images.

    confidence: [B, 1, h, w] in 0..1, where landmarks are
    features:   [B, channels, h, w], what `Phi.describe` makes descriptors of
    """

    confidence: Tensor
    features: Tensor


class Phi(nn.Module):
    """Stage 1 network: where landmarks are (detector head) and what they look like (descriptor head)."""

    def __init__(self, settings: Network) -> None:
        super().__init__()
        self.operations: Operations = PLAIN
        self.backbone = Backbone(settings)
        self.detector = Head(settings, 1)
        self.descriptor = Head(settings, settings.descriptor)

    def forward(self, images: Tensor) -> PhiMaps:
        operations = self.operations
        with operations.running(self):
            shared = self.backbone(images, operations)
            confidence, features = operations.both(
                lambda: torch.sigmoid(self.detector(shared, operations)),
                lambda: self.descriptor.hidden(shared, operations),
            )
        return PhiMaps(confidence, features)

    def with_mirror(self, images: Tensor) -> tuple[PhiMaps, Tensor]:
        """What Phi sees in the images, and the features of their mirror images; both in one pass."""
        operations = self.operations
        with operations.running(self):
            shared = self.backbone(torch.cat([images, images.flip(-1)]), operations)
            confidence, features = operations.both(
                lambda: torch.sigmoid(self.detector(shared[: len(images)], operations)),
                lambda: self.descriptor.hidden(shared, operations),
            )
        here, mirrored = features.chunk(2)
        return PhiMaps(confidence, here), mirrored

    def describe(self, features: Tensor, cells: Tensor) -> Tensor:
        """Unit descriptors [B, P, d] at cells [B, P, 2].

        The descriptor head's last layer is linear and sees one cell at a time, so it may follow the reading
        between cells, where there are far fewer points than cells.
        """
        return self.operations.describe(self.descriptor.last, features, cells)


class Psi(nn.Module):
    """Stage 2 network: K heatmaps, one per landmark."""

    def __init__(self, settings: Network, landmarks: int) -> None:
        super().__init__()
        self.operations: Operations = PLAIN
        self.backbone = Backbone(settings)
        self.head = Head(settings, landmarks)

    def forward(self, images: Tensor) -> Tensor:
        operations = self.operations
        with operations.running(self):
            result: Tensor = self.head(self.backbone(images, operations), operations)
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


def bytes_per_image(settings: Network, size: int) -> int:
    """Memory one image of `size` pixels takes in a pass without gradients: nine maps of full width."""
    return 9 * settings.channels * (size // STRIDE) ** 2 * torch.float32.itemsize


def prepare_network(network: Phi | Psi, device: torch.device, runtime: Runtime = _RUNTIME) -> None:
    """Move a network to the device, laid out for it and with the operations that are fastest there."""
    network.to(device)
    bf16 = runtime.precision == "bf16" or (runtime.precision == "auto" and device.type == "cuda")
    fused = bf16 and runtime.kernels == "auto" and _fusable(network, device)
    if fused or device.type == "cpu":  # elsewhere eager GroupNorm is slow with channels last
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if fused:
        from selfmark.model.kernels.operations import Fused  # needs Triton

        network.operations = Fused()
    else:
        network.operations = Plain(bf16)


def _fusable(network: Phi | Psi, device: torch.device) -> bool:
    """Kernels take powers of two, and groups that fit into the 64 channels a program works on."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    norm = network.backbone.block3.norm1
    width, group = 2 * norm.num_channels, 2 * norm.num_channels // norm.num_groups
    powers = width & (width - 1) == 0 and group & (group - 1) == 0
    return powers and group <= 64 and find_spec("triton") is not None
