"""Checks that need no labels: does a landmark follow the object, and does it know left from right?

All distances are shares of the image's side S. What is unknown is NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfmark.config import Augment
from selfmark.detector import Detector
from selfmark.evaluation.stage1_landmarks import silhouette_margins
from selfmark.images.augment import augment_colors, move_points, points_inside, random_affine, warp_images
from selfmark.points import FloatArray


class DeformationErrors(NamedTuple):
    """What known deformations of N images did to K landmarks; rows of one image stand together.

    error: [N * deformations, K] between the landmark in the deformed image and its deformed place; NaN where
        that place lies outside the image
    moved: [N * deformations, K] how far the deformation carried the landmark's place; a landmark that stays
        where it was is found out only where this is large
    """

    error: FloatArray
    moved: FloatArray


@torch.no_grad()
def deformation_errors(
    detector: Detector,
    pixels: Tensor,
    deformations: int,
    augment: Augment,
    generator: torch.Generator,
    batch: int,
) -> DeformationErrors:
    """Equivariance error: the landmarks of the deformed image against the deformed landmarks of the image.

    Args:
        detector: as the user has it, with or without averaging over the mirror image.
        pixels: [N, 3, S, S] uint8 network images.
        deformations: of each image, each a random affine map and a change of colors, blur and noise.
        augment: how strong they are; those of training are the ones the detector should stand.
        generator: on the detector's device.
        batch: images in memory at a time.
    """
    size = pixels.shape[-1]
    errors, moves = [], []
    for block in torch.split(pixels, batch):
        images = block.to(detector.device).float() / 255
        before = detector.locate(block).xy
        for _ in range(deformations):
            matrix = random_affine(len(images), size, augment, generator)
            changed = augment_colors(warp_images(images, matrix), augment, generator)
            found = detector.locate((changed * 255).round().to(torch.uint8)).xy
            truth = move_points(before, matrix)
            error = torch.where(points_inside(truth, size), (found - truth).norm(dim=-1), torch.nan)
            errors.append(error / size)
            moves.append((truth - before).norm(dim=-1) / size)
    return DeformationErrors(_by_image(errors, deformations), _by_image(moves, deformations))


@torch.no_grad()
def mirror_errors(detector: Detector, pixels: Tensor, batch: int) -> FloatArray:
    """Distance [N, K] between a landmark and its partner found in the mirror image and brought back.

    Averaging over the mirror image would make both agree whatever the network says, so it is left out here.
    """
    size = pixels.shape[-1]
    single = Detector(
        detector.psi, replace(detector.card, flip_test=False), detector.device, detector.runtime
    )
    partner = torch.tensor(detector.card.mirror, device=detector.device)
    errors = []
    for block in torch.split(pixels, batch):
        here = single.locate(block).xy
        there = single.locate(block.flip(-1)).xy[:, partner]
        back = torch.stack([size - 1 - there[..., 0], there[..., 1]], dim=-1)
        errors.append((here - back).norm(dim=-1) / size)
    return _by_image(errors, 1)


def detection_rates(score: FloatArray, threshold: float) -> FloatArray:
    """Share of images [K] in which the landmark's score [N, K] exceeds the threshold.

    >>> detection_rates(np.array([[0.9, 0.1], [0.8, 0.6]]), 0.5).tolist()
    [1.0, 0.5]
    """
    rates: FloatArray = (score > threshold).mean(axis=0)
    return rates


def cluster_separation(
    descriptor: FloatArray, label: npt.NDArray[np.int64], centroids: FloatArray
) -> FloatArray:
    """Mean margin [K] of each landmark's points (simplified silhouette); NaN for one that has none.

    Args:
        descriptor: [P, D].
        label: [P], 0..K-1.
        centroids: [K, D].
    """
    landmarks = len(centroids)
    total = np.bincount(label, weights=silhouette_margins(descriptor, label, centroids), minlength=landmarks)
    count = np.bincount(label, minlength=landmarks)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def _by_image(parts: list[Tensor], deformations: int) -> FloatArray:
    """Join parts [B, K], `deformations` of them for each batch in turn, so that an image's rows adjoin."""
    batches = [torch.stack(parts[i : i + deformations], 1) for i in range(0, len(parts), deformations)]
    joined: FloatArray = torch.cat(batches).flatten(0, 1).cpu().numpy().astype(np.float64)
    return joined
