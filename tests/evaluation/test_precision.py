"""Compare the precision of keypoints with a naive loop and a search tree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.spatial import cKDTree

from selfmark.evaluation import precision
from selfmark.evaluation.precision import keypoint_precision


def make_scene(seed: int, images: int = 20, points: int = 400) -> tuple[np.ndarray, ...]:
    """Return keypoints [P, 2], their images [P], annotated points [N, 6, 2], visibility [N, 6], radii [N]."""
    rng = np.random.default_rng(seed)
    visible = rng.random((images, 6)) < 0.5
    visible[3] = False  # so keypoints of image 3 do not count
    truth = rng.uniform(0, 100, (images, 6, 2))
    truth[:, :3][~visible[:, :3]] = np.nan  # hidden points may have any coordinates
    radius = rng.uniform(3, 20, images)
    radius[5] = np.nan  # so keypoints of image 5 do not count
    return rng.uniform(0, 100, (points, 2)), rng.integers(0, images, points), truth, visible, radius


@pytest.mark.parametrize("chunk", [7, 8192])
def test_precision_agrees_with_a_naive_loop(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "CHUNK", chunk)
    xy, image, truth, visible, radius = make_scene(0)
    hits = []
    for keypoint, i in zip(xy, image, strict=True):
        visible_points = [truth[i, p] for p in range(6) if visible[i, p]]
        if visible_points and not math.isnan(radius[i]):
            hits.append(any(math.dist(keypoint, point) <= radius[i] for point in visible_points))
    assert 0 < sum(hits) < len(hits) < len(xy)
    assert keypoint_precision(xy, image, truth, visible, radius) == pytest.approx(sum(hits) / len(hits))


def test_precision_agrees_with_a_search_tree() -> None:
    xy, image, truth, visible, radius = make_scene(1, points=3000)
    hits = total = 0
    for i in range(len(truth)):
        if visible[i].any() and not np.isnan(radius[i]):
            distance, _ = cKDTree(truth[i, visible[i]]).query(xy[image == i])
            hits, total = hits + int((distance <= radius[i]).sum()), total + len(distance)
    assert keypoint_precision(xy, image, truth, visible, radius) == pytest.approx(hits / total)


def test_a_keypoint_at_the_radius_counts() -> None:
    truth, visible = np.zeros((1, 1, 2)), np.ones((1, 1), bool)
    xy, image = np.array([[3.0, 4.0], [3.0, 4.001]]), np.zeros(2, np.int64)
    assert keypoint_precision(xy, image, truth, visible, np.array([5.0])) == 0.5


def test_without_countable_keypoints_the_precision_is_unknown() -> None:
    xy, image, truth, visible, radius = make_scene(2)
    for arguments in (
        (xy, image, truth, np.zeros_like(visible), radius),
        (xy[:0], image[:0], truth, visible, radius),
        (xy, np.full_like(image, 3), truth, visible, radius),
    ):
        assert np.isnan(keypoint_precision(*arguments))
