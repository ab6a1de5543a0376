"""Check without labels whether landmarks follow the object, and whether they tell left from right.

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
from selfmark.evaluation.stage1_landmarks import compute_silhouette_margins
from selfmark.images.augment import (
    ColorChanges,
    apply_color_changes,
    move_points,
    points_inside,
    random_affine,
    random_color_changes,
    random_noise,
    warp_images,
)
from selfmark.model.card import landmarks_without_partner
from selfmark.points import FloatArray
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


class DeformationErrors(NamedTuple):
    """Errors of K landmarks in deformed copies of N images; the copies of an image are adjacent rows.

    The expected position of a landmark in a copy is its position in the original image, deformed.

    Attributes:
        error: [N * deformations, K] distance between the landmark in the copy and its expected position;
            NaN if the expected position is outside the image.
        moved: [N * deformations, K] distance between the landmark in the original image and its expected
            position. If this distance is small, the error is small even for a landmark that never moves.
    """

    error: FloatArray
    moved: FloatArray


class _Deformations(NamedTuple):
    """Random deformations of B images.

    matrix: [B, 2, 3] affine maps
    colors: changes of colors and blur
    noise:  [B, 3, S, S] noise with standard deviation 1
    """

    matrix: Tensor
    colors: ColorChanges
    noise: Tensor


@torch.no_grad()
def measure_deformation_errors(
    detector: Detector,
    pixels: Tensor,
    deformations: int,
    augment: Augment,
    generator: torch.Generator,
    batch: int,
    group: ProcessGroup = SINGLE_PROCESS,
) -> DeformationErrors:
    """Measure the equivariance error of landmarks.

    This is the distance between the landmarks found in a deformed image and the landmarks of the original
    image after the same deformation.

    Args:
        detector: The detector, with or without averaging over the mirrored image.
        pixels: [N, 3, S, S] uint8 network images.
        deformations: Number of deformations per image; each is a random affine map with a change of colors,
            blur and noise.
        augment: Strength of the deformations, usually the same as in training.
        generator: Random number generator on the detector's device, in the same state in every process. Do
            not use it afterwards, because its state then differs between processes.
        batch: Number of images processed at a time.
        group: The processes that share the images; each process gets the errors of all images.
    """
    size = pixels.shape[-1]

    def draw(count: int) -> _Deformations:
        return _Deformations(
            random_affine(count, size, augment, generator),
            random_color_changes(count, augment, generator),
            random_noise(count, size, generator),
        )

    def measure(rows: slice) -> list[Tensor]:
        errors, moves = [], []
        for start in range(0, rows.stop, batch):
            block = pixels[start : start + batch]
            if start < rows.start:  # another process measures these images, with the same random numbers
                for _ in range(deformations):
                    draw(len(block))
                continue
            images = block.to(detector.device).float() / 255
            before = detector.locate(block).xy
            for _ in range(deformations):
                matrix, colors, noise = draw(len(block))
                deformed = apply_color_changes(warp_images(images, matrix), colors, noise)
                after = detector.locate((deformed * 255).round().to(torch.uint8)).xy
                expected = move_points(before, matrix)
                error = torch.where(points_inside(expected, size), (after - expected).norm(dim=-1), torch.nan)
                errors.append(error / size)
                moves.append((expected - before).norm(dim=-1) / size)
        return [_join_by_image(errors, deformations), _join_by_image(moves, deformations)]

    return DeformationErrors(*map(_to_array, group.compute_shared(len(pixels), batch, measure)))


@torch.no_grad()
def measure_mirror_errors(
    detector: Detector, pixels: Tensor, batch: int, group: ProcessGroup = SINGLE_PROCESS
) -> FloatArray:
    """Measure the distance [N, K] between each landmark and its mirror partner found in the mirrored image.

    The partner's position is mirrored back before the distance is measured. The distance is NaN for landmarks
    without a partner. Averaging over the mirrored image is switched off, because it would always make the two
    positions agree.
    """
    size = pixels.shape[-1]
    without_flip = Detector(
        detector.psi, replace(detector.card, flip_test=False), detector.device, detector.runtime
    )
    partner = torch.tensor(detector.card.mirror, device=detector.device)

    def measure(rows: slice) -> list[Tensor]:
        errors = []
        for block in torch.split(pixels[rows], batch):
            original = without_flip.locate(block).xy
            mirrored = without_flip.locate(block.flip(-1)).xy[:, partner]
            mapped_back = torch.stack([size - 1 - mirrored[..., 0], mirrored[..., 1]], dim=-1)
            error = (original - mapped_back).norm(dim=-1) / size
            error[:, landmarks_without_partner(detector.card)] = torch.nan
            errors.append(error)
        return [torch.cat(errors)]

    return _to_array(group.compute_shared(len(pixels), batch, measure)[0])


def compute_detection_rates(score: FloatArray, threshold: float) -> FloatArray:
    """Compute the fraction of images [K] in which the score [N, K] of a landmark exceeds the threshold.

    >>> compute_detection_rates(np.array([[0.9, 0.1], [0.8, 0.6]]), 0.5).tolist()
    [1.0, 0.5]
    """
    rates: FloatArray = (score > threshold).mean(axis=0)
    return rates


def compute_cluster_separation(
    descriptor: FloatArray, label: npt.NDArray[np.int64], centroids: FloatArray
) -> FloatArray:
    """Compute the mean silhouette [K] of each landmark's points; NaN for a landmark without points.

    Args:
        descriptor: [P, D] descriptors of P points.
        label: [P] landmark of each point, 0..K-1.
        centroids: [K, D] centroids of the landmarks.
    """
    num_landmarks = len(centroids)
    total = np.bincount(
        label, weights=compute_silhouette_margins(descriptor, label, centroids), minlength=num_landmarks
    )
    count = np.bincount(label, minlength=num_landmarks)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def compute_stable_fraction(deformed: DeformationErrors, agreement_radius: float) -> FloatArray:
    """Return the fraction of deformations [K] that each landmark follows, among those that move it.

    Deformations that leave the landmark in place do not count, because even a landmark that is always at the
    same position of the image would follow them. Deformations that move the landmark out of the image do not
    count either. The result is NaN if no deformation counts.

    Args:
        deformed: see `measure_deformation_errors`.
        agreement_radius: maximum distance at which two positions agree, as a fraction of the image's side.
    """
    is_counted = np.isfinite(deformed.error) & (deformed.moved > agreement_radius)
    return _compute_fraction(deformed.error <= agreement_radius, is_counted)


def compute_agreeing_fraction(
    distance: FloatArray | None, agreement_radius: float, num_landmarks: int
) -> FloatArray:
    """Return the fraction of images [K] in which a distance is within the radius.

    Args:
        distance: [N, K] distances, see `measure_mirror_errors`; NaN does not count. None if the
            distances were not measured, which makes all fractions NaN.
        agreement_radius: maximum distance at which two positions agree, as a fraction of the image's side.
        num_landmarks: number of landmarks K.
    """
    if distance is None:
        return np.full(num_landmarks, np.nan)
    return _compute_fraction(distance <= agreement_radius, np.isfinite(distance))


def _compute_fraction(agrees: npt.NDArray[np.bool_], is_counted: npt.NDArray[np.bool_]) -> FloatArray:
    """Compute for each column the fraction [K] of counted rows that agree; NaN if no row is counted."""
    count = is_counted.sum(axis=0)
    agreeing = (agrees & is_counted).sum(axis=0)
    fraction: FloatArray = np.where(count > 0, agreeing / np.maximum(count, 1), np.nan)
    return fraction


def nan_median(values: FloatArray) -> FloatArray:
    """Compute the median [K] of each column of values [N, K], ignoring NaN.

    A column without values gets NaN. Unlike with `np.nanmedian`, there is no warning.
    """
    is_known = np.isfinite(values).any(axis=0)
    filled = np.where(is_known, values, 0.0)
    median: FloatArray = np.where(is_known, np.nanmedian(filled, axis=0), np.nan)
    return median


def _join_by_image(parts: list[Tensor], deformations: int) -> Tensor:
    """Join the tables of all batches and deformations so that the rows of an image are adjacent.

    Args:
        parts: tables [B, K], all deformations of the first batch, then those of the second batch, and so on.
        deformations: number of tables per batch.
    """
    batches = [torch.stack(parts[i : i + deformations], 1) for i in range(0, len(parts), deformations)]
    return torch.cat(batches).flatten(0, 1)


def _to_array(values: Tensor) -> FloatArray:
    array: FloatArray = values.cpu().numpy().astype(np.float64)
    return array
