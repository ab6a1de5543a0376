"""Recover correspondence over the training set (Sec. 3.3 of the paper): filter with K clusters, label with M.

Descriptors of the images and of their mirror images are clustered together (Sec. 3.7), so every keypoint also
gets a label in the mirror image. If several processes share the images, each process provides the keypoints
of its own images. Centroids and distance limits are computed from the keypoints of all processes; every other
step treats each image separately.

The computation runs on the generator's device, and the labels are there too. If the descriptors are in host
memory, the device holds few of them, regardless of the number of images: the sample for K-means, and one or
two blocks. The labels do not depend on where the descriptors are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Correspondence
from selfmark.correspondence.assignment import assign_clusters
from selfmark.correspondence.kmeans import iterate_blocks, kmeans, nearest_centroid, sample_rows
from selfmark.errors import CollapsedTraining
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.wording import choose_form, describe_count

_BLOCK = 65_536  # points whose distances are added at a time


@dataclass(frozen=True)
class DescribedPoints:
    """Keypoints with descriptors, all on the device or all in host memory.

    points:   P keypoints with descriptors [P, D], unit vectors
    mirrored: [P, D] descriptors of the same points in the mirror images; None if not computed
    """

    points: Keypoints
    mirrored: Tensor | None

    def select(self, keep: Tensor) -> DescribedPoints:
        """Return the points for which `keep` [P] is True."""
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
    """Filter keypoints by a first clustering: keep one per image and cluster, so at most K per image.

    Args:
        described: keypoints with descriptors.
        K: number of clusters; they serve only as a filter and are discarded.
        settings: settings of K-means and assignment.
        generator: source of the random numbers.
        group: the processes that share the images.
    """
    cluster = assign_clusters(
        _require_descriptors(described.points),
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
    """Cluster the descriptors and label every keypoint, in its image and in the mirror image.

    Each label occurs at most once per image and at most once per mirror image; other keypoints get -1.
    """
    centroids = fit_centroids(described, clusters, settings, generator, group)
    images = described.points.image_index
    labels = assign_clusters(_require_descriptors(described.points), images, centroids, settings.assignment)
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
    """Filter the keypoints with K clusters, then label the remaining ones with M clusters (Eq. 1).

    If several keypoints of an image fall into one of the M clusters, only one of them is labeled. The others
    are removed or stay unlabeled, see `Correspondence.extra_points`. With the filter "distance", K is not
    used, see `label_near_centroids`.
    """
    if settings.filter == "distance":
        return label_near_centroids(described, M, settings, generator, group)
    kept = keep_one_per_cluster(described, K, settings, generator, group)
    labeled = label_keypoints(kept, M, settings, generator, group)
    return labeled.select(labeled.label >= 0) if settings.extra_points == "removed" else labeled


def label_near_centroids(
    described: DescribedPoints,
    clusters: int,
    settings: Correspondence,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> LabeledPoints:
    """Label keypoints with `label_keypoints`, and remove keypoints far from the centroid of their cluster.

    Keypoints without a label are removed, too. Keypoints that are far from their centroid only in the mirror
    image are kept, but lose the label that they have there. This is how the authors' earlier method (NeurIPS
    2020) removes noise; `distance_limits` defines "far".
    """
    labeled = label_keypoints(described, clusters, settings, generator, group)
    centroids = labeled.centroids
    assert centroids is not None
    vectors = _require_descriptors(described.points)
    limits = distance_limits(vectors, centroids, group)

    def keep_near(label: Tensor, vectors: Tensor) -> Tensor:
        """Replace the labels of vectors far from their centroid by -1."""
        parts, start = [], 0
        for block in iterate_blocks(vectors, centroids.device):
            part = label[start : start + len(block)]
            # A label of -1 selects the last centroid here; the mask below excludes it.
            distance = (block - centroids[part]).square().sum(dim=1)
            parts.append(torch.where((part >= 0) & (distance < limits[part]), part, -1))
            start += len(block)
        return torch.cat(parts)

    label, mirrored = keep_near(labeled.label, vectors), labeled.mirrored_label
    if described.mirrored is not None:
        mirrored = keep_near(mirrored, described.mirrored)
    return replace(labeled, label=label, mirrored_label=mirrored).select(label >= 0)


def distance_limits(vectors: Tensor, centroids: Tensor, group: ProcessGroup = SINGLE_PROCESS) -> Tensor:
    """Return the squared distance [C] from which a point counts as far from a centroid.

    The limit of a centroid is the mean plus one standard deviation of the squared distances of its points. A
    point belongs to the nearest centroid. The limit is 0 for a centroid without points.

    Args:
        vectors: [P, D] descriptors of this process.
        centroids: [C, D] centroids.
        group: the processes that share the points.
    """
    nearest, distance = nearest_centroid(vectors, centroids)
    values = torch.stack([torch.ones_like(distance), distance, distance.square()]).double()
    sums = values.new_zeros(3, len(centroids))
    # Sums are matrix products, because the order of atomic additions varies from run to run.
    blocks = zip(torch.split(values, _BLOCK, dim=1), torch.split(nearest, _BLOCK), strict=True)
    for part, cluster in blocks:
        sums += part @ F.one_hot(cluster, len(centroids)).double()
    count, total, squares = group.all_sum(sums)
    mean = total / count.clamp_min(1)
    deviation = (squares / count.clamp_min(1) - mean.square()).clamp_min(0).sqrt()
    limits: Tensor = (mean + deviation).to(centroids.dtype)
    return limits


def gather_labels(labeled: LabeledPoints, group: ProcessGroup) -> LabeledPoints:
    """Return the labeled points of all processes in rank order; this transfers 36 bytes per point."""
    points = Keypoints(
        group.gather_rows(labeled.points.xy),
        group.gather_rows(labeled.points.image_index),
        group.gather_rows(labeled.points.score),
    )
    labels, mirrored = group.gather_rows(labeled.label), group.gather_rows(labeled.mirrored_label)
    return LabeledPoints(points, labels, mirrored, labeled.clusters, labeled.centroids)


def _require_descriptors(points: Keypoints) -> Tensor:
    """Return the descriptors [P, D], or raise if there are none."""
    if points.descriptor is None:
        raise ValueError("the keypoints have no descriptors")
    return points.descriptor


def fit_centroids(
    described: DescribedPoints,
    clusters: int,
    settings: Correspondence,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Fit centroids [clusters, D] to a sample of the descriptors, including those of mirror images.

    Raises:
        CollapsedTraining: if there are fewer descriptors than clusters.
    """
    vectors = _require_descriptors(described.points)
    views = [vectors] if described.mirrored is None else [vectors, described.mirrored]
    num_points = sum(group.gather_counts(len(vectors)))
    if num_points * len(views) < clusters:
        raise CollapsedTraining(
            f"only {describe_count(num_points, 'keypoint')} {choose_form(num_points, 'was', 'were')} found "
            f"in all images, too few for {clusters} clusters. "
            "Lower K or M, add images, or lower heatmaps.threshold"
        )
    rows = sample_rows(len(vectors) * len(views), settings.sample, generator, group)
    sample = _select_rows(views, rows.to(vectors.device)).to(generator.device)
    return kmeans(sample, clusters, settings.iterations, settings.restarts, generator, group)


def _select_rows(views: list[Tensor], rows: Tensor) -> Tensor:
    """Return rows [S, D] of the V views [P, D], numbered point by point: row V p + v is view v of point p.

    In this order, the rows of all processes form the same sequence for any number of processes. The views are
    never concatenated, because that would double the memory of the descriptors.
    """
    point, view_index = rows // len(views), rows % len(views)
    chosen = views[0].new_empty(len(rows), views[0].shape[1])
    for index, vectors in enumerate(views):
        in_view = torch.nonzero(view_index == index).flatten()
        chosen[in_view] = vectors[point[in_view]]
    return chosen
