"""The first keypoints of a whole data set, in network pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.keypoints.detectors import create_detector
from selfmark.points import FloatArray, Keypoints, concatenate_keypoints


def detect_first_keypoints(
    pixels: torch.Tensor,
    bounds: FloatArray,
    settings: FirstKeypoints,
    device: torch.device,
    batch: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Keypoints:
    """Run the detector the settings name over all images.

    Args:
        pixels: uint8 [N, 3, S, S], the images as the network sees them.
        bounds: [N, 4] rectangle (x0, y0, x1, y1) in network pixels, both ends included, outside which points
            are dropped: there is padding, or what surrounds the object.
        settings: detector, its working size and its thresholds.
        device: where detection runs and the result lies.
        batch: images at a time.
        on_progress: called with the images done and the images in all.
    """
    detector = create_detector(settings, device)
    total, side = len(pixels), pixels.shape[-1]
    scale = side / settings.image_size
    parts = []
    for start in range(0, total, batch):
        stop = min(start + batch, total)
        found = detector.detect(resize_images(pixels[start:stop].to(device), settings.image_size))
        xy = (found.xy + 0.5) * scale - 0.5
        rectangle = torch.as_tensor(bounds[start:stop], dtype=torch.float32, device=xy.device)
        low, high = rectangle[found.image_index].chunk(2, dim=1)
        inside = ((xy >= low) & (xy <= high)).all(dim=1)
        parts.append(Keypoints(xy, found.image_index + start, found.score, found.descriptor).select(inside))
        if on_progress is not None:
            on_progress(stop, total)
    return concatenate_keypoints(parts)


def resize_images(images: torch.Tensor, side: int) -> torch.Tensor:
    """Square uint8 images [B, 3, S, S] at another size, free of aliasing that detectors take for texture."""
    if images.shape[-1] == side:
        return images
    resized = F.interpolate(
        images.float(), (side, side), mode="bilinear", align_corners=False, antialias=True
    )
    return resized.round().clamp(0, 255).to(torch.uint8)


def mix_in_random_points(
    points: Keypoints, share: float, images: int, size: int, generator: torch.Generator
) -> Keypoints:
    """Replace a share of every image's points by random ones, uniform over the image (Robustness to noise).

    Which points go is drawn at random; their number is `share` of the image's points, rounded. Random points
    look like nothing, so the result has no descriptors unless `share` is 0. Scores stay: they must not tell
    the noise apart.
    """
    if share == 0:
        return points
    device, count = points.xy.device, len(points)
    # Shuffle, then sort by image: the place of a point within its image is then its lot.
    shuffled = torch.randperm(count, generator=generator, device=generator.device).to(device)
    dealt = shuffled[torch.argsort(points.image_index[shuffled], stable=True)]
    counts = points.counts(images)
    first = torch.cumsum(counts, dim=0) - counts
    owner = points.image_index[dealt]
    lot = torch.arange(count, device=device) - first[owner]
    replaced = dealt[lot < (counts * share + 0.5).floor()[owner]]
    noise = torch.rand(len(replaced), 2, generator=generator, device=generator.device).to(device)
    xy = points.xy.clone()
    xy[replaced] = noise * size - 0.5
    return Keypoints(xy, points.image_index, points.score)
