"""Test that tables of padded points contain exactly the flat points."""

from __future__ import annotations

import pytest
import torch

from selfmark.errors import TrainingError
from selfmark.points import Keypoints, LabeledPoints
from selfmark.train.point_table import build_point_table, label_by_index

IMAGES = torch.tensor([0, 0, 0, 2, 3, 3])
POINTS = Keypoints(torch.arange(12.0).reshape(6, 2), IMAGES, torch.ones(6))


def test_rows_contain_the_flat_points_in_order() -> None:
    labeled = LabeledPoints(POINTS, torch.tensor([4, -1, 2, 0, 1, 3]), torch.tensor([1, 2, 3, -1, 0, 2]), 5)
    table = build_point_table(labeled, 4, 2, torch.device("cpu"))
    assert table.xy.shape == (4, 3, 2)
    for image in range(4):
        points = [point for point in range(6) if IMAGES[point] == image]
        assert table.valid[image].tolist() == [slot < len(points) for slot in range(3)]
        for slot, point in enumerate(points):
            assert torch.equal(table.xy[image, slot], POINTS.xy[point])
            assert table.label[image, slot] == labeled.label[point]
            assert table.mirrored_label[image, slot] == labeled.mirrored_label[point]
    assert (table.label[~table.valid] == -1).all()


def test_images_with_too_few_points_are_left_out() -> None:
    table = build_point_table(label_by_index(POINTS, 4), 4, 2, torch.device("cpu"))
    assert table.usable.tolist() == [0, 3]
    with pytest.raises(TrainingError, match="only 1 of 4 images has 3 or more keypoints"):
        build_point_table(label_by_index(POINTS, 4), 4, 3, torch.device("cpu"))


def test_warmup_labels_number_the_points_of_each_image() -> None:
    labeled = label_by_index(POINTS, 4)
    assert labeled.label.tolist() == [0, 1, 2, 0, 0, 1]
    assert labeled.mirrored_label.tolist() == labeled.label.tolist()
