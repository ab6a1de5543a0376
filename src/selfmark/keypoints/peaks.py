"""Find keypoints in the score maps of learned detectors and sample their descriptors.

All learned detectors (SuperPoint, selfmark's own, R2D2 and ALIKE) use this module.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from selfmark.model.heatmaps import local_maxima, sample_descriptors
from selfmark.points import Keypoints

BORDER = 4  # pixels; points this close to the edge are ignored: networks mistake zero padding for structure


def find_strongest_peaks(
    score: torch.Tensor, descriptors: torch.Tensor, stride: int, radius: int, threshold: float, count: int
) -> Keypoints:
    """Return the highest local maxima of each image, highest first, with their descriptors.

    Args:
        score: [B, H, W], one value per image pixel.
        descriptors: [B, D, h, w] map of descriptors.
        stride: image pixels per descriptor cell.
        radius: radius of the non-maximum suppression, in pixels.
        threshold: minimum score; `-math.inf` accepts any score.
        count: maximum number of points per image.
    """
    batch, height, width = score.shape
    # Mask the border before the suppression, so that a false peak there cannot suppress a true neighbor.
    inner = F.pad(score[:, BORDER : height - BORDER, BORDER : width - BORDER], [BORDER] * 4, value=-math.inf)
    peaks = local_maxima(inner, radius, threshold)
    value, position = torch.where(peaks, inner, -math.inf).flatten(1).topk(min(count, height * width))
    xy = torch.stack((position % width, position // width), dim=-1).float()
    vectors = sample_descriptors(descriptors, (xy + 0.5) / stride - 0.5)
    image_index = torch.arange(batch, device=score.device)[:, None].expand_as(position)
    is_peak = value > -math.inf
    return Keypoints(xy[is_peak], image_index[is_peak], value[is_peak], vectors[is_peak])
