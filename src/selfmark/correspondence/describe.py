"""Apply Phi to the whole training set: keypoints by non-maximum suppression, two descriptors for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.model.heatmaps import find_peaks, sample_descriptors, to_pixels
from selfmark.model.network import Phi
from selfmark.points import Keypoints, concatenate
from selfmark.train.engine import autocast
from selfmark.train.feed import PixelFeed


@torch.no_grad()
def describe(
    phi: Phi, feed: PixelFeed, config: Config, on_progress: Callable[[int, int], None] | None = None
) -> DescribedPoints:
    """Keypoints and descriptors of all images and, with flipping, of the same points in the mirror images."""
    phi.eval()
    parts: list[Keypoints] = []
    mirrored: list[Tensor] = []
    for start in range(0, len(feed), config.runtime.predict_batch):
        stop = min(start + config.runtime.predict_batch, len(feed))
        images = feed.slice(start, stop)
        with autocast(feed.device, config.runtime):
            maps = phi(images)
        peaks = find_peaks(
            maps.confidence[:, 0],
            config.heatmaps.threshold,
            config.heatmaps.nms_radius,
            config.heatmaps.max_points,
            config.heatmaps.refine,
        )
        image, _ = torch.nonzero(peaks.valid, as_tuple=True)
        parts.append(
            Keypoints(
                xy=to_pixels(peaks.cells[peaks.valid]),
                image_index=image + start,
                score=peaks.score[peaks.valid],
                descriptor=sample_descriptors(maps.features, peaks.cells)[peaks.valid],
            )
        )
        if config.flip.train:
            with autocast(feed.device, config.runtime):
                features = phi(images.flip(-1)).features
            # Cell x of the image is cell w-1-x of its mirror image.
            across = torch.stack([config.map_size - 1 - peaks.cells[..., 0], peaks.cells[..., 1]], dim=-1)
            mirrored.append(sample_descriptors(features, across)[peaks.valid])
        if on_progress is not None:
            on_progress(stop, len(feed))
    return DescribedPoints(concatenate(parts), torch.cat(mirrored) if mirrored else None)
