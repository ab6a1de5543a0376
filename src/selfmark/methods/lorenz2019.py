"""Implement Lorenz et al. 2019: reconstruct the image from parts, each with a shape and an appearance.

Lorenz, Bereska, Milbich and Ommer: Unsupervised part-based disentangling of object shape and appearance (CVPR
2019). Positions are in units of half the image side, as in the module `warps`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from selfmark.config import Config, Softmax
from selfmark.methods.contract import RandomChanges
from selfmark.methods.lorenz2019_decoder import DECODER_STRIDES, AppearanceNetwork, PartDecoder
from selfmark.methods.perceptual import PerceptualMethod
from selfmark.methods.warps import Warps, cell_positions
from selfmark.train.engine import Losses

_SMALL = 1e-12  # avoids a division by 0, also in the gradient of a norm that is 0


class Lorenz2019(PerceptualMethod):
    """Reconstruct an image from the part shapes of a recolored copy and the appearances of a warped copy."""

    softmax: ClassVar[Softmax] = "space"

    def __init__(self, config: Config) -> None:
        """Create the networks."""
        super().__init__(config)
        settings = config.lorenz2019
        # If the maps were almost uniform at first, the equivariance losses would pull all parts to one place.
        with torch.no_grad():
            self.psi.head.last.weight.mul_(settings.initial_sharpness)
        self.appearance = AppearanceNetwork(config.network, config.K, settings.appearance_features)
        width, groups = settings.decoder_width * config.network.channels, config.network.norm_groups
        self.decoder = PartDecoder(config.K, settings.appearance_features, width, groups)

    @property
    def lr(self) -> float:
        """Return the learning rate of Adam."""
        return self.config.lorenz2019.lr

    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Reconstruct each image from its recolored and its warped view; compare the parts of both views."""
        settings = self.config.lorenz2019
        recolored = changes.change_colors(images)
        warps = changes.draw_warps()
        warped = warps.apply(images)
        shape_maps, moved_maps = self.psi.distributions(torch.cat([recolored, warped])).chunk(2)
        means, covariances = part_moments(shape_maps)
        appearance = self.appearance(warped, moved_maps)
        reconstruction = self._reconstruct(means, covariances, appearance, images.shape[-1])
        weights = pixel_weights(means.detach(), images.shape[-1], settings.focus_radius, settings.focus_floor)
        pixels = (weights * (reconstruction - images).abs().mean(dim=1)).sum(dim=(1, 2)).mean()
        features = self._compare_features(reconstruction, images)
        warped_means, warped_covariances = unwarped_moments(moved_maps, warps)
        mean_loss = (means - warped_means).square().mean()
        if settings.compare_roots:
            covariances = covariance_roots(covariances, settings.min_variance)
            warped_covariances = covariance_roots(warped_covariances, settings.min_variance)
        covariance_loss = mean_distance(covariances, warped_covariances)
        total = (
            pixels
            + settings.feature_weight * features
            + settings.mean_weight * mean_loss
            + settings.covariance_weight * covariance_loss
        )
        return {
            "total": total,
            "pixels": pixels,
            "features": features,
            "means": mean_loss,
            "covariances": covariance_loss,
        }

    def _reconstruct(self, means: Tensor, covariances: Tensor, appearance: Tensor, size: int) -> Tensor:
        """Reconstruct images [B, 3, size, size] from the moments and appearances of their parts.

        Args:
            means: [B, K, 2].
            covariances: [B, K, 2, 2].
            appearance: [B, K, F].
            size: side of the images, in pixels.
        """
        settings = self.config.lorenz2019
        precision = settings.bell_scale**2 * invert_covariances(covariances, settings.min_variance)
        bells = [bell_maps(means, precision, size // stride) for stride in DECODER_STRIDES]
        result: Tensor = self.decoder(bells, appearance)
        return result

    def _compare_features(self, reconstruction: Tensor, images: Tensor) -> Tensor:
        """Return the relative difference of the perceptual features, averaged over the resolutions."""
        compute_features = self.load_features(images.device)
        with torch.no_grad():
            expected = compute_features(images)
        maps = zip(compute_features(reconstruction), expected, strict=True)
        return torch.stack([relative_difference(predicted, target) for predicted, target in maps]).mean()


def part_moments(distributions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means [B, K, 2] and covariances [B, K, 2, 2] of distributions [B, K, h, w]."""
    height, width = distributions.shape[-2:]
    cells = cell_positions(height, width, distributions.device)
    return _moments(distributions.flatten(2), cells)


def unwarped_moments(distributions: Tensor, warps: Warps) -> tuple[Tensor, Tensor]:
    """Map the part maps of warped images back to the given images, and return their moments there.

    Each cell is weighted by the area that it covers in the given image, as if the part map were warped like
    an image.

    Args:
        distributions: [B, K, h, w], part maps of the warped images.
        warps: maps positions of the warped images to positions of the given images.

    Returns:
        Means [B, K, 2] and covariances [B, K, 2, 2] in the given images.
    """
    count, _, height, width = distributions.shape
    cells = cell_positions(height, width, distributions.device)
    targets = warps(cells.expand(count, -1, -1))
    areas = _cell_areas(targets.view(count, height, width, 2))
    weights = distributions.flatten(2) * areas.flatten(1)[:, None]
    return _moments(weights / weights.sum(-1, keepdim=True), targets)


def _moments(weights: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return weighted means [B, K, 2] and covariances [B, K, 2, 2].

    Args:
        weights: [B, K, P]; their sum over P is 1.
        positions: [P, 2] or [B, P, 2].
    """
    means = weights @ positions
    products = (positions[..., :, None] * positions[..., None, :]).flatten(-2)
    squares = (weights @ products).view(*means.shape, 2)
    return means, squares - means[..., :, None] * means[..., None, :]


def _cell_areas(targets: Tensor) -> Tensor:
    """Return the area [B, h, w] that each cell covers at its target, up to a common factor.

    Args:
        targets: [B, h, w, 2], positions to which a warp maps the cells.
    """
    down, right = torch.gradient(targets, dim=(1, 2))
    return (down[..., 0] * right[..., 1] - down[..., 1] * right[..., 0]).abs()


def invert_covariances(covariances: Tensor, min_variance: float) -> Tensor:
    """Add `min_variance` to the variances of covariances [..., 2, 2], and return the inverse matrices."""
    xx, xy, yy, determinant = _enlarge(covariances, min_variance)
    adjugate = torch.stack([yy, -xy, -xy, xx], dim=-1) / determinant[..., None]
    return adjugate.view_as(covariances)


def covariance_roots(covariances: Tensor, min_variance: float) -> Tensor:
    """Add `min_variance` to the variances of covariances [..., 2, 2], and return the symmetric square roots.

    The square root of a 2x2 matrix A is (A + d I) / sqrt(trace A + 2 d), where d is the square root of the
    determinant of A (by the Cayley-Hamilton theorem).
    """
    xx, xy, yy, determinant = _enlarge(covariances, min_variance)
    d = determinant.sqrt()
    roots = torch.stack([xx + d, xy, xy, yy + d], dim=-1) / (xx + yy + 2 * d).sqrt()[..., None]
    return roots.view_as(covariances)


def _enlarge(covariances: Tensor, min_variance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add `min_variance` to the variances of covariances [..., 2, 2].

    Returns:
        The entries xx, xy and yy of the new matrices, and their determinants. Each tensor has shape [...].
    """
    xx, xy, yy = covariances[..., 0, 0], covariances[..., 0, 1], covariances[..., 1, 1]
    determinant_before = (xx * yy - xy.square()).clamp(min=0)  # negative only because of rounding
    determinant = determinant_before + min_variance * (xx + yy) + min_variance**2
    return xx + min_variance, xy, yy + min_variance, determinant


def bell_maps(means: Tensor, precision: Tensor, size: int) -> Tensor:
    """Return 1 / (1 + (x - mean)^T precision (x - mean)) at the cells x of a square map.

    Args:
        means: [B, K, 2].
        precision: [B, K, 2, 2], inverse covariances.
        size: side of the map, in cells.

    Returns:
        Maps [B, K, size, size].
    """
    line = (torch.arange(size, device=means.device) + 0.5) * (2 / size) - 1
    dx = (line - means[..., :1])[..., None, :]  # [B, K, 1, size]
    dy = (line - means[..., 1:])[..., :, None]  # [B, K, size, 1]
    xx, xy, yy = (precision[..., i, j, None, None] for i, j in ((0, 0), (0, 1), (1, 1)))
    return 1 / (1 + xx * dx.square() + 2 * xy * dx * dy + yy * dy.square())


def pixel_weights(means: Tensor, size: int, radius: float, floor: float) -> Tensor:
    """Return the weight of each pixel in the reconstruction loss; pixels near parts count most.

    The weight of a pixel is a sum over parts, clamped to 1. Weights below `floor` become 0.

    Args:
        means: [B, K, 2], positions of the parts.
        size: side of the image, in pixels.
        radius: distance from a part at which its contribution is one half.
        floor: smaller weights become 0.

    Returns:
        Weights [B, size, size], divided by their sum over each image.
    """
    precision = torch.eye(2, device=means.device).expand(*means.shape[:2], 2, 2) / radius**2
    weights = bell_maps(means, precision, size).sum(dim=1).clamp(max=1)
    weights = weights * (weights >= floor)
    return weights / weights.sum(dim=(1, 2), keepdim=True)


def mean_distance(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean Frobenius norm of the differences between matrices [B, K, 2, 2]."""
    return ((first - second).square().sum(dim=(2, 3)) + _SMALL).sqrt().mean()


def relative_difference(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute difference, divided by the mean absolute value of the target."""
    return (predicted - target).abs().mean() / (target.abs().mean() + _SMALL)
