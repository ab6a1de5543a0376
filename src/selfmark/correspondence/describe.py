"""Apply Phi, the network of Stage 1, to all images: find and describe keypoints (Sec. 3.2 of the paper).

Descriptors take by far the most memory in a round. Memory for the largest possible number of descriptors is
allocated before the first image is read. The memory is on the device if there is enough, otherwise on the
host. Host memory that is never written takes no space.
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
from selfmark.run.devices import images_per_pass, measure_free_memory
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


@torch.no_grad()
def describe_images(
    phi: Phi,
    feed: PixelFeed,
    config: Config,
    on_progress: Callable[[int, int], None] | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> DescribedPoints:
    """Find keypoints in all images and compute their descriptors.

    Descriptors are also computed in the mirror images if the settings ask for mirror partners (Sec. 3.7).

    Args:
        phi: the network of Stage 1.
        feed: the training images.
        config: settings.
        on_progress: called with two numbers for this process: images done, and images in total.
        group: the processes that share the images.

    Returns:
        The keypoints of this process's images. `image_index` is the row of an image among those of all
        processes. All tensors are on the device, or in host memory if the descriptors would take too much
        device memory.
    """
    phi.eval()
    rows = group.shard(len(feed))
    num_images = rows.stop - rows.start
    descriptors = _allocate_descriptors(num_images, config, feed.device)
    parts: list[Keypoints] = []
    start, num_points = rows.start, 0
    image_bytes = bytes_per_image(config.network, config.images.size) * (1 + config.flip.finds_partners)
    batch = images_per_pass(config.runtime.predict_batch, image_bytes, feed.device)
    for pixels in feed.sequential_batches(batch, rows):
        images = pixels.float() / 255
        mirrored: Tensor | None = None
        if config.flip.finds_partners:
            maps, mirrored = phi.forward_with_mirror(images)
        else:
            maps = phi(images)
        peaks = find_peaks(
            maps.confidence[:, 0],
            config.heatmaps.threshold,
            config.heatmaps.nms_radius,
            config.heatmaps.max_points,
            config.heatmaps.refine,
        )
        views = [phi.describe(maps.features, peaks.cells)]
        if mirrored is not None:
            # Maps have w = `map_size` columns. Column x of an image is column w-1-x of its mirror image.
            cells = torch.stack([config.map_size - 1 - peaks.cells[..., 0], peaks.cells[..., 1]], dim=-1)
            views.append(phi.describe(mirrored, cells))
        # `nonzero` waits for the device, so it comes after all other work of this batch has been queued.
        image_index, slot = torch.nonzero(peaks.valid, as_tuple=True)
        parts.append(
            Keypoints(
                to_pixels(peaks.cells[image_index, slot]), image_index + start, peaks.score[image_index, slot]
            )
        )
        for stored, view in zip(descriptors, views, strict=True):
            stored[num_points : num_points + len(image_index)] = view[image_index, slot]
        num_points += len(image_index)
        start += len(pixels)
        if on_progress is not None:
            on_progress(start - rows.start, num_images)
    points = concatenate_keypoints(parts).to(descriptors.device)
    described = Keypoints(points.xy, points.image_index, points.score, descriptors[0, :num_points])
    return DescribedPoints(described, descriptors[1, :num_points] if config.flip.finds_partners else None)


def _allocate_descriptors(num_images: int, config: Config, device: torch.device) -> Tensor:
    """Allocate memory [V, P, D] for the descriptors of P points, the most that the images can have.

    V is 2 if mirror images are described too, else 1. The memory is on the device if it takes at most the
    fraction `runtime.device_fraction` of the free device memory.
    """
    num_views = 1 + config.flip.finds_partners
    shape = (num_views, num_images * config.heatmaps.max_points, config.network.descriptor)
    size = torch.float32.itemsize * math.prod(shape)
    if device.type == "cuda" and size > config.runtime.device_fraction * measure_free_memory(device):
        device = torch.device("cpu")
    return torch.empty(shape, dtype=torch.float32, device=device)
