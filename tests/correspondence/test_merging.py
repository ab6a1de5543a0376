"""Test the merging of clusters against loops over images and pairs of clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from selfmark.correspondence.merging import (
    PlaceCounts,
    cluster_sizes,
    count_places,
    find_largest_clusters,
    find_leaders,
    keep_clusters,
    merge_clusters,
)
from selfmark.points import Keypoints, LabeledPoints


def _make_labeled(image: list[int], label: list[int], clusters: int) -> LabeledPoints:
    """Return labeled points and one-hot centroids; x and y of each point are its row number."""
    rows = torch.arange(len(label), dtype=torch.float32)
    points = Keypoints(torch.stack([rows, rows], 1), torch.tensor(image), rows)
    label_tensor = torch.tensor(label)
    return LabeledPoints(
        points, label_tensor, torch.full_like(label_tensor, -1), clusters, torch.eye(clusters)
    )


def test_confident_clusters_at_the_same_place_are_counted_as_in_a_loop() -> None:
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 5, (20, 6, 2)).astype(np.float32)
    is_confident = rng.random((20, 6)) < 0.7
    together, max_distance = np.zeros((6, 6), int), 1.425
    for image in range(20):
        for a in range(6):
            for b in range(6):
                is_near = np.linalg.norm(cells[image, a] - cells[image, b]) < max_distance
                together[a, b] += is_near and is_confident[image, a] and is_confident[image, b]
    confident, counted = count_places(torch.from_numpy(cells), torch.from_numpy(is_confident), max_distance)
    np.testing.assert_array_equal(confident, is_confident.sum(0))
    np.testing.assert_array_equal(counted, together)


def test_clusters_join_the_largest_cluster_at_their_place() -> None:
    # Clusters 0 and 1 are mostly at the same place. Cluster 2 shares a place with cluster 1 in half of its
    # images. Cluster 3 is never predicted. Cluster 4 shares a place with cluster 0, but has no points.
    together = np.diag([10, 10, 8, 0, 9])
    together[0, 1] = together[1, 0] = 9
    together[1, 2] = together[2, 1] = 4
    together[0, 4] = together[4, 0] = 9
    counts = PlaceCounts(np.diag(together).copy(), together)
    sizes = np.array([5, 7, 9, 3, 0])
    assert find_leaders(counts, sizes, overlap=0.7).tolist() == [1, 1, 2, 3, 4]
    # If a smaller overlap is enough, cluster 1 joins the larger cluster 2. Cluster 0 shares no place with
    # cluster 2 and stays apart.
    assert find_leaders(counts, sizes, overlap=0.4).tolist() == [0, 2, 2, 3, 4]


def test_an_image_keeps_the_point_of_its_largest_merged_cluster() -> None:
    # Clusters 0 (2 points), 1 (3 points) and 2 (1 point); 0 and 1 merge into 1.
    labeled = _make_labeled(image=[0, 0, 1, 2, 2, 3], label=[0, 1, 0, 1, 2, 1], clusters=3)
    labeled = replace(labeled, mirrored_label=torch.tensor([0, 1, 2, 0, -1, 2]))
    merged = merge_clusters(labeled, np.array([1, 1, 2]))
    rows = merged.points.xy[:, 0].tolist()
    assert rows == [1, 2, 3, 4, 5]  # point 0 is dropped: its image has a point of the larger cluster
    assert merged.mirrored_label.tolist() == [1, 2, 1, -1, 2]
    assert merged.label.tolist() == [1, 1, 1, 2, 1]
    assert merged.centroids is not None
    torch.testing.assert_close(merged.centroids[1], torch.tensor([2 / 5, 3 / 5, 0.0]))
    torch.testing.assert_close(merged.centroids[2], torch.tensor([0.0, 0.0, 1.0]))


def test_the_largest_clusters_become_landmarks() -> None:
    labeled = _make_labeled(image=[0, 1, 2, 0, 1, 0], label=[3, 3, 3, 1, 1, 0], clusters=5)
    assert cluster_sizes(labeled).tolist() == [1, 2, 0, 3, 0]
    assert find_largest_clusters(labeled, 0).tolist() == [0, 1, 3]
    kept = keep_clusters(labeled, find_largest_clusters(labeled, 2))
    assert kept.clusters == 2
    assert kept.label.tolist() == [1, 1, 1, 0, 0]
    assert kept.mirrored_label.tolist() == [-1] * 5
    assert kept.centroids is not None
    torch.testing.assert_close(kept.centroids, torch.eye(5)[[1, 3]])
