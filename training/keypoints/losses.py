"""Compute the losses: a classification with 65 classes in each cell, and a contrastive descriptor loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.keypoints.superpoint import CELL
from selfmark.model.heatmaps import sample_descriptors


def label_cells(xy: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Return the label of every cell of 8 x 8 pixels: the pixel of the cell that contains a point, or 64.

    The label 64 means no point. If several points share a cell, one is chosen at random.

    Args:
        xy: Points [B, P, 2] in pixels, padded with NaN; points outside the image are ignored.
        side: Side of the image in pixels.
        generator: Random generator.

    Returns:
        Labels [B, side/8, side/8] in 0..64.
    """
    batch = len(xy)
    rounded = xy.nan_to_num(-1e4, -1e4, -1e4).round().long()
    is_inside = ((rounded >= 0) & (rounded < side)).all(dim=-1)
    # Points outside the image go to one extra pixel at the end.
    index = (rounded[..., 1] * side + rounded[..., 0]).masked_fill(~is_inside, side * side)
    priority = torch.rand(index.shape, generator=generator, device=xy.device) + 1.0
    pixels = torch.zeros(batch, side * side + 1, device=xy.device).scatter_(1, index, priority)
    cells = F.pixel_unshuffle(pixels[:, :-1].reshape(batch, 1, side, side), CELL)
    no_point = torch.full_like(cells[:, :1], 0.5)  # less than every priority
    return torch.cat((cells, no_point), dim=1).argmax(dim=1)


def find_full_cells(is_inside: Tensor) -> Tensor:
    """Return a mask [B, H/8, W/8] of the cells that lie completely inside the image.

    Args:
        is_inside: Mask [B, H, W] of the pixels of a view that lie inside the image.
    """
    return F.max_pool2d((~is_inside).float()[:, None], CELL)[:, 0] == 0


def compute_detector_loss(logits: Tensor, labels: Tensor, is_counted: Tensor) -> Tensor:
    """Return the mean cross entropy of the counted cells.

    Args:
        logits: Logits [B, 65, h, w].
        labels: Labels [B, h, w] in 0..64.
        is_counted: Mask [B, h, w] of the cells to count.
    """
    cell_losses = F.cross_entropy(logits.float(), labels, reduction="none")
    return (cell_losses * is_counted).sum() / is_counted.sum().clamp_min(1)


def compute_descriptor_loss(
    first: Tensor,
    second: Tensor,
    xy1: Tensor,
    xy2: Tensor,
    valid: Tensor,
    temperature: float,
    min_distance: float,
) -> Tensor:
    """Return the InfoNCE loss of matching each position with the same position in the other view.

    The loss is the mean of both directions. Negatives come only from the same image, as in selfmark's own
    loss, because positions that look alike in different images may be the same part of an object.

    Args:
        first: Raw descriptors [B, 256, h, w] of the first view.
        second: Raw descriptors [B, 256, h, w] of the second view.
        xy1: Positions [B, M, 2] in pixels of the first view.
        xy2: The same positions in pixels of the second view.
        valid: Mask [B, M] of positions that are visible in both views.
        temperature: Temperature of the softmax.
        min_distance: Positions closer than this to the correct one, in pixels, are not negatives.
    """
    first_vectors = sample_descriptors(first, (xy1 + 0.5) / CELL - 0.5)
    second_vectors = sample_descriptors(second, (xy2 + 0.5) / CELL - 0.5)
    similarity = first_vectors @ second_vectors.transpose(1, 2) / temperature  # [B, M, M]
    is_same_position = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
    target = torch.arange(valid.shape[1], device=valid.device).expand_as(valid)
    total = similarity.new_zeros(())
    for matrix, positions in ((similarity, xy2), (similarity.transpose(1, 2), xy1)):
        is_near = torch.cdist(positions, positions) < min_distance
        is_ignored = (is_near & ~is_same_position) | ~valid[:, None, :]
        # The correct position is never masked, so that rows that do not count stay finite.
        scores = matrix.masked_fill(is_ignored & ~is_same_position, -1e4)
        point_losses = F.cross_entropy(scores.transpose(1, 2), target, reduction="none")
        total = total + (point_losses * valid).sum() / valid.sum().clamp_min(1)
    return total / 2
