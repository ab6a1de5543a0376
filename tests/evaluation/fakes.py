"""Provide a detector whose landmarks are good or broken in a known way, and test images for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.config import Images, Network
from selfmark.detector import Detector
from selfmark.model.card import ModelCard
from selfmark.model.network import Psi

SIZE = 64
# RED and GREEN are good landmarks. CENTER, RANDOM and LEFTMOST are broken. DUPLICATE finds the blob of GREEN.
RED, GREEN, CENTER, RANDOM, LEFTMOST, DUPLICATE = range(6)


class BlobImages(NamedTuple):
    """Images [N, 3, S, S] with a red, a green and two blue blobs; `red` and `green` are positions [N, 2]."""

    pixels: Tensor
    red: npt.NDArray[np.float64]
    green: npt.NDArray[np.float64]


def draw_blobs(count: int, seed: int = 0) -> BlobImages:
    """Draw images with blobs at random positions; each half of an image has one blue blob."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(0.2, 0.8, (4, count, 2)) * (SIZE - 1)
    centers[2, :, 0], centers[3, :, 0] = 0.3 * SIZE, 0.7 * SIZE
    sigma, grid = 3.0, np.arange(SIZE)  # pixels
    profiles = np.exp(-((grid - centers[..., None]) ** 2) / (2 * sigma**2))  # [4, N, 2, S], along x and y
    blobs = profiles[:, :, 1, :, None] * profiles[:, :, 0, None, :]
    channels = np.stack([blobs[0], blobs[1], np.maximum(blobs[2], blobs[3])], axis=1)
    pixels = torch.from_numpy((255 * channels).round().astype(np.uint8))
    return BlobImages(pixels, centers[0], centers[1])


class BlobNetwork(Psi):
    """Replacement for a trained network; each landmark finds a blob by its color or fails in a known way."""

    def forward(self, images: Tensor) -> Tensor:
        red, green, blue = torch.nn.functional.avg_pool2d(images, 4).unbind(1)
        side = red.shape[-1]
        offset = torch.arange(side) - (side - 1) / 2  # from the image center, in cells
        center = torch.exp(-(offset[:, None] ** 2 + offset**2) / 8).expand_as(red)
        # In the mirror image, the other blue blob is the leftmost one. LEFTMOST then marks another blob,
        # although the card says that this landmark is its own mirror partner.
        leftmost = blue * torch.linspace(1.0, 0.5, side)
        return torch.stack([red, green, center, torch.rand_like(red), leftmost, green], dim=1)


def build_blob_detector(**changes: Any) -> Detector:
    network = Network(channels=32, depth=2, descriptor=16, norm_groups=4)
    settings: dict[str, Any] = {
        "names": ("red", "green", "center", "random", "leftmost", "duplicate"),
        "mirror": tuple(range(6)),
        "skeleton": (),
        "images": Images(size=SIZE),
        "network": network,
        "refine": "parabola",
        "flip_test": False,
        "provenance": {},
    }
    return Detector(BlobNetwork(network, 6), ModelCard(**settings | changes))
