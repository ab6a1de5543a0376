"""Test correspondence recovery on descriptors with known landmarks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from selfmark.config import Correspondence
from selfmark.correspondence import kmeans as kmeans_module
from selfmark.correspondence import recovery as recovery_module
from selfmark.correspondence.recovery import (
    DescribedPoints,
    distance_limits,
    keep_one_per_cluster,
    label_keypoints,
    recover_correspondence,
)
from selfmark.errors import TrainingError
from selfmark.points import Keypoints

SETTINGS = Correspondence(restarts=4)


def make_known_landmarks(images: int, landmarks: int, seed: int = 0) -> tuple[DescribedPoints, torch.Tensor]:
    """Return points, and for each point the number of its landmark.

    Every image has each landmark once, followed by a noisier copy of landmark 0. The mirror partner of
    landmark k is landmarks - 1 - k.
    """
    generator = torch.Generator().manual_seed(seed)
    centers = normalize(torch.randn(landmarks, 32, generator=generator), dim=-1)
    truth = torch.arange(landmarks + 1).remainder(landmarks).repeat(images)
    image_index = torch.arange(images).repeat_interleave(landmarks + 1)
    noise = torch.full((landmarks + 1, 1), 0.2)
    noise[-1] = 0.8  # the copy of landmark 0 is farther from its centroid
    spread = noise.repeat(images, 1)

    def describe(landmark: torch.Tensor) -> torch.Tensor:
        jitter = torch.randn(len(landmark), 32, generator=generator) * spread / 32**0.5
        return normalize(centers[landmark] + jitter, dim=-1)

    points = Keypoints(
        torch.rand(len(truth), 2, generator=generator) * 100,
        image_index,
        torch.ones(len(truth)),
        describe(truth),
    )
    return DescribedPoints(points, describe(landmarks - 1 - truth)), truth


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_filtering_keeps_one_keypoint_per_landmark() -> None:
    described, _ = make_known_landmarks(images=30, landmarks=8)
    kept = keep_one_per_cluster(described, 8, SETTINGS, _make_generator())
    assert (kept.points.counts(30) == 8).all()
    # The noisy copy is the last of the nine points of each image and is nearly always dropped.
    is_copy = torch.isin(kept.points.xy[:, 0], described.points.xy[8::9, 0])
    copies_per_image = is_copy.float().mean() * 8
    assert copies_per_image < 0.15


def test_labels_are_the_true_landmarks_and_mirrored_labels_are_their_mirror_partners() -> None:
    described, truth = make_known_landmarks(images=30, landmarks=8)
    labeled = label_keypoints(described, 8, SETTINGS, _make_generator())
    chosen = labeled.label >= 0
    landmark_of = {}
    for cluster in range(8):
        members = truth[chosen & (labeled.label == cluster)]
        assert len(members.unique()) == 1, "a cluster mixes landmarks"
        landmark_of[cluster] = int(members[0])
    assert sorted(landmark_of.values()) == list(range(8))
    has_both_labels = chosen & (labeled.mirrored_label >= 0)
    for label, mirrored in zip(
        labeled.label[has_both_labels].tolist(), labeled.mirrored_label[has_both_labels].tolist(), strict=True
    ):
        assert landmark_of[mirrored] == 7 - landmark_of[label]


def test_recovery_keeps_at_most_k_points_per_image_and_labels_them_with_m_clusters() -> None:
    described, _ = make_known_landmarks(images=40, landmarks=10)
    labeled = recover_correspondence(described, 6, 25, SETTINGS, _make_generator())
    assert labeled.points.counts(40).max() <= 6
    assert labeled.clusters == 25
    assert labeled.label.max() > 6, "a label is one of M clusters, so it can be larger than K"
    assert labeled.points.descriptor is None


def test_keypoints_that_share_a_cluster_with_another_are_removed_or_unlabeled() -> None:
    described, _ = make_known_landmarks(images=40, landmarks=10)
    kept = recover_correspondence(described, 10, 5, SETTINGS, _make_generator())
    removed = recover_correspondence(
        described, 10, 5, replace(SETTINGS, extra_points="removed"), _make_generator()
    )
    is_labeled = kept.label >= 0
    assert 0 < is_labeled.sum() < len(is_labeled), "ten landmarks share five clusters"
    assert torch.equal(removed.label, kept.label[is_labeled])
    assert torch.equal(removed.mirrored_label, kept.mirrored_label[is_labeled])
    assert torch.equal(removed.points.xy, kept.points.xy[is_labeled])


def test_points_far_from_their_centroid_are_removed() -> None:
    described, _ = make_known_landmarks(images=40, landmarks=10)
    settings = replace(SETTINGS, filter="distance", assignment="hungarian")
    recovered = recover_correspondence(described, 10, 12, settings, _make_generator())
    labeled = label_keypoints(described, 12, settings, _make_generator())
    vectors, centroids = described.points.descriptor, labeled.centroids
    assert vectors is not None
    assert centroids is not None
    # The limit of a cluster comes from the squared distances of the points nearest to the cluster's centroid:
    # the mean of these distances plus their standard deviation.
    nearest: dict[int, list[float]] = {cluster: [] for cluster in range(12)}
    for vector in vectors.numpy():
        distances = ((centroids.numpy() - vector) ** 2).sum(axis=1)
        nearest[int(distances.argmin())].append(float(distances.min()))
    limits = [np.mean(values) + np.std(values) if values else 0.0 for values in nearest.values()]
    np.testing.assert_allclose(distance_limits(vectors, centroids), limits, rtol=1e-4)

    def is_near(label: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        pairs = zip(label.tolist(), vectors, strict=True)
        return torch.tensor(
            [k >= 0 and float((vector - centroids[k]).square().sum()) < limits[k] for k, vector in pairs]
        )

    keep = is_near(labeled.label, vectors)
    assert 0.5 < float(keep.float().mean()) < 0.95
    assert torch.equal(recovered.label, labeled.label[keep])
    assert torch.equal(recovered.points.xy, labeled.points.xy[keep])
    assert described.mirrored is not None
    mirrored = torch.where(is_near(labeled.mirrored_label, described.mirrored), labeled.mirrored_label, -1)
    assert torch.equal(recovered.mirrored_label, mirrored[keep])


def test_without_mirror_images_there_are_no_mirrored_labels() -> None:
    described, _ = make_known_landmarks(images=10, landmarks=5)
    labeled = label_keypoints(DescribedPoints(described.points, None), 5, SETTINGS, _make_generator())
    assert (labeled.mirrored_label == -1).all()


def test_too_few_keypoints_raise_with_advice() -> None:
    described, _ = make_known_landmarks(images=2, landmarks=3)
    with pytest.raises(TrainingError, match="too few for 100 clusters"):
        recover_correspondence(described, 3, 100, SETTINGS, _make_generator())


def test_row_numbers_run_over_the_views_of_each_point() -> None:
    """With V views, row V p + v is the descriptor of point p in view v."""
    views = [torch.randn(7, 3), torch.randn(7, 3)]
    in_order = [view[point] for point in range(7) for view in views]
    rows = torch.tensor([0, 3, 4, 5, 13])
    assert torch.equal(
        recovery_module._select_rows(views, rows), torch.stack([in_order[row] for row in rows])
    )
    assert torch.equal(recovery_module._select_rows(views[:1], torch.tensor([2, 6])), views[0][[2, 6]])


@pytest.mark.parametrize("assignment", ["nearest", "hungarian"])
def test_smaller_blocks_give_the_same_labels(assignment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    described, _ = make_known_landmarks(images=40, landmarks=10)
    settings = Correspondence(restarts=2, sample=500, assignment=assignment)  # type: ignore[arg-type]
    recovered = recover_correspondence(described, 6, 25, settings, _make_generator())
    monkeypatch.setattr(kmeans_module, "_block_size", lambda device: 37)
    blocks = list(kmeans_module.iterate_blocks(described.points.xy, torch.device("cpu")))
    assert len(blocks) == 12  # for 440 points
    blockwise = recover_correspondence(described, 6, 25, settings, _make_generator())
    assert torch.equal(blockwise.points.xy, recovered.points.xy)
    assert torch.equal(blockwise.label, recovered.label)
    assert torch.equal(blockwise.mirrored_label, recovered.mirrored_label)


@pytest.mark.gpu
def test_gpu_memory_stays_within_the_documented_bound_and_labels_are_the_same() -> None:
    """Check the memory formula of docs/performance.md for descriptors that take several blocks."""
    images, per_image, length, K, M = 60_000, 20, 256, 10, 20
    settings = Correspondence(restarts=2, iterations=8, sample=40_000)
    generator = torch.Generator().manual_seed(0)
    views = [
        normalize(torch.randn(40_000, length, generator=generator), dim=1).repeat(30, 1) for _ in range(2)
    ]
    points = Keypoints(
        torch.rand(images * per_image, 2, generator=generator),
        torch.arange(images).repeat_interleave(per_image),
        torch.ones(images * per_image),
        views[0],
    )

    def recover(described: DescribedPoints) -> tuple[torch.Tensor, int]:
        """Return the labels and the bytes of GPU memory that the recovery needed."""
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        labeled = recover_correspondence(described, K, M, settings, torch.Generator("cuda").manual_seed(0))
        return labeled.label.cpu(), torch.cuda.max_memory_allocated() - before

    host_labels, peak_bytes = recover(DescribedPoints(points, views[1]))
    block = kmeans_module._block_size(torch.device("cuda"))
    # All sizes are in bytes. The formula is that of docs/performance.md. When k-means is fitted, a block has
    # at most as many vectors as the sample.
    fit = settings.sample * (12 * length + 32 * settings.restarts) + 8 * min(block, settings.sample) * length
    assignment = 8 * block * (length + M) + 100 * images * per_image
    cublas_workspace = 128 * 2**20
    bound = max(fit, assignment) + cublas_workspace
    assert peak_bytes <= bound
    assert bound < 0.4 * 2 * views[0].nbytes, "the bound must be far below the size of the descriptors"
    gpu_labels, _ = recover(DescribedPoints(points.to("cuda"), views[1].cuda()))
    assert torch.equal(host_labels, gpu_labels)


@pytest.mark.gpu
def test_descriptors_in_host_memory_give_the_same_labels_on_the_gpu() -> None:
    described, _ = make_known_landmarks(images=40, landmarks=10)
    assert described.mirrored is not None
    on_gpu = DescribedPoints(described.points.to("cuda"), described.mirrored.cuda())
    for settings in (SETTINGS, Correspondence(restarts=2, assignment="hungarian", sample=500)):
        generators = [torch.Generator("cuda").manual_seed(0) for _ in range(2)]
        pairs = zip((described, on_gpu), generators, strict=True)
        from_host, from_gpu = (
            recover_correspondence(points, 6, 25, settings, generator) for points, generator in pairs
        )
        assert from_host.label.device == from_host.points.xy.device == from_gpu.label.device
        assert torch.equal(from_host.label, from_gpu.label)
        assert torch.equal(from_host.mirrored_label, from_gpu.mirrored_label)
