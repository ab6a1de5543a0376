"""selfmark's own keypoints with the weights in the package."""

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
from selfmark.keypoints.weights_cache import KNOWN

from .scenes import batch, distances, rectangles, textured

CPU = torch.device("cpu")
PACKAGED = resources.files("selfmark.keypoints") / "selfmark.safetensors"


def own(**settings):
    return create_detector(FirstKeypoints(detector="selfmark", **settings), CPU)


def test_the_package_holds_weights_of_at_most_six_megabytes():
    with resources.as_file(PACKAGED) as path:
        assert path.stat().st_size <= 6_000_000
        state = load_file(path)
    SuperPoint().load_state_dict(state, strict=True)
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in state.values())


def test_nothing_is_fetched_or_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "cache"))
    assert own().name == "selfmark"
    assert not (tmp_path / "cache").exists()
    assert "selfmark" not in KNOWN  # nobody else's license to show


def test_corners_of_rectangles_are_found():
    image, corners = rectangles(192, 0)
    points = own(max_points=60).detect(batch(image))
    nearest = distances(corners, points.xy.numpy()).min(axis=1)
    assert (nearest <= 2.5).mean() >= 0.9
    away = distances(points.xy.numpy(), corners).min(axis=1)
    assert (away <= 4).mean() >= 0.6


def test_an_even_image_has_no_points():
    assert len(own().detect(torch.full((1, 3, 64, 64), 120, dtype=torch.uint8))) == 0


def test_points_and_descriptors_follow_a_turn():
    side = 192
    image = textured(side, 0)
    turn = cv2.getRotationMatrix2D(((side - 1) / 2,) * 2, 15, 0.9)
    turned = cv2.warpAffine(image, turn, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    points = own(max_points=30).detect(torch.cat((batch(image), batch(turned))))
    first, second = (points.select(points.image_index == i) for i in (0, 1))
    carried = first.xy.numpy() @ turn[:, :2].T + turn[:, 2]
    inside = ((carried >= 8) & (carried <= side - 9)).all(axis=1)
    gaps = distances(carried[inside], second.xy.numpy())
    found = gaps.min(axis=1) <= 3
    assert found.mean() >= 0.5  # by chance 0.02; of a crowd of points only the best 30 are compared
    alike = (first.descriptor[inside] @ second.descriptor.T).argmax(dim=1).numpy()
    right = gaps[np.arange(len(alike)), alike] <= 3
    assert right[found].mean() >= 0.7


def test_the_threshold_is_a_probability():
    image = textured(192, 0)
    few, many = (own(threshold=least, max_points=500).detect(batch(image)) for least in (0.3, 0.015))
    assert 0 < len(few) < len(many)
    assert few.score.min() >= 0.3
    assert many.score.max() <= 1


def test_weights_of_ones_own_are_taken_instead(tmp_path):
    path = tmp_path / "mine.safetensors"
    with resources.as_file(PACKAGED) as packaged:
        shutil.copy(packaged, path)
    image, _ = rectangles(192, 0)
    same, expected = own(weights=str(path)).detect(batch(image)), own().detect(batch(image))
    assert torch.equal(same.xy, expected.xy)
    state = load_file(path)
    save_file({name: torch.zeros_like(tensor) for name, tensor in state.items()}, path)
    assert (own(weights=str(path), threshold=0.0).detect(batch(image)).score < 0.02).all()  # 1/65 everywhere
    save_file({"conv1a.weight": state["conv1a.weight"]}, path)
    with pytest.raises(InputError, match="does not hold weights of the selfmark network"):
        own(weights=str(path))
