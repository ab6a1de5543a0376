"""Landmarks as the bottleneck of an autoencoder.

Zhang, Guo, Jin, Luo, He and Lee: Unsupervised discovery of object landmarks as structural representations
(CVPR 2018). What the paper leaves open follows the authors' program; docs/methods.md compares both.
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
        """Learning rate of Adam."""
        return self.config.zhang2018.lr

    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Find the landmarks of each image and of its warped copy; reconstruct the image from its own."""
        settings = self.config.zhang2018
        images = changes.change_colors(images)
        warps = changes.warps()
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
        """Return what the decoder needs to know about images, in float32.

        Args:
            images: [B, 3, S, S], values in 0..1.

        Returns:
            Features [B, channels, h, w] of the cells, and distributions [B, K + 1, h, w] over the cells of
            the landmarks and of the background, which is last.
        """
        features, scores = self.psi.describe_and_score(images)
        return features.float(), share_cells(scores)


def share_cells(scores: Tensor) -> Tensor:
    """Return distributions over the cells of all channels, the background included.

    These are the channels' shares of each cell, divided by the sum of each map. A softmax of the logarithms
    computes that without dividing by sums that may be 0.

    Args:
        scores: [B, K + 1, h, w].
    """
    return scores.log_softmax(dim=1).flatten(2).softmax(dim=-1).view_as(scores)


def concentration_loss(distributions: Tensor) -> Tensor:
    """Return the area over which the distributions of an image spread, summed over its landmarks.

    The area is 2 pi e s^2, the exponential of the entropy of an isotropic Gaussian whose variance s^2 is the
    mean of the distribution's variances along both axes, in units of the image side.

    Args:
        distributions: [B, K, h, w], each sums to 1.
    """
    height, width = distributions.shape[-2:]
    mean = mean_positions(distributions)
    y, x = ((torch.arange(n, device=mean.device) + 0.5) * (2 / n) - 1 for n in (height, width))
    second = torch.stack([distributions.sum(2) @ x.square(), distributions.sum(3) @ y.square()], dim=-1)
    variance = (second - mean.square()) / 4  # half sides to sides
    return 2 * math.pi * math.e * variance.mean(dim=-1).sum(dim=-1).mean()


def separation_loss(positions: Tensor, sigma: float) -> Tensor:
    """Return how close the landmarks of an image are to each other, summed over its ordered pairs.

    A pair at distance d adds exp(-d^2 / (2 sigma^2)).

    Args:
        positions: [B, K, 2], in units of half the image side.
        sigma: distance at which landmarks begin to count as close, in units of the image side.
    """
    difference = (positions[:, :, None] - positions[:, None]) / 2
    closeness = torch.exp(-difference.square().sum(dim=-1) / (2 * sigma**2))
    return closeness.sum(dim=(1, 2)).mean() - positions.shape[1]  # each landmark is at distance 0 of itself


def equivariance_loss(given: Tensor, warped: Tensor, warps: Warps) -> Tensor:
    """Return the squared distances between landmarks and where the warp moves their counterparts, summed.

    Args:
        given: [B, K, 2], positions in the given images, in units of half the image side.
        warped: [B, K, 2], positions in the warped images.
        warps: maps positions of the warped images to the given ones.
    """
    return (warps(warped) - given).square().sum(dim=(1, 2)).mean()


def pool_features(features: Tensor, distributions: Tensor) -> Tensor:
    """Return the mean features [B, K, C] of each distribution.

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
