"""Limit the memory that keypoint detectors take: large images are processed a few at a time."""

from __future__ import annotations

import torch

from selfmark.run.devices import images_per_pass

MAX_PASS_BYTES = 2 << 30
"""Memory for images that are processed at the same time. A single image may take more."""


def limit_images(max_images: int, image_bytes: int, device: torch.device) -> int:
    """Return how many images to process at the same time, from 1 to `max_images`.

    On a CPU, the number does not depend on the free memory. A repeated run must give the same result there,
    and networks round differently if they process a different number of images at a time.

    >>> [limit_images(16, size**2 * 540, torch.device("cpu")) for size in (256, 1024, 2048)]
    [16, 3, 1]

    Args:
        max_images: upper limit.
        image_bytes: memory that one image takes.
        device: device that processes the images.
    """
    limit = max(1, min(max_images, MAX_PASS_BYTES // image_bytes))
    return limit if device.type == "cpu" else images_per_pass(limit, image_bytes, device)
