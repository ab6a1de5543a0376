"""Test the steps of the authors' earlier method that need no training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from selfmark.config import Config, Mallis2020
from selfmark.errors import CollapsedTraining
from selfmark.methods import mallis2020
from selfmark.points import Keypoints, LabeledPoints


def test_rare_clusters_are_left_out_and_the_message_rounds_the_minimum_up() -> None:
    """With 5 images and `min_found` 0.5, a cluster needs 2.5 images, so at least 3."""
    run: Any = SimpleNamespace(config=Config(mallis2020=Mallis2020(min_found=0.5)))
    image, label = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 1, 0, 1, 0])
    points = Keypoints(torch.zeros(5, 2), image, torch.ones(5))
    labeled = LabeledPoints(points, label, torch.full_like(label, -1), 2, torch.eye(2))
    kept = mallis2020._drop_rare_clusters(run, labeled, 5)
    assert kept.label.tolist() == [0, 0, 0]
    with pytest.raises(CollapsedTraining, match="no cluster is found in 3 images or more"):
        mallis2020._drop_rare_clusters(run, labeled.select(label == 1), 5)
