"""Correspondence recovery over the whole training set (Sec. 3.3): filter with K, label with M.

Descriptors of the images and of their mirror images are clustered together (Sec. 3.7), so every keypoint
gets a second label for when its image is flipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfmark.config import Correspondence
from selfmark.correspondence.assign import assign
from selfmark.correspondence.kmeans import kmeans
from selfmark.errors import TrainingError
from selfmark.points import Keypoints, LabelledPoints


@dataclass(frozen=True)
class DescribedPoints:
    """Keypoints with two descriptors each.

    points:   P keypoints with descriptors [P, D], unit vectors
    mirrored: [P, D] descriptors of the same points in the mirrored images; None without flipping
    """

    points: Keypoints
    mirrored: Tensor | None

    def select(self, keep: Tensor) -> DescribedPoints:
        return DescribedPoints(
            self.points.select(keep), None if self.mirrored is None else self.mirrored[keep]
        )


def keep_one_per_cluster(
    described: DescribedPoints, K: int, settings: Correspondence, generator: torch.Generator
) -> DescribedPoints:
    """First clustering, with K: one keypoint per image and cluster stays, at most K; labels are dropped."""
    cluster = assign(
        _vectors(described.points),
        described.points.image_index,
        _centroids(described, K, settings, generator),
        settings.assignment,
    )
    return described.select(cluster >= 0)


def label(
    described: DescribedPoints, clusters: int, settings: Correspondence, generator: torch.Generator
) -> LabelledPoints:
    """Cluster the descriptors and label every keypoint, and its mirror image, each cluster once per image."""
    centroids = _centroids(described, clusters, settings, generator)
    images = described.points.image_index
    labels = assign(_vectors(described.points), images, centroids, settings.assignment)
    mirrored = torch.full_like(labels, -1)
    if described.mirrored is not None:
        mirrored = assign(described.mirrored, images, centroids, settings.assignment)
    return LabelledPoints(replace(described.points, descriptor=None), labels, mirrored, clusters, centroids)


def recover(
    described: DescribedPoints, K: int, M: int, settings: Correspondence, generator: torch.Generator
) -> LabelledPoints:
    """One correspondence recovery: the modified K-means twice (Eq. 2)."""
    return label(keep_one_per_cluster(described, K, settings, generator), M, settings, generator)


def _vectors(points: Keypoints) -> Tensor:
    if points.descriptor is None:
        raise ValueError("these keypoints have no descriptors")
    return points.descriptor


def _centroids(
    described: DescribedPoints, clusters: int, settings: Correspondence, generator: torch.Generator
) -> Tensor:
    vectors = _vectors(described.points)
    if described.mirrored is not None:
        vectors = torch.cat([vectors, described.mirrored])
    if len(vectors) < clusters:
        raise TrainingError(
            f"only {len(described.points)} keypoints were found in all images, too few for {clusters} "
            "clusters: lower M, give more images, or lower heatmaps.threshold"
        )
    return kmeans(vectors, clusters, settings.iterations, settings.restarts, settings.sample, generator)
