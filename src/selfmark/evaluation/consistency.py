"""Consistency checks without labels: does a landmark follow the object, and does it tell left from right?

All distances are fractions of the image side S. Unknown values are NaN.
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
from selfmark.model.card import landmarks_without_partner
from selfmark.points import FloatArray


class DeformationErrors(NamedTuple):
    """Effect of known deformations of N images on K landmarks; the rows of an image are adjacent.

    Attributes:
        error: [N * deformations, K] distance of the landmark in the deformed image from its expected
            position; NaN if that position is outside the image.
        moved: [N * deformations, K] distance between the landmark and its expected position; only if
            it is large does the error reveal a landmark that does not follow the object.
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
    """Measure the equivariance error: landmarks of the deformed image against the deformed landmarks.

    Args:
        detector: The detector, with or without averaging over the mirrored image.
        pixels: [N, 3, S, S] uint8 network images.
        deformations: Number of deformations per image; each is a random affine map with a change of colors,
            blur and noise.
        augment: Strength of the deformations, usually that of training.
        generator: Random number generator on the detector's device.
        batch: Number of images processed at a time.
    """
    size = pixels.shape[-1]
    errors, moves = [], []
    for block in torch.split(pixels, batch):
        images = block.to(detector.device).float() / 255
        before = detector.locate(block).xy
        for _ in range(deformations):
            matrix = random_affine(len(images), size, augment, generator)
            changed = augment_colors(warp_images(images, matrix), augment, generator)
            after = detector.locate((changed * 255).round().to(torch.uint8)).xy
            expected = move_points(before, matrix)
            error = torch.where(points_inside(expected, size), (after - expected).norm(dim=-1), torch.nan)
            errors.append(error / size)
            moves.append((expected - before).norm(dim=-1) / size)
    return DeformationErrors(_by_image(errors, deformations), _by_image(moves, deformations))


@torch.no_grad()
def mirror_errors(detector: Detector, pixels: Tensor, batch: int) -> FloatArray:
    """Measure the distance [N, K] between a landmark and its partner in the mirrored image, mapped back.

    It is NaN for landmarks without a partner.
    Averaging over the mirrored image is switched off, because it would always make the two positions agree.
    """
    size = pixels.shape[-1]
    without_flip = Detector(
        detector.psi, replace(detector.card, flip_test=False), detector.device, detector.runtime
    )
    partner = torch.tensor(detector.card.mirror, device=detector.device)
    errors = []
    for block in torch.split(pixels, batch):
        original = without_flip.locate(block).xy
        mirrored = without_flip.locate(block.flip(-1)).xy[:, partner]
        mapped_back = torch.stack([size - 1 - mirrored[..., 0], mirrored[..., 1]], dim=-1)
        error = (original - mapped_back).norm(dim=-1) / size
        error[:, landmarks_without_partner(detector.card)] = torch.nan
        errors.append(error)
    return _by_image(errors, 1)


def detection_rates(score: FloatArray, threshold: float) -> FloatArray:
    """Compute the fraction of images [K] in which the landmark's score [N, K] exceeds the threshold.

    >>> detection_rates(np.array([[0.9, 0.1], [0.8, 0.6]]), 0.5).tolist()
    [1.0, 0.5]
    """
    rates: FloatArray = (score > threshold).mean(axis=0)
    return rates


def cluster_separation(
    descriptor: FloatArray, label: npt.NDArray[np.int64], centroids: FloatArray
) -> FloatArray:
    """Compute the mean silhouette [K] of each landmark's points; NaN for a landmark without points.

    Args:
        descriptor: [P, D].
        label: [P], 0..K-1.
        centroids: [K, D].
    """
    num_landmarks = len(centroids)
    total = np.bincount(
        label, weights=silhouette_margins(descriptor, label, centroids), minlength=num_landmarks
    )
    count = np.bincount(label, minlength=num_landmarks)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def stable_fraction(deformed: DeformationErrors, agreement_radius: float) -> FloatArray:
    """Return the fraction of deformations [K] that each landmark follows, among those that move it.

    A landmark that is fixed to one spot of the image agrees with every deformation that leaves this spot in
    place, so these do not count. The result is NaN if none moves the landmark.

    Args:
        deformed: see `deformation_errors`.
        agreement_radius: maximum distance at which two positions agree, as a fraction of the image's side.
    """
    is_counted = np.isfinite(deformed.error) & (deformed.moved > agreement_radius)
    return _fraction(deformed.error <= agreement_radius, is_counted)


def agreeing_fraction(distance: FloatArray | None, agreement_radius: float, num_landmarks: int) -> FloatArray:
    """Return the fraction of distances [N, K] within the radius, [K]; all NaN if they were not measured."""
    if distance is None:
        return np.full(num_landmarks, np.nan)
    return _fraction(distance <= agreement_radius, np.isfinite(distance))


def _fraction(agrees: npt.NDArray[np.bool_], is_counted: npt.NDArray[np.bool_]) -> FloatArray:
    """Compute the fraction [K] of counted rows that agree; NaN if none is counted."""
    count = is_counted.sum(axis=0)
    agreeing = (agrees & is_counted).sum(axis=0)
    fraction: FloatArray = np.where(count > 0, agreeing / np.maximum(count, 1), np.nan)
    return fraction


def nan_median(values: FloatArray) -> FloatArray:
    """Compute the median [K] of each column, ignoring NaN; unlike `np.nanmedian`, without warnings."""
    filled = np.where(np.isfinite(values).any(axis=0), values, 0.0)
    median: FloatArray = np.where(np.isfinite(values).any(axis=0), np.nanmedian(filled, axis=0), np.nan)
    return median


def _by_image(parts: list[Tensor], deformations: int) -> FloatArray:
    """Join parts [B, K], `deformations` per batch, so that the rows of an image are adjacent."""
    batches = [torch.stack(parts[i : i + deformations], 1) for i in range(0, len(parts), deformations)]
    joined: FloatArray = torch.cat(batches).flatten(0, 1).cpu().numpy().astype(np.float64)
    return joined
