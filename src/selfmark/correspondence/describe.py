"""Apply Phi to the whole training set: keypoints by non-maximum suppression, two descriptors for each.

Descriptors are by far the largest thing a round makes. Room for as many as there can be is set aside before
the first image: on the device if there is plenty of memory, otherwise on the host, where pages that stay
empty cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.images.feed import PixelFeed
from selfmark.model.heatmaps import find_peaks, to_pixels
from selfmark.model.network import Phi, bytes_per_image
from selfmark.points import Keypoints, concatenate_keypoints
from selfmark.run.devices import free_memory, images_per_pass
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


@torch.no_grad()
def describe_images(
    phi: Phi,
    feed: PixelFeed,
    config: Config,
    on_progress: Callable[[int, int], None] | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> DescribedPoints:
    """Keypoints and descriptors of all images and, for mirror partners, of these points in the mirror images.

    Each process of a group describes its share of the images; `image_index` counts all of them. The result is
    on the device or, where its descriptors would take too much memory there, on the host.
    """
    phi.eval()
    rows = group.shard(len(feed))
    room = _room(rows.stop - rows.start, config, feed.device)
    parts: list[Keypoints] = []
    start, filled = rows.start, 0
    each = bytes_per_image(config.network, config.images.size) * (1 + config.flip.finds_partners)
    batch = images_per_pass(config.runtime.predict_batch, each, feed.device)
    for pixels in feed.in_order(batch, rows):
        images = pixels.float() / 255
        maps, mirrored = phi.forward_with_mirror(images) if config.flip.finds_partners else (phi(images), None)
        peaks = find_peaks(
            maps.confidence[:, 0],
            config.heatmaps.threshold,
            config.heatmaps.nms_radius,
            config.heatmaps.max_points,
            config.heatmaps.refine,
        )
        views = [phi.describe(maps.features, peaks.cells)]
        if mirrored is not None:
            # Cell x of the image is cell w-1-x of its mirror image.
            cells = torch.stack([config.map_size - 1 - peaks.cells[..., 0], peaks.cells[..., 1]], dim=-1)
            views.append(phi.describe(mirrored, cells))
        # How many points there are is asked of the device once, after everything of this batch is under way.
        image, slot = torch.nonzero(peaks.valid, as_tuple=True)
        parts.append(Keypoints(to_pixels(peaks.cells[image, slot]), image + start, peaks.score[image, slot]))
        for place, view in zip(room, views, strict=True):
            place[filled : filled + len(image)] = view[image, slot]
        filled += len(image)
        start += len(pixels)
        if on_progress is not None:
            on_progress(start - rows.start, rows.stop - rows.start)
    points = concatenate_keypoints(parts).to(room.device)
    described = Keypoints(points.xy, points.image_index, points.score, room[0, :filled])
    return DescribedPoints(described, room[1, :filled] if config.flip.finds_partners else None)


def _room(images: int, config: Config, device: torch.device) -> Tensor:
    """Room [views, P, D] for the descriptors of as many points as so many images can have.

    It is on the device if it takes at most `device_share` of the memory free there.
    """
    shape = (1 + config.flip.finds_partners, images * config.heatmaps.max_points, config.network.descriptor)
    size = torch.float32.itemsize * math.prod(shape)
    if device.type == "cuda" and size > config.runtime.device_fraction * free_memory(device):
        device = torch.device("cpu")
    return torch.empty(shape, dtype=torch.float32, device=device)
