"""Test outlier removal against a naive loop, and on data with known outliers."""

import numpy as np
import pytest
import torch

from selfmark.config import FirstKeypoints
from selfmark.keypoints import outliers, remove_outliers
from selfmark.keypoints.outliers import compute_outlier_scores
from selfmark.points import Keypoints


def make_generator(seed=0):
    return torch.Generator().manual_seed(seed)


def compute_naive_scores(descriptor, neighbors, candidates):
    """Return the median distance of each unit descriptor to its nearest neighbors among these rows."""
    unit = descriptor.double().numpy()
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    scores = []
    for i, row in enumerate(unit):
        distances = sorted(np.linalg.norm(row - unit[j]) for j in candidates if j != i)
        scores.append(np.median(distances[:neighbors]))
    return np.array(scores)


@pytest.mark.parametrize("neighbors", [1, 6, 7, 500])
def test_scores_match_a_naive_loop(neighbors):
    descriptor = torch.randn(60, 8, generator=make_generator())
    scores = compute_outlier_scores(descriptor, neighbors, 1000, make_generator())
    # There are at most 59 neighbors: all other points.
    expected = compute_naive_scores(descriptor, min(neighbors, 59), range(60))
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-4)


def test_neighbors_are_searched_in_the_random_sample_only():
    descriptor = torch.randn(60, 8, generator=make_generator())
    sample = torch.randperm(60, generator=make_generator(5))[:20].tolist()
    scores = compute_outlier_scores(descriptor, 6, 20, make_generator(5))
    np.testing.assert_allclose(scores.numpy(), compute_naive_scores(descriptor, 6, sample), atol=1e-4)


def test_smaller_blocks_give_the_same_scores(monkeypatch):
    descriptor = torch.randn(101, 8, generator=make_generator())
    scores = compute_outlier_scores(descriptor, 9, 50, make_generator(1))
    monkeypatch.setattr(outliers, "_MAX_SIMILARITIES", 7 * 50)
    torch.testing.assert_close(compute_outlier_scores(descriptor, 9, 50, make_generator(1)), scores)


def make_points_with_outliers():
    """Return 150 points in random order, and a mask of the outliers among them.

    The descriptors of 90 points form three clusters. The other 60 points are outliers.
    """
    clusters = torch.eye(3, 64).repeat_interleave(30, dim=0) + 0.02 * torch.randn(
        90, 64, generator=make_generator()
    )
    noise = torch.randn(60, 64, generator=make_generator(1))
    order = torch.randperm(150, generator=make_generator(2))
    descriptor = torch.cat((clusters, noise))[order] * torch.rand(150, 1, generator=make_generator(3)).add(
        0.5
    )
    is_outlier = (torch.arange(150) >= 90)[order]
    points = Keypoints(torch.rand(150, 2), torch.arange(150) // 15, torch.rand(150), descriptor)
    return points, is_outlier


def test_outliers_are_dropped_and_all_other_points_keep_their_order():
    points, is_outlier = make_points_with_outliers()
    settings = FirstKeypoints(outlier_neighbors=10, outlier_fraction=0.4)
    kept = remove_outliers(points, settings, make_generator())
    assert torch.equal(kept.xy, points.xy[~is_outlier])
    assert torch.equal(kept.image_index, points.image_index[~is_outlier])


@pytest.mark.parametrize(("fraction", "num_left"), [(0.0, 150), (0.333, 100), (1.0, 0)])
def test_the_given_fraction_is_dropped(fraction, num_left):
    points, _ = make_points_with_outliers()
    assert (
        len(remove_outliers(points, FirstKeypoints(outlier_fraction=fraction), make_generator())) == num_left
    )


def test_equal_seeds_give_equal_points():
    count = 200
    points = Keypoints(
        torch.rand(count, 2),
        torch.zeros(count, dtype=torch.int64),
        torch.rand(count),
        torch.randn(count, 8, generator=make_generator()),
    )
    settings = FirstKeypoints(outlier_sample=30, outlier_neighbors=5)
    first, second, with_other_seed = (
        remove_outliers(points, settings, make_generator(seed)) for seed in (4, 4, 5)
    )
    assert torch.equal(first.xy, second.xy)
    assert not torch.equal(first.xy, with_other_seed.xy)


def test_points_without_descriptors_are_returned_unchanged():
    points = Keypoints(torch.rand(5, 2), torch.zeros(5, dtype=torch.int64), torch.rand(5))
    assert remove_outliers(points, FirstKeypoints(), make_generator()) is points


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_point_is_not_dropped_as_an_outlier(count):
    points = Keypoints(
        torch.rand(count, 2), torch.zeros(count, dtype=torch.int64), torch.rand(count), torch.rand(count, 4)
    )
    assert len(remove_outliers(points, FirstKeypoints(outlier_fraction=0.4), make_generator())) == count


@pytest.mark.gpu
def test_outliers_are_dropped_on_cuda():
    points, is_outlier = make_points_with_outliers()
    settings = FirstKeypoints(outlier_neighbors=10, outlier_fraction=0.4)
    kept = remove_outliers(points.to("cuda"), settings, torch.Generator("cuda").manual_seed(0))
    assert torch.equal(kept.xy.cpu(), points.xy[~is_outlier])
