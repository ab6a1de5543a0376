"""From dense maps to points: non-maximum suppression, the best few, their descriptors.

The learned detectors (SuperPoint, R2D2, ALIKE) differ in their networks only; what happens to a
network's score map and descriptor map afterwards is the same for all and lives here.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from selfmark.model.heatmaps import local_maxima, sample_descriptors
from selfmark.points import Keypoints

# Convolutions see zeros beyond the image, and networks mistake that edge for structure: no points there.
BORDER = 4


def strongest_peaks(
    score: torch.Tensor, descriptors: torch.Tensor, stride: int, radius: int, threshold: float, count: int
) -> Keypoints:
    """At most `count` best local maxima of each image, best first, with their descriptors.

    Args:
        score: [B, H, W], one value per image pixel.
        descriptors: [B, D, h, w] with `stride` image pixels per cell.
        radius: of the non-maximum suppression, pixels.
        threshold: least score; `-math.inf` takes the best whatever their score.
        count: most points per image.
    """
    batch, height, width = score.shape
    inner = F.pad(
        score[:, BORDER : height - BORDER, BORDER : width - BORDER], [BORDER] * 4, value=-math.inf
    )  # before the suppression, so that an edge's false peak cannot silence a true one beside it
    peaks = local_maxima(inner, radius, threshold)
    value, place = torch.where(peaks, inner, -math.inf).flatten(1).topk(min(count, height * width))
    xy = torch.stack((place % width, place // width), dim=-1).float()
    vectors = sample_descriptors(descriptors, (xy + 0.5) / stride - 0.5)
    image_index = torch.arange(batch, device=score.device)[:, None].expand_as(place)
    found = value > -math.inf
    return Keypoints(xy[found], image_index[found], value[found], vectors[found])
