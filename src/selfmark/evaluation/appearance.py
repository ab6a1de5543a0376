"""Check with pretrained features whether each landmark looks the same on different individuals.

Pretrained features depend on direction: the head of an animal that faces left and the head of one that faces
down have different features. So the images are first rotated and mirrored until all objects face the same
way. In these images, a landmark has similar features if it always marks the same part, and different features
if it marks different parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from selfmark.config import Features
from selfmark.correspondence.agreement import unexplained_fraction
from selfmark.evaluation.constellation import FittedShapes
from selfmark.features.cells import normalize_features
from selfmark.features.encoder import CELL, Encoder
from selfmark.images.augment import invert_affine, move_points, warp_images
from selfmark.model.feature_network import enlarge_maps, similarity_heat
from selfmark.model.heatmaps import heat_centroids, sample_maps, to_pixels
from selfmark.points import FloatArray
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


class AlignedImages(NamedTuple):
    """Images of N individuals, rotated and mirrored so that all objects face the same way.

    pixels: [N, 3, S, S] float32 in 0..1
    matrix: [N, 2, 3] affine map from each original image to the aligned image
    xy:     [N, K, 2] landmarks, pixels of the aligned images
    """

    pixels: Tensor
    matrix: Tensor
    xy: FloatArray


def align_images(pixels: Tensor, xy: FloatArray, shapes: FittedShapes | None) -> AlignedImages:
    """Rotate and mirror each image around its center, so that its landmarks fit the common shape.

    Args:
        pixels: [N, 3, S, S] uint8 images.
        xy: [N, K, 2] landmarks, pixels of these images.
        shapes: fit of the landmarks to a common shape; None leaves the images as they are.
    """
    size = pixels.shape[-1]
    linear = np.broadcast_to(np.eye(2), (len(xy), 2, 2))
    if shapes is not None:
        # Either most images are mirrored or most are not. The mean angle of this majority is subtracted, so
        # that most images hardly rotate.
        is_majority = shapes.is_mirrored == (shapes.is_mirrored.mean() > 0.5)
        angle = shapes.rotation - np.angle(np.exp(1j * shapes.rotation[is_majority]).mean())
        sign = np.where(shapes.is_mirrored, -1.0, 1.0)
        cos, sin = np.cos(angle), np.sin(angle)
        # Negate y if `sign` is -1, and then rotate: [[cos, -sin], [sin, cos]] @ [[1, 0], [0, sign]].
        linear = np.stack([np.stack([cos, -sin * sign], -1), np.stack([sin, cos * sign], -1)], -2)
    center = np.full(2, (size - 1) / 2)
    offset = center - linear @ center
    matrix = torch.from_numpy(np.concatenate([linear, offset[..., None]], axis=-1)).float()
    aligned = warp_images(pixels.float() / 255, matrix.to(pixels.device))
    return AlignedImages(aligned, matrix, move_points(torch.from_numpy(xy).float(), matrix).double().numpy())


@torch.no_grad()
def compute_features(
    encoder: Encoder,
    pixels: Tensor,
    device: torch.device,
    batch: int,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Compute the features of every cell of images; a cell is a square of 8 x 8 pixels.

    Args:
        encoder: pretrained network, on `device`.
        pixels: [N, 3, S, S] images in 0..1.
        device: device to compute on.
        batch: images per forward pass.
        group: the processes that share the images; each process gets the features of all images.

    Returns:
        [N, D, S/8, S/8] unit vectors, float16, on the CPU.
    """

    def describe(rows: slice) -> list[Tensor]:
        parts = [encoder.describe(part.to(device)).half() for part in torch.split(pixels[rows], batch)]
        return [torch.cat([part.cpu() for part in parts])]

    # Other strides would round differently, and they depend on how many processes computed the features.
    return group.compute_shared(len(pixels), batch, describe)[0].contiguous()


def describe_landmarks(features: Tensor, xy: FloatArray, settings: Features) -> FloatArray:
    """Describe each landmark of each image by the features at its position.

    Args:
        features: [N, D, S/8, S/8] features of the cells, see `compute_features`; `append_places` may have
            appended the places of the cells.
        xy: [N, K, 2] landmarks, pixels of the images [S, S] that `features` describe.
        settings: whether places were appended.

    Returns:
        [N, K, D]; the features are unit vectors.
    """
    position = torch.from_numpy((xy + 0.5) / CELL - 0.5)
    sampled = sample_maps(features.float(), position)
    described: FloatArray = normalize_features(sampled, settings).numpy().astype(np.float64)
    return described


def find_by_appearance(features: Tensor, descriptor: FloatArray, settings: Features) -> FloatArray:
    """Find each landmark of an image by its appearance in all other images.

    Args:
        features: [N, D, S/8, S/8] features of the cells, see `compute_features`; `append_places` may have
            appended the places of the cells.
        descriptor: [N, K, D] descriptors of the landmarks, see `describe_landmarks`.
        settings: sharpness of the soft-argmax over similarities, and whether places were appended.

    Returns:
        [N, K, 2] the places that look most like the landmarks, pixels of the images [S, S].
    """
    sum_of_others = descriptor.sum(axis=0) - descriptor  # sum over all images but the image itself
    mean_of_others = torch.from_numpy(sum_of_others / max(len(descriptor) - 1, 1)).float()
    places = []
    for cells, expected in zip(features, normalize_features(mean_of_others, settings), strict=True):
        heat = similarity_heat(cells[None].float(), expected, settings.sharpness)
        places.append(to_pixels(heat_centroids(enlarge_maps(heat)).cells))
    found: FloatArray = torch.cat(places).numpy().astype(np.float64)
    return found


def measure_unexplained_by_appearance(
    images: AlignedImages, features: Tensor, descriptor: FloatArray, xy: FloatArray, settings: Features
) -> FloatArray:
    """Return the error [K] of predicting each landmark from the places that `find_by_appearance` finds.

    The error is divided by the error of guessing the landmark's mean position.

    Args:
        images: aligned images.
        features: [N, D, S/8, S/8] features of the aligned images, see `find_by_appearance`.
        descriptor: [N, K, D] descriptors of the landmarks, see `describe_landmarks`.
        xy: [N, K, 2] landmarks, pixels of the original images.
        settings: see `find_by_appearance`.
    """
    found = torch.from_numpy(find_by_appearance(features, descriptor, settings)).float()
    in_originals = move_points(found, invert_affine(images.matrix)).double().numpy()
    present = np.ones((len(xy), 1), dtype=bool)
    landmarks = range(xy.shape[1])
    return np.array(
        [unexplained_fraction(in_originals, xy[:, index : index + 1], present) for index in landmarks]
    )


def measure_purity(descriptor: FloatArray, duplicates: list[list[int]]) -> FloatArray:
    """Return the fraction of images [K] in which each landmark looks more like itself than like any other.

    The mean of all descriptors is subtracted. Then the descriptor of a landmark in an image is compared with
    the mean descriptor of every landmark over images. Landmarks that mark the same place count as one.

    Args:
        descriptor: [N, K, D] descriptors of the landmarks, see `describe_landmarks`.
        duplicates: groups of landmarks that mark the same place.

    Returns:
        [K] fractions; NaN if there are fewer than two images.
    """
    num_images, num_landmarks = descriptor.shape[:2]
    if num_images < 2:
        return np.full(num_landmarks, np.nan)
    centered = descriptor - descriptor.mean(axis=(0, 1))
    mean = centered.mean(axis=0)
    similarity = np.einsum("nkd,ld->nkl", centered, mean / _compute_lengths(mean))
    # Every descriptor resembles a mean to which it contributes. So the descriptor is compared with the mean
    # of its own landmark over the other images.
    mean_of_others = (num_images * mean - centered) / (num_images - 1)
    own_similarity = (centered * mean_of_others / _compute_lengths(mean_of_others)).sum(axis=-1)
    similarity[:, np.arange(num_landmarks), np.arange(num_landmarks)] = own_similarity
    group = np.arange(num_landmarks)  # duplicates get the number of their first landmark
    for members in duplicates:
        group[members] = members[0]
    is_same = group[similarity.argmax(axis=-1)] == group
    purity: FloatArray = is_same.mean(axis=0)
    return purity


def _compute_lengths(vectors: FloatArray) -> FloatArray:
    """Return the lengths [..., 1] of vectors [..., D]; never 0, so that vectors can be divided by them."""
    lengths: FloatArray = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return lengths
