"""Labels that are found with features alone: keypoints on the object, their clusters, and the fallback."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark import feature_labels
from selfmark.config import override, preset
from selfmark.feature_labels import (
    FoundLandmarks,
    UsedImages,
    _DescribedCells,
    describe_object_keypoints,
)
from selfmark.features.encoder import Encoder, FeatureInfo
from selfmark.images.feed import PixelFeed
from selfmark.points import Keypoints
from selfmark.run.folder import Run
from selfmark.train.objectives import LandmarkTable

CPU = torch.device("cpu")
SIDE = 64  # pixels: 8 x 8 cells


class _Store:
    """The part of an image store that keypoints are detected with."""

    def __init__(self, num_images: int) -> None:
        self.bounds = np.tile(np.array([0, 0, SIDE - 1, SIDE - 1], np.float32), (num_images, 1))


def _used_images(num_images: int, rows: list[int], shard: slice) -> UsedImages:
    feed = PixelFeed(torch.zeros(len(rows), 3, SIDE, SIDE, dtype=torch.uint8), CPU)
    return UsedImages(_Store(num_images), torch.tensor(rows), feed, shard)  # type: ignore[arg-type]


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
    own = feature_labels._own_keypoints(points, images)
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
        ("auto", "any", False),
        ("keypoints", "any", True),
        ("cells", "upright", False),
    ],
)
def test_upright_objects_are_labeled_by_keypoints(labels: str, orientation: str, expected: bool) -> None:
    changes = {"features.labels": labels, "features.orientation": orientation}
    assert override(preset("fast"), changes).features.labels_keypoints == expected


# --- objects that face any direction -----------------------------------------------------------------------


class _PlaceEncoder(Encoder):
    """Encoder for which all cells look alike, so that only places tell keypoints apart."""

    def __init__(self) -> None:
        super().__init__()
        self.info = FeatureInfo("places", "none", "nothing")
        self.channels = self.part_channels = 4

    def compute_maps(self, images: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        maps = [torch.ones(len(images), 4, images.shape[2] // 8, images.shape[3] // 8)]
        return maps, maps


def _turned_objects(num_images: int) -> tuple[FoundLandmarks, Keypoints, torch.Tensor]:
    """Return objects with a head and a tail, which are found, and a left and a right leg, which look alike.

    The legs are keypoints in random order. Returns the landmarks on the axis, the keypoints, and the places
    [N, 2, 2] of the left and the right leg.
    """
    generator = torch.Generator().manual_seed(4)
    angle = torch.rand(num_images, generator=generator) * 2 * math.pi
    forward = torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)
    right = torch.stack([-forward[:, 1], forward[:, 0]], dim=-1)  # y points down
    center = torch.full((2,), (SIDE - 1) / 2)
    axis = torch.stack([center + length * forward for length in (-20.0, -10.0, 9.0, 21.0)], dim=1)
    legs = torch.stack([center - 14 * right, center + 14 * right], dim=1)
    order = torch.rand(num_images, generator=generator) < 0.5
    shuffled = torch.where(order[:, None, None], legs, legs.flip(1))
    points = Keypoints(
        shuffled.reshape(-1, 2), torch.arange(num_images).repeat_interleave(2), torch.ones(2 * num_images)
    )
    score = torch.ones(num_images, 4)
    return FoundLandmarks(axis, score, axis, score), points, legs


def _label_turned(
    run: Run, monkeypatch: pytest.MonkeyPatch, found: FoundLandmarks, points: Keypoints
) -> LandmarkTable | None:
    num_images = len(found.xy)
    monkeypatch.setattr(feature_labels, "detect_first_keypoints", lambda *_: points)
    images = _used_images(num_images, list(range(num_images)), slice(0, num_images))
    return feature_labels.label_aligned_keypoints(run, _PlaceEncoder(), images, found)


def test_left_and_right_parts_that_look_alike_get_different_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path / "run", K=2, features__orientation="any")
    found, points, legs = _turned_objects(30)
    table = _label_turned(run, monkeypatch, found, points)
    assert table is not None
    assert table.present.all()
    left = int((table.xy[0] - legs[0, 0]).abs().sum(dim=1).argmin())
    torch.testing.assert_close(table.xy[:, left], legs[:, 0])
    torch.testing.assert_close(table.xy[:, 1 - left], legs[:, 1])
    # In the mirror image, the left leg is where the right one was.
    torch.testing.assert_close(table.mirrored_xy[:, left], legs[:, 1])
    assert [event["is_used"] for event in run.events() if event["event"] == "alignment"] == [True]
    again = _label_turned(Run.open(run.path), monkeypatch, found, points)
    assert again is not None
    assert torch.equal(again.xy, table.xy)
    assert len([event for event in run.events() if event["event"] == "alignment"]) == 1, "it is stored"


def test_landmarks_that_do_not_tell_the_direction_give_no_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path / "run", K=2, features__orientation="any")
    found, points, _ = _turned_objects(30)
    noise = SIDE * torch.rand(30, 4, 2, generator=torch.Generator().manual_seed(9))
    assert _label_turned(run, monkeypatch, found._replace(xy=noise, mirrored_xy=noise), points) is None
    assert not run.events()[-1]["is_used"]
    assert _label_turned(Run.open(run.path), monkeypatch, found, points) is None, "the decision is stored"


@pytest.mark.parametrize(("orientation", "expected"), [("upright", True), ("any", False)])
def test_stage_1_is_run_for_upright_objects_only(orientation: str, expected: bool) -> None:
    changes = {"features.orientation": orientation, "features.keypoint_landmarks": True}
    assert override(preset("fast"), changes).features.runs_stage1 == expected
