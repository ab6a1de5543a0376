"""Labels that are found with features alone: keypoints on the object, their clusters, and the fallback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark import feature_labels
from selfmark.config import override, preset
from selfmark.feature_images import UsedImages
from selfmark.feature_labels import _DescribedCells, describe_object_keypoints
from selfmark.images.feed import PixelFeed
from selfmark.points import Keypoints
from selfmark.run.folder import Run

CPU = torch.device("cpu")
SIDE = 64  # pixels: 8 x 8 cells


class _Store:
    """The part of an image store that keypoints are detected with."""

    def __init__(self, num_images: int) -> None:
        self.pixels = torch.zeros(num_images, 3, SIDE, SIDE, dtype=torch.uint8)
        self.bounds = np.tile(np.array([0, 0, SIDE - 1, SIDE - 1], np.float32), (num_images, 1))


def _used_images(num_images: int, rows: list[int], shard: slice) -> UsedImages:
    feed = PixelFeed(torch.zeros(len(rows), 3, SIDE, SIDE, dtype=torch.uint8), CPU)
    matrix = torch.eye(2, 3).expand(len(rows), 2, 3)
    return UsedImages(_Store(num_images), torch.tensor(rows), matrix, feed, shard)  # type: ignore[arg-type]


def _run(folder: Path, **changes: Any) -> Run:
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    settings = {"features.name": "efficientnet-lite0", "images.size": SIDE, "network.depth": 1} | settings
    Run.create(folder, override(preset("tiny"), settings), [], [])
    return Run.open(folder)


def test_keypoints_on_the_object_have_the_features_of_their_cells() -> None:
    """Images 1, 3, 5 and 7 are used; this process describes 3 and 5."""
    generator = torch.Generator().manual_seed(0)
    cells, mirrored = torch.randn(2, 2, 6, 8, 8, generator=generator).half()
    foreground = torch.rand(2, 8, 8, generator=generator) < 0.5
    image_index = torch.randint(0, 9, (200,), generator=generator).sort().values
    xy = torch.rand(200, 2, generator=generator) * SIDE - 0.5
    points = Keypoints(xy, image_index, torch.rand(200, generator=generator))
    images = _used_images(9, [1, 3, 5, 7], slice(1, 3))
    own = feature_labels._select_own_keypoints(points, images)
    described = describe_object_keypoints(own, _DescribedCells(cells, mirrored, foreground), 1)
    expected = []
    for point, (x, y) in enumerate(xy.tolist()):
        image = int(image_index[point])
        column, row = int((x + 0.5) // 8), int((y + 0.5) // 8)
        if image in (3, 5) and foreground[(image - 3) // 2, row, column]:
            expected.append((point, (image - 1) // 2, (image - 3) // 2, row, column))
    found = described.points
    assert found.descriptor is not None
    assert described.mirrored is not None
    assert len(found) == len(expected) > 10
    for place, (point, used_image, own_image, row, column) in enumerate(expected):
        assert torch.equal(found.xy[place], xy[point])
        assert int(found.image_index[place]) == used_image
        assert torch.equal(found.descriptor[place], cells[own_image, :, row, column].float())
        assert torch.equal(described.mirrored[place], mirrored[own_image, :, row, column].float())


# --- labels of keypoints -----------------------------------------------------------------------------------


def _parts(num_images: int) -> tuple[Keypoints, _DescribedCells, list[list[tuple[int, int]]]]:
    """Return objects of three parts: each part has its own feature and one keypoint per image.

    In the mirror image, parts 0 and 1 swap their features. A fourth keypoint lies on the background.
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
            xy.append([column * 8 + 2.0, row * 8 + 5.0])
            index.append(image)
            if part == 3:
                continue
            foreground[image, row, column] = True
            features[image, :, row, column] = torch.eye(4)[part].half()
            mirrored[image, :, row, column] = torch.eye(4)[(1, 0, 2)[part]].half()
    points = Keypoints(torch.tensor(xy), torch.tensor(index), torch.ones(len(xy)))
    return points, _DescribedCells(features, mirrored, foreground), places


def _label(run: Run, monkeypatch: pytest.MonkeyPatch, num_images: int = 12) -> tuple[Any, Any]:
    points, cells, places = _parts(num_images)
    monkeypatch.setattr(feature_labels, "detect_first_keypoints", lambda *_: points)
    images = _used_images(num_images, list(range(num_images)), slice(0, num_images))
    return feature_labels._label_keypoints(run, images, cells), places


def test_keypoints_on_the_same_part_get_the_same_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path / "run", K=3)
    labels, places = _label(run, monkeypatch)
    assert labels["present"].all()
    assert labels["mirrored_present"].all()
    row, column = places[0][0]
    first = int((labels["xy"][0] == torch.tensor([column * 8 + 2.0, row * 8 + 5.0])).all(dim=1).nonzero())
    row, column = places[0][1]
    second = int((labels["xy"][0] == torch.tensor([column * 8 + 2.0, row * 8 + 5.0])).all(dim=1).nonzero())
    for image, chosen in enumerate(places):
        for part, landmark in ((0, first), (1, second), (2, 3 - first - second)):
            row, column = chosen[part]
            assert labels["xy"][image, landmark].tolist() == [column * 8 + 2.0, row * 8 + 5.0]
    # Parts 0 and 1 swap in the mirror image.
    assert torch.equal(labels["mirrored_xy"][:, first], labels["xy"][:, second])
    assert torch.equal(labels["mirrored_xy"][:, second], labels["xy"][:, first])
    (event,) = [event for event in run.events() if event["event"] == "keypoint_labels"]
    assert event["points_per_image"] == 3, "the keypoint on the background is left out"
    assert event["is_used"]


def test_landmarks_that_are_their_own_partners_keep_their_labels_in_mirror_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, _ = _label(_run(tmp_path / "run", K=3, flip__partner="itself"), monkeypatch)
    assert torch.equal(labels["mirrored_xy"], labels["xy"])


@pytest.mark.parametrize(("K", "M"), [(10, 30), (40, 40)])
def test_too_few_keypoints_give_no_labels(
    K: int, M: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three keypoints per image label at most 3 of 10 landmarks; 36 keypoints cannot form 40 clusters."""
    run = _run(tmp_path / "run", K=K, M=M, features__min_labeled_fraction=0.31)
    labels, _ = _label(run, monkeypatch)
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
def test_only_upright_objects_are_labeled_by_keypoints(labels: str, orientation: str, expected: bool) -> None:
    changes = {"features.labels": labels, "features.orientation": orientation}
    assert override(preset("fast"), changes).features.labels_keypoints == expected


@pytest.mark.parametrize(("orientation", "expected"), [("upright", True), ("turned", False), ("any", False)])
def test_stage_1_is_run_for_upright_objects_only(orientation: str, expected: bool) -> None:
    changes = {"features.orientation": orientation, "features.keypoint_landmarks": True}
    assert override(preset("fast"), changes).features.runs_stage1 == expected
