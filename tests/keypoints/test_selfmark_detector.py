"""Test selfmark's own keypoint detector with the packaged weights."""

import shutil
from importlib import resources

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints import create_detector
from selfmark.keypoints.superpoint import SuperPoint
from selfmark.weights_cache import PUBLISHED_WEIGHTS

from .scenes import draw_polygons, draw_rectangles, pairwise_distances, to_batch

CPU = torch.device("cpu")
PACKAGED = resources.files("selfmark.keypoints") / "selfmark.safetensors"


def create(**settings):
    return create_detector(FirstKeypoints(detector="selfmark", **settings), CPU)


def test_the_packaged_weights_take_at_most_six_megabytes():
    with resources.as_file(PACKAGED) as path:
        assert path.stat().st_size <= 6_000_000
        state = load_file(path)
    SuperPoint().load_state_dict(state, strict=True)
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in state.values())


def test_nothing_is_downloaded_or_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "cache"))
    assert create().name == "selfmark"
    assert not (tmp_path / "cache").exists()
    # The weights in PUBLISHED_WEIGHTS are downloaded and come with a license notice.
    assert "selfmark" not in PUBLISHED_WEIGHTS


def test_corners_of_rectangles_are_found():
    image, corners = draw_rectangles(192, 0)
    points = create(max_points=60).detect(to_batch(image))
    nearest = pairwise_distances(corners, points.xy.numpy()).min(axis=1)
    assert (nearest <= 2.5).mean() >= 0.9
    distance = pairwise_distances(points.xy.numpy(), corners).min(axis=1)
    assert (distance <= 4).mean() >= 0.6


def test_a_uniform_image_has_no_points():
    assert len(create().detect(torch.full((1, 3, 64, 64), 120, dtype=torch.uint8))) == 0


def test_points_and_descriptors_are_found_again_after_a_rotation():
    side = 192
    image = draw_polygons(side, 0)
    rotation = cv2.getRotationMatrix2D(((side - 1) / 2,) * 2, 15, 0.9)
    rotated = cv2.warpAffine(image, rotation, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    points = create(max_points=30).detect(torch.cat((to_batch(image), to_batch(rotated))))
    first, second = (points.select(points.image_index == image) for image in (0, 1))
    expected = first.xy.numpy() @ rotation[:, :2].T + rotation[:, 2]
    inside = ((expected >= 8) & (expected <= side - 9)).all(axis=1)
    distance = pairwise_distances(expected[inside], second.xy.numpy())
    is_found = distance.min(axis=1) <= 3
    assert is_found.mean() >= 0.5  # by chance 0.02; only the best 30 of many points are compared
    match = (first.descriptor[inside] @ second.descriptor.T).argmax(dim=1).numpy()
    is_correct = distance[np.arange(len(match)), match] <= 3
    assert is_correct[is_found].mean() >= 0.7


def test_the_threshold_is_a_probability():
    image = draw_polygons(192, 0)
    few_points, many_points = (
        create(threshold=threshold, max_points=500).detect(to_batch(image)) for threshold in (0.3, 0.015)
    )
    assert 0 < len(few_points) < len(many_points)
    assert few_points.score.min() >= 0.3
    assert many_points.score.max() <= 1


def test_the_users_weights_replace_the_packaged_ones(tmp_path):
    path = tmp_path / "own.safetensors"
    with resources.as_file(PACKAGED) as packaged:
        shutil.copy(packaged, path)
    image, _ = draw_rectangles(192, 0)
    copied, expected = create(weights=str(path)).detect(to_batch(image)), create().detect(to_batch(image))
    assert torch.equal(copied.xy, expected.xy)
    state = load_file(path)
    save_file({name: torch.zeros_like(tensor) for name, tensor in state.items()}, path)
    uniform = create(weights=str(path), threshold=0.0).detect(to_batch(image))
    assert (uniform.score < 0.02).all()  # the 64 pixels of a cell and `no point` get 1/65 each
    save_file({"conv1a.weight": state["conv1a.weight"]}, path)
    with pytest.raises(InputError, match="does not contain weights of the selfmark network"):
        create(weights=str(path))
