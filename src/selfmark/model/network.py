"""Build the networks of the paper: an hourglass backbone, Phi with two heads, and Psi with K heatmaps.

The backbone is the hourglass of Newell et al. with the residual block of Bulat et al. (Sec. 3.2 and 4.2).
With 256 channels, Phi has 6.77 M parameters, like the authors' implementation. All norms are GroupNorm,
because batches are small and contain images together with their deformations.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import STRIDE, Network, Runtime
from selfmark.config.memory import estimate_feature_bytes
from selfmark.model.backend import Backend
from selfmark.model.cpu_backend import create_cpu_backend
from selfmark.model.plain_backend import PLAIN_BACKEND, create_plain_backend
from selfmark.run.devices import uses_bf16

_RUNTIME = Runtime()
# In a network without an hourglass, a cell sees 46 pixels in each direction. A border of 64 pixels covers
# them and keeps image sizes multiples of 32.
_BORDER = 64


class ResidualBlock(nn.Module):
    """Hierarchical residual block of Bulat et al.

    Three 3x3 convolutions in sequence compute 1/2, 1/4 and 1/4 of the output channels. Their concatenation is
    added to a skip connection.
    """

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        """Create a block from `inputs` to `outputs` channels with `groups` norm groups."""
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

    def forward(self, x: Tensor, backend: Backend = PLAIN_BACKEND) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H, W]."""
        return backend.layers.residual_block(self, x)


class Hourglass(nn.Module):
    """One level of the hourglass: a branch at this resolution plus a branch at half this resolution."""

    def __init__(self, depth: int, channels: int, groups: int) -> None:
        """Create `depth` nested levels."""
        super().__init__()
        self.here = ResidualBlock(channels, channels, groups)
        self.down = ResidualBlock(channels, channels, groups)
        self.inner: nn.Module = (
            Hourglass(depth - 1, channels, groups) if depth > 1 else ResidualBlock(channels, channels, groups)
        )
        self.up = ResidualBlock(channels, channels, groups)

    def forward(self, x: Tensor, backend: Backend = PLAIN_BACKEND) -> Tensor:
        """Map [B, channels, H, W] to the same shape."""
        # One operation returns both tensors, so that the fused backend can add their gradients in one kernel.
        x, pooled = backend.layers.identity_and_pool(x)

        def half_resolution() -> Tensor:
            inner = self.inner(self.down(pooled, backend), backend)
            result: Tensor = self.up(inner, backend)
            return result

        fine, coarse = backend.execution.parallel(lambda: self.here(x, backend), half_resolution)
        return backend.layers.upsample_add(fine, coarse)


class Backbone(nn.Module):
    """Backbone Phi_b, shared by the heads (Sec. 3.2)."""

    def __init__(self, settings: Network) -> None:
        """Create the stem, three residual blocks and, if `settings.depth` is above 0, the hourglass."""
        super().__init__()
        width, groups = settings.channels, settings.norm_groups
        self.stem = nn.Conv2d(3, width // 4, 7, stride=2, padding=3)
        self.stem_norm = nn.GroupNorm(groups, width // 4)
        self.block1 = ResidualBlock(width // 4, width // 2, groups)
        self.block2 = ResidualBlock(width // 2, width // 2, groups)
        self.block3 = ResidualBlock(width // 2, width, groups)
        self.hourglass = Hourglass(settings.depth, width, groups) if settings.depth else None

    def forward(self, images: Tensor, backend: Backend = PLAIN_BACKEND) -> Tensor:
        """Map images [B, 3, S, S] in 0..1 to features [B, channels, S/4, S/4]."""
        x = backend.layers.stem(self.stem, self.stem_norm, images)
        x = backend.layers.pooled_block(self.block1, x)
        result: Tensor = self.block3(self.block2(x, backend), backend)
        if self.hourglass is not None:
            result = self.hourglass(result, backend)
        return result


class Head(nn.Module):
    """Head of a network: residual block, 1x1 convolution, norm, ReLU, 1x1 convolution to `outputs` maps."""

    def __init__(self, settings: Network, outputs: int) -> None:
        """Create a head with `outputs` maps."""
        super().__init__()
        width, groups = settings.channels, settings.norm_groups
        self.block = ResidualBlock(width, width, groups)
        self.mix = nn.Conv2d(width, width, 1)
        self.norm = nn.GroupNorm(groups, width)
        self.last = nn.Conv2d(width, outputs, 1)

    def hidden(self, features: Tensor, backend: Backend = PLAIN_BACKEND) -> Tensor:
        """Return the input of the last layer: [B, channels, h, w]."""
        return backend.layers.conv_norm_relu(self.mix, self.norm, self.block(features, backend))

    def forward(self, features: Tensor, backend: Backend = PLAIN_BACKEND) -> Tensor:
        """Map features [B, channels, h, w] to [B, outputs, h, w]."""
        return backend.layers.output_conv(self.last, self.hidden(features, backend))


class PhiMaps(NamedTuple):
    """Output of Phi for B images.

    confidence: [B, 1, h, w] in 0..1, the confidence map H_j of the detector head
    features:   [B, channels, h, w], input of the last layer of the descriptor head; `Phi.describe` computes
                descriptors from it
    """

    confidence: Tensor
    features: Tensor


class Phi(nn.Module):
    """Stage 1 network (Sec. 3.2): a detector head that finds keypoints and a head that describes them."""

    def __init__(self, settings: Network) -> None:
        """Create the backbone and both heads."""
        super().__init__()
        self.backend: Backend = PLAIN_BACKEND
        self.backbone = Backbone(settings)
        self.detector = Head(settings, 1)
        self.descriptor = Head(settings, settings.descriptor)

    def forward(self, images: Tensor) -> PhiMaps:
        """Return the confidence map and the features of images [B, 3, S, S] in 0..1."""
        backend = self.backend
        with backend.execution.forward_context(self):
            shared = self.backbone(images, backend)
            confidence, features = backend.execution.parallel(
                lambda: torch.sigmoid(self.detector(shared, backend)),
                lambda: self.descriptor.hidden(shared, backend),
            )
        return PhiMaps(confidence, features)

    def forward_with_mirror(self, images: Tensor) -> tuple[PhiMaps, Tensor]:
        """Return the output for images [B, 3, S, S] and the features of their mirror images (Sec. 3.7).

        Both results are computed in one pass.
        """
        backend = self.backend
        with backend.execution.forward_context(self):
            shared = self.backbone(torch.cat([images, images.flip(-1)]), backend)
            confidence, features = backend.execution.parallel(
                lambda: torch.sigmoid(self.detector(shared[: len(images)], backend)),
                lambda: self.descriptor.hidden(shared, backend),
            )
        original, mirrored = features.chunk(2)
        return PhiMaps(confidence, original), mirrored

    def describe(self, features: Tensor, cells: Tensor) -> Tensor:
        """Return unit descriptors [B, P, d] at positions of features [B, channels, h, w].

        The positions `cells` [B, P, 2] are in cells; they may lie between the cells' centers.
        """
        return F.normalize(self.describe_raw(features, cells), dim=-1)

    def describe_raw(self, features: Tensor, cells: Tensor) -> Tensor:
        """Return descriptors [B, P, d] of any norm. The arguments are those of `describe`.

        The last layer of the descriptor head is a 1x1 convolution. The order of this convolution and of the
        interpolation between cells does not matter, because the weights of the interpolation sum to 1. Here
        the interpolation comes first, because there are far fewer positions than cells.
        """
        return self.backend.layers.sample_conv(self.descriptor.last, features, cells)


class Psi(nn.Module):
    """Stage 2 network (Sec. 3.6): K heatmaps, one per landmark."""

    def __init__(self, settings: Network, landmarks: int) -> None:
        """Create the backbone and a head with `landmarks` maps."""
        super().__init__()
        self.backend: Backend = PLAIN_BACKEND
        self.backbone = Backbone(settings)
        self.head = Head(settings, landmarks)

    def forward(self, images: Tensor) -> Tensor:
        """Return heatmaps [B, K, S/4, S/4] of images [B, 3, S, S] in 0..1."""
        backend = self.backend
        with backend.execution.forward_context(self):
            result: Tensor = self.head(self.backbone(images, backend), backend)
        return result

    @classmethod
    def from_phi(
        cls, phi: Phi, settings: Network, landmarks: int, head: Literal["detector", "descriptor"] = "detector"
    ) -> Psi:
        """Create Psi with the weights of Phi, except for the last layer (Sec. 4.2).

        Args:
            phi: the trained network of Stage 1.
            settings: settings of both networks.
            landmarks: number of landmarks K.
            head: the head of Phi from which the head of Psi is initialized.
        """
        psi = cls(settings, landmarks)
        psi.backbone.load_state_dict(phi.backbone.state_dict())
        inherited = {
            name: value
            for name, value in phi.get_submodule(head).state_dict().items()
            if not name.startswith("last.")
        }
        psi.head.load_state_dict(inherited, strict=False)
        return psi


def bytes_per_image(settings: Network, size: int) -> int:
    """Return the bytes that one image of `size` pixels takes in a pass without gradients."""
    return estimate_feature_bytes(settings.channels, (size + 2 * compute_border_width(settings)) // STRIDE)


def compute_border_width(settings: Network) -> int:
    """Return the width in pixels of the border that `SoftArgmaxPsi` adds around images.

    Convolutions pad maps with zeros, so the features of a cell near the edge reveal its position. Without an
    hourglass, only cells less than `_BORDER` pixels from the edge are affected. A border of this width is
    added to images and removed from maps, so the features of the remaining cells do not reveal positions.
    With an hourglass, all cells are affected; a border would not help, and its width is 0.
    """
    return 0 if settings.depth else _BORDER


def prepare_network(network: Phi | Psi, device: torch.device, runtime: Runtime = _RUNTIME) -> None:
    """Move a network to the device, and choose the fastest memory format and backend for that device."""
    network.to(device)
    fused = uses_fused_kernels(network, device, runtime)
    if fused or device.type == "cpu":  # channels-last slows eager GroupNorm on other devices
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if fused:
        from selfmark.model.fused_backend import create_fused_backend  # needs Triton

        network.backend = create_fused_backend()
    elif device.type == "cpu" and not uses_bf16(runtime, device):
        network.backend = create_cpu_backend()
    else:
        network.backend = create_plain_backend(uses_bf16(runtime, device))


def uses_fused_kernels(network: Phi | Psi, device: torch.device, runtime: Runtime) -> bool:
    """Return True if `prepare_network` chooses the Triton kernels."""
    return uses_bf16(runtime, device) and runtime.kernels == "auto" and _supports_kernels(network, device)


def _supports_kernels(network: Phi | Psi, device: torch.device) -> bool:
    """Return True if the Triton kernels can run this network on this device.

    The numbers of channels and the sizes of norm groups must be powers of two. A group must have at most 64
    channels, the number that one kernel program works on.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    norm = network.backbone.block3.norm1  # has half of the network's channels
    channels = 2 * norm.num_channels
    group_size = channels // norm.num_groups
    are_powers_of_two = channels & (channels - 1) == 0 and group_size & (group_size - 1) == 0
    return are_powers_of_two and group_size <= 64 and find_spec("triton") is not None
