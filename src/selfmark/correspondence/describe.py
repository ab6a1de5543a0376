"""Apply Phi to the whole training set: keypoints by non-maximum suppression, two descriptors for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.group import ALONE, Group
from selfmark.model.heatmaps import find_peaks, to_pixels
from selfmark.model.network import Phi
from selfmark.points import Keypoints, concatenate
from selfmark.train.feed import PixelFeed


@torch.no_grad()
def describe(
    phi: Phi,
    feed: PixelFeed,
    config: Config,
    on_progress: Callable[[int, int], None] | None = None,
    group: Group = ALONE,
) -> DescribedPoints:
    """Keypoints and descriptors of all images and, with flipping, of the same points in the mirror images.

    Each process of a group describes its share of the images; `image_index` counts all of them.
    """
    phi.eval()
    rows = group.share(len(feed))
    parts: list[Keypoints] = []
    mirrored: list[Tensor] = []
    start = rows.start
    for pixels in feed.in_order(config.runtime.predict_batch, rows):
        images = pixels.float() / 255
        maps = phi(images)
        peaks = find_peaks(
            maps.confidence[:, 0],
            config.heatmaps.threshold,
            config.heatmaps.nms_radius,
            config.heatmaps.max_points,
            config.heatmaps.refine,
        )
        described = phi.describe(maps.features, peaks.cells)
        across = described
        if config.flip.train:
            # Cell x of the image is cell w-1-x of its mirror image.
            cells = torch.stack([config.map_size - 1 - peaks.cells[..., 0], peaks.cells[..., 1]], dim=-1)
            across = phi.describe(phi.features(images.flip(-1)), cells)
        # How many points there are is asked of the device once, after everything of this batch is under way.
        image, slot = torch.nonzero(peaks.valid, as_tuple=True)
        parts.append(
            Keypoints(
                xy=to_pixels(peaks.cells[image, slot]),
                image_index=image + start,
                score=peaks.score[image, slot],
                descriptor=described[image, slot],
            )
        )
        if config.flip.train:
            mirrored.append(across[image, slot])
        start += len(pixels)
        if on_progress is not None:
            on_progress(start - rows.start, rows.stop - rows.start)
    return DescribedPoints(concatenate(parts), torch.cat(mirrored) if mirrored else None)
