"""Implement equivariance: learn landmarks that follow random warps and are at different places.

Thewlis, Bilen and Vedaldi: Unsupervised learning of object landmarks by factorized spatial embeddings (ICCV
2017).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.methods.contract import RandomChanges, TrainedMethod
from selfmark.methods.warps import Warps, cell_positions
from selfmark.train.engine import Losses


class Equivariance(TrainedMethod):
    """K distributions that must follow the warp between two views and be at different places."""

    @property
    def lr(self) -> float:
        """Return the learning rate of Adam."""
        return self.config.equivariance.lr

    def compute_losses(self, images: Tensor, others: Tensor, changes: RandomChanges) -> Losses:
        """Warp each image, warp the result again, and compare the landmarks of the two views."""
        settings = self.config.equivariance
        first = changes.draw_warps().apply(images)
        warps = changes.draw_warps()
        second = warps.apply(first)
        given, warped = self.psi.distributions(torch.cat([first, second])).chunk(2)
        # Positions are from -1 to 1. Convert the squared distance to squared pixels of an image that has
        # `settings.side` pixels per side.
        alignment = alignment_loss(given, warped, warps) * (settings.side / 2) ** 2
        diversity = (diversity_loss(given, settings.pool) + diversity_loss(warped, settings.pool)) / 2
        total = alignment + settings.diversity_weight * diversity
        return {"total": total, "alignment": alignment, "diversity": diversity}


def alignment_loss(given: Tensor, warped: Tensor, warps: Warps) -> Tensor:
    """Return the expected squared distance between given landmarks and warped landmarks, mapped back.

    The paper sums |u - g(v)|^2 p(u) q(v) over all pairs of cells u and v. Expanding the square leaves only
    moments of p and of q, so that pairs need not be formed.

    Args:
        given: [B, K, h, w], distributions p of the given images.
        warped: [B, K, h, w], distributions q of the warped images.
        warps: maps positions of the warped images to positions of the given images.
    """
    height, width = given.shape[-2:]
    cells = cell_positions(height, width, given.device)
    targets = warps(cells.expand(len(given), -1, -1))
    p, q = given.flatten(2), warped.flatten(2)
    mean_p, mean_q = p @ cells, q @ targets
    square_p = p @ cells.square().sum(-1)
    square_q = (q @ targets.square().sum(-1, keepdim=True)).squeeze(-1)
    return (square_p + square_q - 2 * (mean_p * mean_q).sum(-1)).mean()


def diversity_loss(distributions: Tensor, pool: int) -> Tensor:
    """Penalize landmarks that share a place: 0 if no square contains two landmarks, at most 1 - 1/K.

    The paper divides the image into squares. Its loss is K minus the sum, over squares, of the largest
    probability of any landmark in the square. With these squares, four landmarks could meet at a corner of
    four squares: the landmarks would share a place, but no square. Here squares therefore start at every
    cell. The loss is also divided by K.

    Args:
        distributions: [B, K, h, w].
        pool: side of a square, in cells.
    """
    margin = pool - 1  # With this padding, cells at the border are in as many squares as all other cells.
    padded = F.pad(distributions, (margin, margin, margin, margin))
    # Each cell is in pool^2 squares; the average divides by this number.
    probabilities = F.avg_pool2d(padded, pool, stride=1)
    return 1 - probabilities.amax(dim=1).sum(dim=(1, 2)).mean() / distributions.shape[1]
