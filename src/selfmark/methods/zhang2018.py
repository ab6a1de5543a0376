"""Implement Zhang et al. 2018: landmarks are the bottleneck of an autoencoder.

Zhang, Guo, Jin, Luo, He and Lee: Unsupervised discovery of object landmarks as structural representations
(CVPR 2018). Details that the paper does not specify follow the authors' code; docs/methods.md compares the
paper and the code.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Config, Softmax
from selfmark.methods.contract import RandomChanges, TrainedMethod
from selfmark.methods.warps import Warps
from selfmark.methods.zhang2018_decoder import LandmarkDecoder
from selfmark.model.soft_argmax import mean_positions
from selfmark.train.engine import Losses


class Zhang2018(TrainedMethod):
    """K concentrated, separate and equivariant landmarks from which a decoder reconstructs the image."""

    softmax: ClassVar[Softmax] = "channels"

    def __init__(self, config: Config) -> None:
        """Create the network with K maps and a map of the background, and the decoder."""
        super().__init__(config)
        network = config.network
        self.decoder = LandmarkDecoder(config.zhang2018, config.K, network.channels, network.norm_groups)

    @property
    def lr(self) -> float:
        """Return the learning rate of Adam."""
        return self.config.zhang2018.lr

    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Find the landmarks of each image and of its warped copy, and reconstruct the image."""
        settings = self.config.zhang2018
        images = changes.change_colors(images)
        warps = changes.draw_warps()
        features, distributions = self.describe(torch.cat([images, warps.apply(images)]))
        landmarks = distributions[:, :-1]
        positions = mean_positions(landmarks)
        given, warped = positions.chunk(2)
        pooled = pool_features(features.chunk(2)[0], distributions.chunk(2)[0])
        concentration = concentration_loss(landmarks)
        separation = separation_loss(positions, settings.separation_sigma)
        equivariance = equivariance_loss(given, warped, warps)
        reconstruction = reconstruction_loss(self.decoder(given, pooled), images)
        total = (
            settings.concentration_weight * concentration
            + settings.separation_weight * separation
            + settings.equivariance_weight * equivariance
            + settings.reconstruction_weight * reconstruction
        )
        return {
            "total": total,
            "concentration": concentration,
            "separation": separation,
            "equivariance": equivariance,
            "reconstruction": reconstruction,
        }

    def describe(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and distributions of images, in float32.

        Args:
            images: [B, 3, S, S], values in 0..1.

        Returns:
            Features [B, channels, h, w], and distributions [B, K + 1, h, w] over the cells: one per landmark,
            then that of the background.
        """
        features, scores = self.psi.describe_and_score(images)
        return features.float(), to_cell_distributions(scores)


def to_cell_distributions(scores: Tensor) -> Tensor:
    """Turn scores into distributions over the cells, [B, K + 1, h, w], including the background.

    A softmax over the channels distributes each cell over the landmarks and the background. Then each map is
    divided by its sum over the cells. A softmax of the logarithms does this without dividing by a sum that
    may be 0.

    Args:
        scores: [B, K + 1, h, w].
    """
    return scores.log_softmax(dim=1).flatten(2).softmax(dim=-1).view_as(scores)


def concentration_loss(distributions: Tensor) -> Tensor:
    """Return the area that the distributions of an image cover, summed over its landmarks.

    The area of a distribution is 2 pi e s^2, the exponential of the entropy of an isotropic Gaussian. Its
    variance s^2 is the mean of the distribution's variances along both axes, in units of the image side.

    Args:
        distributions: [B, K, h, w], each sums to 1.
    """
    height, width = distributions.shape[-2:]
    mean = mean_positions(distributions)
    y, x = ((torch.arange(n, device=mean.device) + 0.5) * (2 / n) - 1 for n in (height, width))
    second = torch.stack([distributions.sum(2) @ x.square(), distributions.sum(3) @ y.square()], dim=-1)
    variance = (second - mean.square()) / 4  # converts squared half sides to squared sides
    return 2 * math.pi * math.e * variance.mean(dim=-1).sum(dim=-1).mean()


def separation_loss(positions: Tensor, sigma: float) -> Tensor:
    """Sum exp(-d^2 / (2 sigma^2)) over the ordered pairs of different landmarks of an image.

    Here d is the distance between the two landmarks of a pair. The result is the mean over the images.

    Args:
        positions: [B, K, 2], in units of half the image side.
        sigma: standard deviation of the Gaussian, in units of the image side.
    """
    difference = (positions[:, :, None] - positions[:, None]) / 2
    closeness = torch.exp(-difference.square().sum(dim=-1) / (2 * sigma**2))
    # The pairs of a landmark with itself contribute 1 each; subtract them.
    return closeness.sum(dim=(1, 2)).mean() - positions.shape[1]


def equivariance_loss(given: Tensor, warped: Tensor, warps: Warps) -> Tensor:
    """Sum the squared distances between the given landmarks and the warped landmarks, mapped back.

    Args:
        given: [B, K, 2], positions in the given images, in units of half the image side.
        warped: [B, K, 2], positions in the warped images.
        warps: maps positions of the warped images to positions of the given images.
    """
    return (warps(warped) - given).square().sum(dim=(1, 2)).mean()


def pool_features(features: Tensor, distributions: Tensor) -> Tensor:
    """Return the means [B, K, C] of the features, weighted by each distribution.

    Args:
        features: [B, C, h, w].
        distributions: [B, K, h, w], each sums to 1.
    """
    return torch.einsum("bchw,bkhw->bkc", features, distributions)


def reconstruction_loss(predicted: Tensor, images: Tensor) -> Tensor:
    """Return half the squared error of a reconstructed image, summed over its pixels and colors.

    Up to a constant, this is the negative log-likelihood of a Gaussian with standard deviation 1.

    Args:
        predicted: [B, 3, side, side], values in 0..1.
        images: [B, 3, S, S], values in 0..1; they are resized to the side of the prediction.
    """
    size = list(predicted.shape[-2:])
    target = F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)
    return (predicted - target).square().sum(dim=(1, 2, 3)).mean() / 2
