"""Detect the first keypoints of a whole data set, in network pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from selfmark.config import FirstKeypoints
from selfmark.keypoints.detectors import create_detector
from selfmark.keypoints.memory_limit import limit_images
from selfmark.points import FloatArray, Keypoints, concatenate_keypoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

_RESIZE_PIXEL_BYTES = 39  # bytes per pixel in `resize_images`: three copies in float32 and one in uint8


def detect_first_keypoints(
    pixels: torch.Tensor,
    bounds: FloatArray,
    settings: FirstKeypoints,
    device: torch.device,
    batch: int,
    on_progress: Callable[[int, int], None] | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Keypoints:
    """Detect keypoints in all images with the detector named in the settings.

    Args:
        pixels: [N, 3, S, S] uint8, images as the network sees them.
        bounds: [N, 4] rectangle (x0, y0, x1, y1) in network pixels, both ends included. Points outside it are
            dropped, because they are in the padding or outside the object's box.
        settings: detector, its image size and its thresholds.
        device: device of the computation and of the result.
        batch: maximum number of images per call of the detector; large images come in smaller batches.
        on_progress: called with two numbers for this process: images done, and images in total.
        group: the processes that share the images; each gets the keypoints of all images.
    """
    scale = pixels.shape[-1] / settings.image_size
    batch = limit_images(batch, settings.image_size**2 * _RESIZE_PIXEL_BYTES, device)

    def detect(rows: slice) -> list[torch.Tensor]:
        detector = create_detector(settings, device)
        parts = []
        for start in range(rows.start, rows.stop, batch):
            stop = min(start + batch, rows.stop)
            detected = detector.detect(resize_images(pixels[start:stop].to(device), settings.image_size))
            xy = (detected.xy + 0.5) * scale - 0.5
            rectangle = torch.as_tensor(bounds[start:stop], dtype=torch.float32, device=xy.device)
            low, high = rectangle[detected.image_index].chunk(2, dim=1)
            is_inside = ((xy >= low) & (xy <= high)).all(dim=1)
            converted = Keypoints(xy, detected.image_index + start, detected.score, detected.descriptor)
            parts.append(converted.select(is_inside))
            if on_progress is not None:
                on_progress(stop - rows.start, rows.stop - rows.start)
        points = concatenate_keypoints(parts)
        tensors = [points.xy, points.image_index, points.score]
        return tensors if points.descriptor is None else [*tensors, points.descriptor]

    return Keypoints(*group.compute_shared(len(pixels), batch, detect))


def resize_images(images: torch.Tensor, side: int) -> torch.Tensor:
    """Resize images [B, 3, S, S] uint8 without aliasing, which a detector would mistake for texture."""
    if images.shape[-1] == side:
        return images
    resized = F.interpolate(
        images.float(), (side, side), mode="bilinear", align_corners=False, antialias=True
    )
    return resized.round().clamp(0, 255).to(torch.uint8)


def mix_in_random_points(
    points: Keypoints, fraction: float, images: int, size: int, generator: torch.Generator
) -> Keypoints:
    """Replace a fraction of the points of each image with random points.

    This measures robustness to noise (Sec. 5.1 of the paper).

    The points to replace are chosen at random; their number is `fraction` of the image's points, rounded. The
    new points are uniformly distributed over the image. They keep the old scores, so that scores do not
    reveal which points are noise. The result has no descriptors unless `fraction` is 0.

    Args:
        points: points of all images.
        fraction: fraction of the points to replace.
        images: number of images.
        size: side of the network's image in pixels.
        generator: source of the random numbers.
    """
    if fraction == 0:
        return points
    device, count = points.xy.device, len(points)
    # Shuffle, then sort by image: the rank of a point within its image is then random.
    shuffled = torch.randperm(count, generator=generator, device=generator.device).to(device)
    order = shuffled[torch.argsort(points.image_index[shuffled], stable=True)]
    counts_by_image = points.counts(images)
    first = torch.cumsum(counts_by_image, dim=0) - counts_by_image
    image = points.image_index[order]
    rank = torch.arange(count, device=device) - first[image]
    num_replaced = (counts_by_image * fraction + 0.5).floor()
    replaced_points = order[rank < num_replaced[image]]
    noise = torch.rand(len(replaced_points), 2, generator=generator, device=generator.device).to(device)
    xy = points.xy.clone()
    xy[replaced_points] = noise * size - 0.5
    return Keypoints(xy, points.image_index, points.score)
