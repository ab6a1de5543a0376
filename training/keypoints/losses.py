"""What is minimized: a 65-way choice in every cell, and descriptors that recognize their own place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.keypoints.superpoint import CELL
from selfmark.model.heatmaps import sample_descriptors


def cell_labels(xy: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """For every cell of 8 x 8 pixels the pixel that holds a point, or 64 for none: [B, side/8, side/8].

    Where several points share a cell, one is drawn at random.

    Args:
        xy: [B, P, 2] pixels; NaN, or outside the image, where there is no point.
    """
    batch = len(xy)
    whole = xy.nan_to_num(-1e4, -1e4, -1e4).round().long()
    inside = ((whole >= 0) & (whole < side)).all(dim=-1)
    place = (whole[..., 1] * side + whole[..., 0]).masked_fill(~inside, side * side)  # one spare pixel
    lots = torch.rand(place.shape, generator=generator, device=xy.device) + 1.0
    pixels = torch.zeros(batch, side * side + 1, device=xy.device).scatter_(1, place, lots)
    cells = F.pixel_unshuffle(pixels[:, :-1].reshape(batch, 1, side, side), CELL)
    none = torch.full_like(cells[:, :1], 0.5)
    return torch.cat((cells, none), dim=1).argmax(dim=1)


def whole_cells(inside: Tensor) -> Tensor:
    """Which cells lie in the image with all their pixels: [B, H, W] bool to [B, H/8, W/8]."""
    return F.max_pool2d((~inside).float()[:, None], CELL)[:, 0] == 0


def detector_loss(logits: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Mean cross entropy of the cells counted.

    Args:
        logits: [B, 65, h, w].
        labels: [B, h, w] in 0..64.
        counted: [B, h, w] bool.
    """
    each = F.cross_entropy(logits.float(), labels, reduction="none")
    return (each * counted).sum() / counted.sum().clamp_min(1)


def descriptor_loss(
    first: Tensor, second: Tensor, xy1: Tensor, xy2: Tensor, valid: Tensor, temperature: float, apart: float
) -> Tensor:
    """Each place must know itself in the other view among the places of that view, both ways (InfoNCE).

    Only places of the same image compete, as in selfmark's own loss: what looks alike in different images
    may well be the same part of an object.

    Args:
        first: [B, 256, h, w] raw descriptors of one view; `second` of the other.
        xy1: [B, M, 2] the places in pixels of the first view; `xy2` the same places in the second.
        valid: [B, M] places seen in both views.
        apart: places nearer than this to the right answer, in pixels, are not counted as wrong.
    """
    one = sample_descriptors(first, (xy1 + 0.5) / CELL - 0.5)
    two = sample_descriptors(second, (xy2 + 0.5) / CELL - 0.5)
    likeness = one @ two.transpose(1, 2) / temperature  # [B, M, M]
    itself = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
    target = torch.arange(valid.shape[1], device=valid.device).expand_as(valid)
    total = likeness.new_zeros(())
    for matrix, competing in ((likeness, xy2), (likeness.transpose(1, 2), xy1)):
        near = torch.cdist(competing, competing) < apart
        ignored = (near & ~itself) | ~valid[:, None, :]
        # Own place always competes, so that rows that do not count stay finite.
        scores = matrix.masked_fill(ignored & ~itself, -1e4)
        each = F.cross_entropy(scores.transpose(1, 2), target, reduction="none")
        total = total + (each * valid).sum() / valid.sum().clamp_min(1)
    return total / 2
