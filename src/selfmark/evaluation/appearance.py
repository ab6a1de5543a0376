"""Whether landmarks look alike on different individuals, in pretrained features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.features.encoder import CELL, Encoder
from selfmark.model.heatmaps import sample_maps
from selfmark.points import FloatArray


@torch.no_grad()
def compute_features(encoder: Encoder, pixels: Tensor, device: torch.device, batch: int) -> Tensor:
    """Describe every cell of images [N, 3, S, S] uint8: unit features [N, D, S/8, S/8] float16, on the CPU.

    Args:
        encoder: pretrained network, on `device`.
        pixels: network images.
        device: device to compute on.
        batch: images per pass.
    """
    parts = [encoder.describe(part.to(device).float() / 255).half() for part in torch.split(pixels, batch)]
    return torch.cat([part.cpu() for part in parts])


def describe_landmarks(cells: Tensor, xy: FloatArray) -> FloatArray:
    """Describe each landmark of each image by the features at its position, [N, K, D] unit vectors.

    Args:
        cells: [N, D, S/8, S/8], see `compute_features`.
        xy: [N, K, 2] landmarks, network pixels.
    """
    position = torch.from_numpy((xy + 0.5) / CELL - 0.5)
    features = sample_maps(cells.float(), position)
    described: FloatArray = F.normalize(features, dim=-1).numpy().astype(np.float64)
    return described


def measure_purity(descriptor: FloatArray, duplicates: list[list[int]]) -> FloatArray:
    """Return the fraction of images [K] in which a landmark looks more like itself than like any other.

    It is compared with the mean descriptor of each landmark in all other images. Landmarks that mark the same
    place count as one. What all landmarks have in common is subtracted first.

    Args:
        descriptor: [N, K, D], see `describe_landmarks`.
        duplicates: groups of landmarks that mark the same place.
    """
    num_images, num_landmarks = descriptor.shape[:2]
    if num_images < 2:
        return np.full(num_landmarks, np.nan)
    centered = descriptor - descriptor.mean(axis=(0, 1))
    mean = centered.mean(axis=0)
    similarity = np.einsum("nkd,ld->nkl", centered, mean / _length(mean))
    # The image's own descriptor is not part of the mean that it is compared with.
    without = (num_images * mean - centered) / (num_images - 1)
    own = (centered * without / _length(without)).sum(axis=-1)
    similarity[:, np.arange(num_landmarks), np.arange(num_landmarks)] = own
    group = np.arange(num_landmarks)
    for members in duplicates:
        group[members] = members[0]
    is_same = group[similarity.argmax(axis=-1)] == group
    purity: FloatArray = is_same.mean(axis=0)
    return purity


def _length(vectors: FloatArray) -> FloatArray:
    length: FloatArray = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return length
