"""Homographic adaptation: what a detector finds in many deformations of an image becomes its labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.model.heatmaps import find_peaks
from training.keypoints.data import Labeled
from training.keypoints.homography import inverse, random_homographies, warp_images
from training.keypoints.light import blur, relight
from training.keypoints.settings import Settings


def confidence(network: nn.Module, views: Tensor) -> Tensor:
    """The detector's map [B, 1, S, S] of views [B, 1, S, S], in half the precision on a GPU."""
    with torch.autocast(views.device.type, torch.bfloat16, enabled=views.is_cuda):
        score, _ = network(views.expand(-1, 3, -1, -1))
    result: Tensor = score.float()[:, None]
    return result


@torch.no_grad()
def mean_confidence(
    network: nn.Module, images: Tensor, settings: Settings, generator: torch.Generator
) -> Tensor:
    """The mean over many deformations, carried back to the image: [B, S, S] for images [B, 1, S, S] in 0..1.

    A place counts only in those views that show it.
    """
    side = images.shape[-1]
    views = settings.adapt_views
    total = confidence(network, images)
    seen = torch.ones_like(total)
    for _ in range(settings.adapt.views):
        homography = random_homographies(len(images), side, views, generator)
        view, _ = warp_images(images, homography, views.side)
        view = relight(view, settings.adapt_light, generator)
        found, shown = warp_images(confidence(network, view), inverse(homography), side, "zeros")
        total += found * shown[:, None]
        seen += shown[:, None]
    return (total / seen)[:, 0]


@torch.no_grad()
def adapt(network: nn.Module, images: Tensor, settings: Settings, generator: torch.Generator) -> Labeled:
    """Label images [N, S, S] uint8 with the points that recur.

    Args:
        network: as `SuperPoint`, RGB [B, 3, S, S] in 0..1 -> score [B, S, S] and anything.
    """
    rules, most = settings.adapt, settings.data.most_points
    labels = []
    for start in range(0, len(images), rules.batch):
        batch = images[start : start + rules.batch, None].float() / 255
        heat = mean_confidence(network, batch, settings, generator)
        # Detections of one point scatter by a pixel or so; together they make its peak.
        heat = blur(heat[:, None], heat.new_full((len(heat),), rules.smooth))[:, 0]
        edge = rules.border
        heat = F.pad(heat[:, edge:-edge, edge:-edge], [edge] * 4)
        peaks = find_peaks(heat, rules.threshold, rules.radius, most, "parabola")
        labels.append(torch.where(peaks.valid[..., None], peaks.cells, torch.nan))
    return Labeled(images, torch.cat(labels))
