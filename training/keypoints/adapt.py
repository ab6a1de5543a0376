"""Label images by homographic adaptation: points found in many deformed views of an image become labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfmark.model.heatmaps import find_peaks
from training.keypoints.data import LabeledImages
from training.keypoints.homography import invert, sample_homographies, warp_images
from training.keypoints.light import blur, relight
from training.keypoints.settings import Settings


def compute_confidence(network: nn.Module, views: Tensor) -> Tensor:
    """Return the detector's confidence maps [B, 1, S, S] of gray views [B, 1, S, S], in bfloat16 on a GPU."""
    with torch.autocast(views.device.type, torch.bfloat16, enabled=views.is_cuda):
        score, _ = network(views.expand(-1, 3, -1, -1))
    result: Tensor = score.float()[:, None]
    return result


@torch.no_grad()
def compute_mean_confidence(
    network: nn.Module, images: Tensor, settings: Settings, generator: torch.Generator
) -> Tensor:
    """Return the mean confidence [B, S, S] over images [B, 1, S, S] in 0..1 and many deformed views of them.

    The confidence of each view is mapped back to the image. A pixel is averaged only over the views that show
    it.
    """
    side = images.shape[-1]
    ranges = settings.adapt_views
    total = compute_confidence(network, images)
    count = torch.ones_like(total)
    for _ in range(settings.adapt.views):
        homography = sample_homographies(len(images), side, ranges, generator)
        view, _ = warp_images(images, homography, ranges.side)
        view = relight(view, settings.adapt_light, generator)
        unwarped, visible = warp_images(compute_confidence(network, view), invert(homography), side, "zeros")
        total += unwarped * visible[:, None]
        count += visible[:, None]
    return (total / count)[:, 0]


@torch.no_grad()
def adapt(
    network: nn.Module, images: Tensor, settings: Settings, generator: torch.Generator
) -> LabeledImages:
    """Label images with the points that a detector finds in many views.

    Args:
        network: Network like `SuperPoint`. It maps RGB images [B, 3, S, S] in 0..1 to scores [B, S, S] and a
            second result, which is ignored.
        images: Gray images [N, S, S] uint8.
        settings: Settings of the training.
        generator: Random generator.
    """
    options = settings.adapt
    labels = []
    for start in range(0, len(images), options.batch):
        batch = images[start : start + options.batch, None].float() / 255
        heat = compute_mean_confidence(network, batch, settings, generator)
        # Detections of one point scatter by about a pixel. The blur merges them into one peak.
        heat = blur(heat[:, None], heat.new_full((len(heat),), options.smooth))[:, 0]
        edge = options.border
        heat = F.pad(heat[:, edge:-edge, edge:-edge], [edge] * 4)
        peaks = find_peaks(heat, options.threshold, options.radius, settings.data.max_points, "parabola")
        labels.append(torch.where(peaks.valid[..., None], peaks.cells, torch.nan))
    return LabeledImages(images, torch.cat(labels))
