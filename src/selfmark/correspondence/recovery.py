"""Correspondence recovery over the whole training set (Sec. 3.3): filter with K, label with M.

Descriptors of the images and of their mirror images are clustered together (Sec. 3.7), so every keypoint
gets a second label for when its image is flipped. In a group each process brings the keypoints of its own
images; centroids are those of all of them, and everything else concerns one image at a time.

Work is done, and labels are, on the generator's device. Descriptors may be in host memory: of them the device
then holds the sample that K-means is fitted on and a block or two, however many images there are. Labels are
the same wherever descriptors are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfmark.config import Correspondence
from selfmark.correspondence.assignment import assign_clusters
from selfmark.correspondence.kmeans import kmeans, sample_rows
from selfmark.errors import TrainingError
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup


@dataclass(frozen=True)
class DescribedPoints:
    """Keypoints with two descriptors each, all on the device or all in host memory.

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
    described: DescribedPoints,
    K: int,
    settings: Correspondence,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> DescribedPoints:
    """First clustering, with K: one keypoint per image and cluster stays, at most K; labels are dropped."""
    cluster = assign_clusters(
        _vectors(described.points),
        described.points.image_index,
        fit_centroids(described, K, settings, generator, group),
        settings.assignment,
    )
    return described.select((cluster >= 0).to(described.points.xy.device))


def label_keypoints(
    described: DescribedPoints,
    clusters: int,
    settings: Correspondence,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> LabeledPoints:
    """Cluster the descriptors and label every keypoint, and its mirror image, each cluster once per image."""
    centroids = fit_centroids(described, clusters, settings, generator, group)
    images = described.points.image_index
    labels = assign_clusters(_vectors(described.points), images, centroids, settings.assignment)
    mirrored = torch.full_like(labels, -1)
    if described.mirrored is not None:
        mirrored = assign_clusters(described.mirrored, images, centroids, settings.assignment)
    points = replace(described.points, descriptor=None).to(generator.device)
    return LabeledPoints(points, labels, mirrored, clusters, centroids)


def recover_correspondence(
    described: DescribedPoints,
    K: int,
    M: int,
    settings: Correspondence,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> LabeledPoints:
    """One correspondence recovery: the modified K-means twice (Eq. 2)."""
    kept = keep_one_per_cluster(described, K, settings, generator, group)
    return label_keypoints(kept, M, settings, generator, group)


def gather_labels(labeled: LabeledPoints, group: ProcessGroup) -> LabeledPoints:
    """The labeled points of all processes, in rank order, in each of them; about 36 bytes per point."""
    points = Keypoints(
        group.gather_rows(labeled.points.xy),
        group.gather_rows(labeled.points.image_index),
        group.gather_rows(labeled.points.score),
    )
    labels, mirrored = group.gather_rows(labeled.label), group.gather_rows(labeled.mirrored_label)
    return LabeledPoints(points, labels, mirrored, labeled.clusters, labeled.centroids)


def _vectors(points: Keypoints) -> Tensor:
    if points.descriptor is None:
        raise ValueError("these keypoints have no descriptors")
    return points.descriptor


def fit_centroids(
    described: DescribedPoints,
    clusters: int,
    settings: Correspondence,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Centroids [clusters, D] of the descriptors of the points and of their mirror images."""
    vectors = _vectors(described.points)
    views = [vectors] if described.mirrored is None else [vectors, described.mirrored]
    points = sum(group.gather_counts(len(vectors)))
    if points * len(views) < clusters:
        raise TrainingError(
            f"only {points} keypoints were found in all images, too few for {clusters} "
            "clusters: lower M, give more images, or lower heatmaps.threshold"
        )
    rows = sample_rows(len(vectors) * len(views), settings.sample, generator, group)
    fitted = _rows_of(views, rows.to(vectors.device)).to(generator.device)
    return kmeans(fitted, clusters, settings.iterations, settings.restarts, generator, group)


def _rows_of(views: list[Tensor], rows: Tensor) -> Tensor:
    """Chosen rows [S, D] of descriptors counted point by point: the first in all its views, then the next.

    In this order the rows of one process follow those of another, however many share the images. All views
    are never put together: that would double the memory of by far the largest thing here.
    """
    point, view = rows // len(views), rows % len(views)
    chosen = views[0].new_empty(len(rows), views[0].shape[1])
    for index, vectors in enumerate(views):
        mine = torch.nonzero(view == index).flatten()
        chosen[mine] = vectors[point[mine]]
    return chosen
