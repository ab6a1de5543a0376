"""Implement Jakab et al. 2018: generate an image from its landmarks and the appearance of another view.

Jakab, Gupta, Bilen and Vedaldi: Unsupervised learning of object landmarks through conditional image
generation (NeurIPS 2018).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.config import Config
from selfmark.methods.contract import RandomChanges
from selfmark.methods.decoder import Decoder, conv_norm_relu
from selfmark.methods.perceptual import PerceptualMethod
from selfmark.methods.warps import cell_positions
from selfmark.model.soft_argmax import mean_positions
from selfmark.train.engine import Losses

# Names of the compared layers, from fine to coarse.
_LAYERS = ("pixels", "features 1", "features 2", "features 3", "features 4")


class Jakab2018(PerceptualMethod):
    """Generate a target image from the appearance of a source image and the target's landmarks.

    The error of each layer is divided by its running mean, so that all layers count equally.

    error_sums:   [5], sum of the past errors of each layer, with exponentially decaying weights
    error_weight: sum of these weights; the running means are error_sums / error_weight
    """

    softmax = "axes"
    uses_frame_pairs = True
    error_sums: Tensor
    error_weight: Tensor

    def __init__(self, config: Config) -> None:
        """Create the network with K maps, the encoder of the source and the decoder."""
        super().__init__(config)
        settings = config.jakab2018
        # The row and column means of random maps are almost constant, so all landmarks would start at the
        # center. Larger weights prevent this.
        with torch.no_grad():
            self.psi.head.last.weight.mul_(settings.head_gain)
        halvings = count_halvings(config.images.size, settings.grid)
        channels = block_channels(max(round(settings.width * config.network.channels), 1), halvings)
        self.encoder = _build_encoder(channels, settings.norm_groups)
        self.decoder = Decoder(channels[-1] + config.K, channels[::-1], settings.norm_groups)
        self.register_buffer("error_sums", torch.zeros(len(_LAYERS)))
        self.register_buffer("error_weight", torch.zeros(()))

    @property
    def lr(self) -> float:
        """Return the learning rate of Adam."""
        return self.config.jakab2018.lr

    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Generate warped images from their landmarks and from the second images, which are warped twice."""
        settings = self.config.jakab2018
        first, second = changes.draw_warps(), changes.draw_warps()
        target, moved = first.apply(torch.cat([images, others], dim=1)).chunk(2, dim=1)
        source = second.apply(moved)
        errors = self._compare(self.generate(source, target), target)
        with torch.no_grad():
            self.error_sums.lerp_(errors, 1 - settings.momentum)
            self.error_weight.lerp_(torch.ones_like(self.error_weight), 1 - settings.momentum)
        scaled = errors / (self.error_sums / self.error_weight).clamp(min=settings.min_error)
        return {"total": scaled.sum(), **dict(zip(_LAYERS, errors, strict=True))}

    def generate(self, source: Tensor, target: Tensor) -> Tensor:
        """Return images [B, 3, S, S] with the appearance of the sources and the landmarks of the targets.

        Args:
            source: [B, 3, S, S], values in 0..1.
            target: [B, 3, S, S], values in 0..1; only the positions of its landmarks are used.
        """
        features: Tensor = self.encoder(source)
        height, width = features.shape[-2:]
        positions = mean_positions(self.psi.distributions(target))
        maps = gaussian_maps(positions, height, width, self.config.jakab2018.sigma)
        result: Tensor = self.decoder(torch.cat([features, maps], dim=1))
        return result

    def _compare(self, generated: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared differences of the pixels and of each layer of features, [5]."""
        errors = self.load_features(target.device).compare(generated, target, squared=True)
        return torch.stack([F.mse_loss(generated, target), *errors])


def gaussian_maps(positions: Tensor, height: int, width: int, sigma: float) -> Tensor:
    """Draw maps [B, K, height, width] with a Gaussian of height 1 at each landmark.

    Args:
        positions: [B, K, 2], x and y in units of half the image side.
        height: rows of a map.
        width: columns of a map.
        sigma: standard deviation, in units of half the image side.
    """
    cells = cell_positions(height, width, positions.device)
    squared = (positions[:, :, None] - cells).square().sum(-1)
    return torch.exp(squared / (-2 * sigma**2)).view(*positions.shape[:2], height, width)


def count_halvings(size: int, grid: int) -> int:
    """Return how often to halve images of `size` pixels to get maps of about `grid` cells per side.

    The result is at most 5, because the image side is a multiple of 32 = 2^5 pixels.

    >>> count_halvings(128, 16), count_halvings(256, 16), count_halvings(96, 16)
    (3, 4, 3)
    """
    return min(max(round(math.log2(size / grid)), 1), 5)


def block_channels(first: int, halvings: int) -> list[int]:
    """Return the channels of the encoder's blocks: doubled after each halving, up to 8 times the first.

    >>> block_channels(32, 4)
    [32, 64, 128, 256, 256]
    """
    return [first * 2 ** min(number, 3) for number in range(halvings + 1)]


def _build_encoder(channels: list[int], groups: int) -> nn.Sequential:
    """Create blocks of two convolutions; every block except the first halves the resolution."""
    layers = [
        conv_norm_relu(3, channels[0], groups, kernel=7),
        conv_norm_relu(channels[0], channels[0], groups),
    ]
    for before, after in pairwise(channels):
        layers += [conv_norm_relu(before, after, groups, stride=2), conv_norm_relu(after, after, groups)]
    return nn.Sequential(*layers)
