"""Test labels found with features alone: keypoints on the object, their clusters, and the fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.config import override, preset
from selfmark.feature_discovery import feature_labels
from selfmark.feature_discovery.feature_images import UsedImages
from selfmark.feature_discovery.feature_labels import _DescribedCells, describe_object_keypoints
from selfmark.images.feed import PixelFeed
from selfmark.points import Keypoints
from selfmark.run.folder import Run
from tests.feature_discovery.feature_runs import create_run

CPU = torch.device("cpu")
SIDE = 64  # pixels: 8 x 8 cells


class _Store:
    """Has only the fields of an image store that the detection of keypoints uses."""

    def __init__(self, num_images: int) -> None:
        self.pixels = torch.zeros(num_images, 3, SIDE, SIDE, dtype=torch.uint8)
        self.bounds = np.tile(np.array([0, 0, SIDE - 1, SIDE - 1], np.float32), (num_images, 1))


def _build_used_images(num_images: int, rows: list[int], shard: slice) -> UsedImages:
    feed = PixelFeed(torch.zeros(len(rows), 3, SIDE, SIDE, dtype=torch.uint8), CPU)
    matrix = torch.eye(2, 3).expand(len(rows), 2, 3)
    return UsedImages(_Store(num_images), torch.tensor(rows), matrix, feed, shard)  # type: ignore[arg-type]


def test_keypoints_on_the_object_have_the_features_of_their_cells() -> None:
    """Images 1, 3, 5 and 7 of nine are used. This process describes images 3 and 5."""
    generator = torch.Generator().manual_seed(0)
    # Features [image, channel, row, column] of the two images that this process describes.
    cells, mirrored = torch.randn(2, 2, 6, 8, 8, generator=generator).half()
    foreground = torch.rand(2, 8, 8, generator=generator) < 0.5
    image_index = torch.randint(0, 9, (200,), generator=generator).sort().values
    xy = torch.rand(200, 2, generator=generator) * SIDE - 0.5
    points = Keypoints(xy, image_index, torch.rand(200, generator=generator))
    images = _build_used_images(9, [1, 3, 5, 7], slice(1, 3))
    own = feature_labels._select_own_keypoints(points, images)
    described = describe_object_keypoints(own, _DescribedCells(cells, mirrored, foreground), 1)
    expected = []
    for point, (x, y) in enumerate(xy.tolist()):
        image = int(image_index[point])
        if image not in (3, 5):
            continue
        used_image, own_image = [1, 3, 5, 7].index(image), [3, 5].index(image)
        column, row = int((x + 0.5) // 8), int((y + 0.5) // 8)
        if foreground[own_image, row, column]:
            expected.append((point, used_image, own_image, row, column))
    keypoints = described.points
    assert keypoints.descriptor is not None
    assert described.mirrored is not None
    assert len(keypoints) == len(expected) > 10
    for index, (point, used_image, own_image, row, column) in enumerate(expected):
        assert torch.equal(keypoints.xy[index], xy[point])
        assert int(keypoints.image_index[index]) == used_image
        assert torch.equal(keypoints.descriptor[index], cells[own_image, :, row, column].float())
        assert torch.equal(described.mirrored[index], mirrored[own_image, :, row, column].float())


# --- labels of keypoints -----------------------------------------------------------------------------------


def _place_keypoint(row: int, column: int) -> list[float]:
    """Return the position (x, y), in pixels, of the keypoint in a cell."""
    return [column * 8 + 2.0, row * 8 + 5.0]


def _make_parts(num_images: int) -> tuple[Keypoints, _DescribedCells, list[list[tuple[int, int]]]]:
    """Return keypoints, features of cells, and the cell (row, column) of each keypoint in each image.

    Each object has three parts. A part has its own feature and one keypoint per image. In the mirror image,
    parts 0 and 1 swap their features. A fourth keypoint lies on the background.
    """
    generator = torch.Generator().manual_seed(3)
    features = torch.zeros(num_images, 4, 8, 8, dtype=torch.float16)
    features[:, 3] = 1
    mirrored = features.clone()
    foreground = torch.zeros(num_images, 8, 8, dtype=torch.bool)
    places, xy, index = [], [], []
    for image in range(num_images):
        chosen = [divmod(int(cell), 8) for cell in torch.randperm(64, generator=generator)[:4]]
        places.append(chosen)
        for part, (row, column) in enumerate(chosen):
            xy.append(_place_keypoint(row, column))
            index.append(image)
            if part == 3:  # This keypoint is on the background.
                continue
            foreground[image, row, column] = True
            features[image, :, row, column] = torch.eye(4)[part].half()
            partner = (1, 0, 2)[part]
            mirrored[image, :, row, column] = torch.eye(4)[partner].half()
    points = Keypoints(torch.tensor(xy), torch.tensor(index), torch.ones(len(xy)))
    return points, _DescribedCells(features, mirrored, foreground), places


def _label_parts(run: Run, monkeypatch: pytest.MonkeyPatch, num_images: int = 12) -> tuple[Any, Any]:
    points, cells, places = _make_parts(num_images)
    monkeypatch.setattr(feature_labels, "detect_first_keypoints", lambda *_: points)
    images = _build_used_images(num_images, list(range(num_images)), slice(0, num_images))
    return feature_labels._label_keypoints(run, images, cells, run.config.K), places


def test_keypoints_on_the_same_part_get_the_same_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(tmp_path / "run", K=3)
    labels, places = _label_parts(run, monkeypatch)
    assert labels["present"].all()
    assert labels["mirrored_present"].all()
    # Find the landmarks that mark parts 0 and 1 in the first image. The third landmark must mark part 2.
    first, second = (labels["xy"][0].tolist().index(_place_keypoint(*places[0][part])) for part in (0, 1))
    for image, chosen in enumerate(places):
        for part, landmark in ((0, first), (1, second), (2, 3 - first - second)):
            assert labels["xy"][image, landmark].tolist() == _place_keypoint(*chosen[part])
    # Parts 0 and 1 swap in the mirror image.
    assert torch.equal(labels["mirrored_xy"][:, first], labels["xy"][:, second])
    assert torch.equal(labels["mirrored_xy"][:, second], labels["xy"][:, first])
    (event,) = [event for event in run.events() if event["event"] == "keypoint_labels"]
    assert event["points_per_image"] == 3, "the keypoint on the background is left out"
    assert event["is_used"]


def test_landmarks_that_are_their_own_partners_keep_their_labels_in_mirror_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, _ = _label_parts(create_run(tmp_path / "run", K=3, flip__partner="itself"), monkeypatch)
    assert torch.equal(labels["mirrored_xy"], labels["xy"])


@pytest.mark.parametrize(("K", "M"), [(10, 30), (40, 40)])
def test_too_few_keypoints_give_no_labels(
    K: int, M: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three keypoints per image label at most 3 of 10 landmarks; 36 keypoints cannot form 40 clusters."""
    run = create_run(tmp_path / "run", K=K, M=M, features__min_labeled_fraction=0.31)
    labels, _ = _label_parts(run, monkeypatch)
    assert labels == {}
    assert run.events()[-1]["event"] == "keypoint_labels"
    assert not run.events()[-1]["is_used"]


@pytest.mark.parametrize(
    ("labels", "orientation", "expected"),
    [
        ("auto", "upright", True),
        ("auto", "turned", False),
        ("auto", "any", False),
        ("keypoints", "any", True),
        ("cells", "upright", False),
    ],
)
def test_auto_labels_only_upright_objects_by_keypoints(labels: str, orientation: str, expected: bool) -> None:
    changes = {"features.labels": labels, "features.orientation": orientation}
    assert override(preset("fast"), changes).features.labels_keypoints == expected


@pytest.mark.parametrize(("orientation", "expected"), [("upright", True), ("turned", False), ("any", False)])
def test_stage_1_is_run_for_upright_objects_only(orientation: str, expected: bool) -> None:
    changes = {"features.orientation": orientation, "features.keypoint_landmarks": True}
    assert override(preset("fast"), changes).features.runs_stage1 == expected
