"""Compare images by the features of a network trained on ImageNet, for methods that reconstruct images.

The network is VGG16 if the setting `methods.vgg16_weights` names a file of weights, otherwise
EfficientNet-Lite0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import DEFAULT_FEATURES
from selfmark.errors import InputError
from selfmark.features.efficientnet_lite import EfficientNetLiteEncoder
from selfmark.features.imagenet_colors import IMAGENET_MEAN, IMAGENET_STD
from selfmark.features.loading import load_encoder
from selfmark.methods.contract import TrainedMethod
from selfmark.weights_cache import load_weights

_VGG_BLOCKS = (2, 2, 3, 3)  # convolutions per block; 2x2 max pooling between blocks
_VGG_CHANNELS = (64, 128, 256, 512)


class PerceptualFeatures:
    """Frozen features of images at four resolutions, from fine to coarse.

    This class is not an nn.Module, so that the weights are neither trained nor stored in checkpoints.

    name: name of the network
    """

    def __init__(self, name: str, compute: Callable[[Tensor], list[Tensor]]) -> None:
        """Wrap a function from images [B, 3, S, S] in 0..1 to maps [B, C_i, h_i, w_i]."""
        self.name = name
        self._compute = compute

    def __call__(self, images: Tensor) -> list[Tensor]:
        """Return the feature maps of images [B, 3, S, S] in 0..1."""
        return self._compute(images)

    def compare(self, predicted: Tensor, target: Tensor, squared: bool) -> list[Tensor]:
        """Return the mean absolute or squared difference of the features at each resolution.

        Args:
            predicted: [B, 3, S, S], values in 0..1.
            target: [B, 3, S, S], values in 0..1; it gets no gradients.
            squared: whether to average squared instead of absolute differences.
        """
        with torch.no_grad():
            expected = self(target)
        difference = F.mse_loss if squared else F.l1_loss
        return [difference(a, b) for a, b in zip(self(predicted), expected, strict=True)]


def load_perceptual_features(vgg16_weights: str, device: torch.device) -> PerceptualFeatures:
    """Load VGG16 from a file, or the EfficientNet-Lite0 that is installed with selfmark.

    Args:
        vgg16_weights: .safetensors file with the names of torchvision's VGG16; empty for EfficientNet-Lite0.
        device: device to compute on.

    Raises:
        InputError: if the file is missing or contains other weights.
    """
    if vgg16_weights:
        vgg = _load_vgg16(Path(vgg16_weights)).to(device)
        return PerceptualFeatures("VGG16", vgg)
    encoder = load_encoder(DEFAULT_FEATURES, device)
    assert isinstance(encoder, EfficientNetLiteEncoder)
    network = encoder.network.requires_grad_(False)
    blocks = tuple(network.last_blocks[stage] for stage in (0, 1, 2, 4))  # cells of 2, 4, 8 and 16 pixels
    return PerceptualFeatures(DEFAULT_FEATURES, lambda images: network(images, blocks))


class PerceptualMethod(TrainedMethod):
    """A method that compares images by their perceptual features."""

    _perceptual: PerceptualFeatures | None = None

    def load_features(self, device: torch.device) -> PerceptualFeatures:
        """Return the perceptual features; the first call loads them."""
        if self._perceptual is None:
            self._perceptual = load_perceptual_features(self.settings.vgg16_weights, device)
        return self._perceptual


class Vgg16(nn.Module):
    """The first four blocks of VGG16, with the layer names of torchvision."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        """Create the convolutions."""
        super().__init__()
        layers: list[nn.Module] = []
        self.outputs: list[int] = []  # indices of the layers whose output is returned, one per block
        inputs = 3
        for repeats, outputs in zip(_VGG_BLOCKS, _VGG_CHANNELS, strict=True):
            if layers:
                layers.append(nn.MaxPool2d(2))
            for _ in range(repeats):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
            self.outputs.append(len(layers) - 1)
        self.features = nn.Sequential(*layers)
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(IMAGENET_STD)[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the output of each block for images [B, 3, S, S] in 0..1."""
        x = (images - self.mean) / self.deviation
        maps = []
        for index, layer in enumerate(self.features):
            x = layer(x)
            if index in self.outputs:
                maps.append(x)
        return maps


def _load_vgg16(path: Path) -> Vgg16:
    """Load frozen weights with the names of torchvision's VGG16; raise an InputError if they do not match."""
    vgg = Vgg16()
    published = load_weights(path, "vgg16")
    own_weights = vgg.state_dict()
    missing_names = [
        name
        for name in own_weights
        if name not in published or published[name].shape != own_weights[name].shape
    ]
    if missing_names:
        raise InputError(
            f"{path} does not contain the weights of VGG16: {missing_names[0]} is missing or differs"
        )
    vgg.load_state_dict({name: published[name] for name in own_weights})
    return vgg.requires_grad_(False).eval()
