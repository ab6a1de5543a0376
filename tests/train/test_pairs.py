"""Test that points and labels match the pixels in both views of a pair.

The test images encode their own coordinates: red is x, green is y, blue is the image index. The color of an
augmented image at a point therefore tells which position of which image it shows.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from selfmark.config import Augment, Config, preset
from selfmark.images.flow import PropagatedPoints
from selfmark.model.heatmaps import sample_maps
from selfmark.model.plain_backend import PLAIN_BACKEND
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.train.batch_plan import BatchSlice, NearbyFrames, plan_pairs
from selfmark.train.objectives import round_pair_settings, warmup_pair_settings
from selfmark.train.pairs import PairBatch, PairSettings, PairSource, build_pair_batch
from selfmark.train.point_table import PointTable, build_point_table, label_by_index

SIZE = 128  # pixels
IMAGES = 6
SLOTS = 5  # points per image
SAME_COLORS = replace(
    Augment(), contrast=(1.0, 1.0), brightness=(1.0, 1.0), noise=0.0, blur_fraction=0.0, color_fraction=0.0
)
CONFIG: Config = replace(
    preset("tiny"), augment=SAME_COLORS, runtime=replace(preset("tiny").runtime, batch=16)
)
ROUND = PairSettings(same_image_fraction=0.3, flip=True, flip_together=False)


def _make_pixels() -> torch.Tensor:
    """Return the images [IMAGES, 3, SIZE, SIZE] that encode their coordinates."""
    ramp = torch.arange(SIZE, dtype=torch.uint8)
    pixels = torch.empty(IMAGES, 3, SIZE, SIZE, dtype=torch.uint8)
    pixels[:, 0] = ramp[None, None]
    pixels[:, 1] = ramp[None, :, None]
    pixels[:, 2] = (torch.arange(IMAGES, dtype=torch.uint8) * 40)[:, None, None]
    return pixels


def _make_table() -> PointTable:
    generator = torch.Generator().manual_seed(3)
    count = IMAGES * SLOTS
    points = Keypoints(
        torch.rand(count, 2, generator=generator) * 50 + 39,
        torch.arange(IMAGES).repeat_interleave(SLOTS),
        torch.ones(count),
    )
    label = torch.cat([torch.randperm(8, generator=generator)[:SLOTS] for _ in range(IMAGES)])
    mirrored = torch.cat([torch.randperm(8, generator=generator)[:SLOTS] for _ in range(IMAGES)])
    return build_point_table(LabeledPoints(points, label, mirrored, 8), IMAGES, 2, torch.device("cpu"))


def _draw(
    table: PointTable,
    propagated: PropagatedPoints | None,
    settings: PairSettings,
    config: Config,
    seed: int,
    group: ProcessGroup = SINGLE_PROCESS,
) -> PairBatch:
    """Plan a batch, and build the part of this process; a single process builds the whole batch."""
    part = BatchSlice.for_process(config.runtime.batch, group, "runtime.batch")
    nearby: NearbyFrames | None = None
    if propagated is not None:
        neighbor, video = propagated.neighbor.numpy(), propagated.video.numpy()
        nearby = NearbyFrames(neighbor, video, config.temporal.fraction)
    plan = plan_pairs(table.usable.numpy(), part.total, settings.same_image_fraction, nearby, seed)
    pairs = plan(0).take(part)
    planned = torch.from_numpy(np.stack([pairs.first, pairs.second, pairs.slot]))
    pixels = _make_pixels()[torch.from_numpy(pairs.images)]
    generator = torch.Generator().manual_seed(seed)
    source = PairSource(table, settings, propagated)
    augmentation = PLAIN_BACKEND.augmentation
    return build_pair_batch(pixels, planned, source, config, generator, part, augmentation)


def _decode(batch: PairBatch, xy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the original coordinates and the image index at points of the augmented images."""
    values = sample_maps(batch.images, xy) * 255
    return values[..., :2], (values[..., 2] / 40).round().long()


@pytest.mark.parametrize("seed", range(4))
def test_points_move_with_the_image_content(seed: int) -> None:
    table = _make_table()
    batch = _draw(table, None, ROUND, CONFIG, seed)
    for points, valid in ((batch.xy, batch.valid), (batch.target_xy, batch.target_valid)):
        position, image = _decode(batch, points)
        assert valid.any(dim=1).all()
        for view in range(len(image)):
            shown = image[view][valid[view]].unique()
            assert len(shown) == 1
            expected = table.xy[shown[0]][valid[view]]
            assert (position[view][valid[view]] - expected).abs().max() < 0.3


@pytest.mark.parametrize("seed", range(4))
def test_labels_match_the_image_and_its_flip(seed: int) -> None:
    table = _make_table()
    batch = _draw(table, None, ROUND, CONFIG, seed)
    _, image = _decode(batch, batch.xy)
    flips = set()
    for view in range(len(image)):
        number = int(image[view][batch.valid[view]][0])
        red = batch.images[view, 0, 62:66, 62:66]
        green = batch.images[view, 1, 62:66, 62:66]
        # Changes of the source's x (red) and y (green) along a row and along a column of the view.
        x_along_row, x_along_column = red[0, 3] - red[0, 0], red[3, 0] - red[0, 0]
        y_along_row, y_along_column = green[0, 3] - green[0, 0], green[3, 0] - green[0, 0]
        # The determinant is negative if and only if the view is mirrored.
        determinant = x_along_row * y_along_column - x_along_column * y_along_row
        is_flipped = bool(determinant < 0)
        flips.add(is_flipped)
        expected = table.mirrored_label[number] if is_flipped else table.label[number]
        assert batch.label[view].tolist() == expected.tolist()
    assert flips == {True, False}


def test_warmup_pairs_are_one_image_twice_and_not_flipped_if_partners_are_unknown() -> None:
    table = _make_table()
    settings = warmup_pair_settings(CONFIG)
    assert not settings.flip
    batch = _draw(table, None, settings, CONFIG, 0)
    _, image = _decode(batch, batch.xy)
    first, second = image.chunk(2)
    both_valid = batch.valid.chunk(2)[0] & batch.valid.chunk(2)[1]
    assert torch.equal(first[both_valid], second[both_valid])
    assert torch.equal(*batch.label.chunk(2))


def test_warmup_flips_views_and_keeps_labels_if_landmarks_are_their_own_partners() -> None:
    config = replace(CONFIG, flip=replace(CONFIG.flip, partner="itself"))
    settings = warmup_pair_settings(config)
    assert settings == PairSettings(same_image_fraction=1.0, flip=True, flip_together=False)
    image = torch.arange(IMAGES).repeat_interleave(SLOTS)
    points = Keypoints(torch.rand(len(image), 2) * 50 + 39, image, torch.ones(len(image)))
    table = build_point_table(label_by_index(points, IMAGES), IMAGES, 2, torch.device("cpu"))
    batch = _draw(table, None, settings, config, 0)
    assert torch.equal(*batch.label.chunk(2))
    first, second = _decode(batch, batch.xy)[0].chunk(2)  # Equal labels mean equal original positions.
    both_valid = batch.valid.chunk(2)[0] & batch.valid.chunk(2)[1]
    assert (first - second)[both_valid].abs().max() < 0.3
    # Red is the x of the original image. If red decreases to the right, the view is mirrored.
    is_mirrored = batch.images[:, 0, 64, 72] < batch.images[:, 0, 64, 56]
    is_first_mirrored, is_second_mirrored = is_mirrored.chunk(2)
    assert set((is_first_mirrored == is_second_mirrored).tolist()) == {True, False}


def test_equivariance_mode_pairs_an_image_with_itself_and_flips_both_views_or_neither() -> None:
    config = replace(CONFIG, correspondence=replace(CONFIG.correspondence, mode="equivariance"))
    settings = round_pair_settings(config, has_mirrored_labels=True)
    assert settings == PairSettings(same_image_fraction=1.0, flip=True, flip_together=True)
    batch = _draw(_make_table(), None, settings, config, 0)
    assert torch.equal(*batch.label.chunk(2))


def test_views_are_flipped_only_if_mirrored_labels_exist_and_flipping_is_on() -> None:
    assert not round_pair_settings(CONFIG, has_mirrored_labels=False).flip
    config_without_flips = replace(CONFIG, flip=replace(CONFIG.flip, train=False, test=False))
    assert not round_pair_settings(config_without_flips, has_mirrored_labels=True).flip


def test_same_image_pairs_occur_with_the_given_fraction() -> None:
    config = replace(CONFIG, runtime=replace(CONFIG.runtime, batch=400))
    settings = PairSettings(same_image_fraction=0.5, flip=False, flip_together=False)
    batch = _draw(_make_table(), None, settings, config, 0)
    _, image = _decode(batch, torch.full((800, 1, 2), 63.5))
    same_fraction = (image[:400] == image[400:]).float().mean()
    # By chance, one in six of the other pairs also consists of a single image.
    assert same_fraction == pytest.approx(0.5 + 0.5 / IMAGES, abs=0.07)


def test_temporal_pairs_match_propagated_points_slot_by_slot() -> None:
    table = _make_table()
    neighbor = torch.tensor([[1], [0], [3], [2], [5], [4]])
    propagated = PropagatedPoints(
        torch.zeros(IMAGES, dtype=torch.int64),
        neighbor,
        table.xy[:, None] + torch.tensor([3.0, -2.0]),
        table.valid[:, None].clone(),
    )
    propagated.valid[:, :, 0] = False  # Optical flow has lost the first point of each image.
    always = replace(CONFIG, temporal=replace(CONFIG.temporal, enabled=True, fraction=1.0))
    settings = PairSettings(same_image_fraction=0.0, flip=True, flip_together=False)
    batch = _draw(table, propagated, settings, always, 0)
    position, image = _decode(batch, batch.xy)
    target_position, target_image = _decode(batch, batch.target_xy)
    num_pairs = len(image) // 2
    for pair in range(num_pairs):
        first, second = int(image[pair, 1]), int(image[num_pairs + pair, 1])
        assert second == int(neighbor[first, 0])
        valid = batch.valid[num_pairs + pair]
        assert not valid[0]
        expected = table.xy[first] + torch.tensor([3.0, -2.0])
        assert (position[num_pairs + pair] - expected)[valid].abs().max() < 0.3
        # In the second view, the detector's targets are the frame's own keypoints, not the propagated points.
        assert (target_image[num_pairs + pair] == second).all()
        target_valid = batch.target_valid[num_pairs + pair]
        assert (target_position[num_pairs + pair] - table.xy[second])[target_valid].abs().max() < 0.3
        slots = list(range(SLOTS))  # The label of each point is its slot.
        assert batch.label[pair].tolist() == batch.label[num_pairs + pair].tolist() == slots
    assert num_pairs == always.runtime.batch


def test_two_processes_together_build_the_batch_of_one_process() -> None:
    table, config = _make_table(), replace(CONFIG, augment=Augment())
    all_pairs = _draw(table, None, ROUND, config, 0)
    parts = [_draw(table, None, ROUND, config, 0, ProcessGroup(rank, 2)) for rank in range(2)]
    for field in fields(PairBatch):
        views = [getattr(part, field.name).chunk(2) for part in parts]  # first and second views of each part
        joined = torch.cat([views[0][0], views[1][0], views[0][1], views[1][1]])
        torch.testing.assert_close(joined, getattr(all_pairs, field.name))
