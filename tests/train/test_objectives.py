"""Test the losses of both stages: targets, negatives, weights, gradients and flipping.

Phi is the network that finds and describes keypoints (Stage 1), Psi the network that locates landmarks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from selfmark.config import Config, override, preset
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.images.feed import PixelFeed
from selfmark.model.heatmaps import draw_target, sample_descriptors, to_cells
from selfmark.model.network import Phi, Psi
from selfmark.model.plain_backend import PLAIN_BACKEND
from selfmark.train.batch_plan import BatchSlice
from selfmark.train.objectives import (
    LandmarkTable,
    RegressionSettings,
    build_regression_task,
    build_stage1_targets,
    stage1_loss,
)
from selfmark.train.pairs import PairBatch
from tests.conftest import QUICK

PAIRED = LandmarkPartners((1, 0), (True, True))


def _make_config(**changes: object) -> Config:
    return override(
        preset("tiny"), QUICK | {name.replace("__", "."): value for name, value in changes.items()}
    )


def _make_batch(views: int, points: int, size: int) -> PairBatch:
    """Return pairs of black views with random points and labels; view i is paired with view i + views / 2."""
    generator = torch.Generator().manual_seed(0)
    xy = torch.rand(views, points, 2, generator=generator) * (size - 1)
    valid = torch.rand(views, points, generator=generator) < 0.8
    label = torch.randint(-1, 5, (views, points), generator=generator)
    return PairBatch(torch.zeros(views, 3, size, size), xy, valid, xy, valid, label)


def _compute_descriptor_loss(
    features: torch.Tensor, batch: PairBatch, config: Config, seed: int
) -> torch.Tensor:
    views = len(batch.xy)
    part = BatchSlice(0, views // 2, views // 2)
    targets = build_stage1_targets(
        batch, config, torch.Generator().manual_seed(seed), part, PLAIN_BACKEND.augmentation
    )
    described = sample_descriptors(features, targets.cells)
    return stage1_loss(torch.zeros_like(targets.target), described, targets, config)["descriptor"]


def test_same_image_negatives_count_each_pair_of_keypoints_once() -> None:
    """Without random cells, the loss over same-image negatives equals a loop over pairs i < j."""
    config = _make_config(loss__random_negatives=0, loss__average="together", loss__negative_weight=1.0)
    batch = _make_batch(4, 6, 64)
    features = torch.randn(4, 16, 16, 16, generator=torch.Generator().manual_seed(1))
    ours = _compute_descriptor_loss(features, batch, config, 2)

    cells = to_cells(batch.xy)
    described = sample_descriptors(features, cells)
    terms = []
    for pair in range(2):
        for i in range(6):
            for j in range(6):
                if (
                    batch.valid[pair, i]
                    and batch.valid[pair + 2, j]
                    and 0 <= batch.label[pair, i] == batch.label[pair + 2, j]
                ):
                    terms.append((described[pair, i] - described[pair + 2, j]).square().sum())
    for view in range(4):
        for i in range(6):
            for j in range(i + 1, 6):
                is_far = (cells[view, i] - cells[view, j]).norm() > config.loss.negative_distance
                if batch.valid[view, i] and batch.valid[view, j] and is_far:
                    distance = (described[view, i] - described[view, j]).square().sum()
                    terms.append((config.loss.margin - distance).clamp_min(0))
    assert float(ours) == pytest.approx(float(torch.stack(terms).mean()), abs=1e-5)


def test_random_cells_are_negatives_in_the_same_image_mode_only() -> None:
    batch = _make_batch(4, 6, 64)
    # Without labels, there are no positive pairs and no clusters.
    batch = replace(batch, label=torch.full_like(batch.label, -1))
    features = torch.ones(4, 16, 16, 16)  # Descriptors are equal, so every negative costs the margin, 0.8.
    same_image = _compute_descriptor_loss(features, batch, _make_config(loss__average="together"), 0)
    weight = _make_config().loss.negative_weight
    assert float(same_image) == pytest.approx(0.8 * weight, abs=1e-5)
    different_cluster = _compute_descriptor_loss(
        features, batch, _make_config(loss__negatives="different-cluster"), 0
    )
    assert float(different_cluster) == 0


def test_the_total_uses_the_detector_weight() -> None:
    config = _make_config(loss__detector_weight=0.3)
    batch = _make_batch(4, 6, 64)
    targets = build_stage1_targets(
        batch, config, torch.Generator(), BatchSlice(0, 2, 2), PLAIN_BACKEND.augmentation
    )
    torch.testing.assert_close(
        targets.target,
        draw_target(to_cells(batch.target_xy), batch.target_valid, 16, config.heatmaps.sigma),
    )
    described = torch.nn.functional.normalize(torch.randn(*targets.cells.shape[:2], 16), dim=-1)
    confidence = torch.rand(4, 1, 16, 16)
    terms = stage1_loss(confidence, described, targets, config)
    error = (confidence - targets.target).square().mean()
    assert float(terms["detector"]) == pytest.approx(float(error))
    assert float(terms["total"]) == pytest.approx(float(terms["descriptor"]) + 0.3 * float(error))


def test_gradients_reach_both_heads_and_the_backbone() -> None:
    config = _make_config()
    phi = Phi(config.network)
    batch = _make_batch(4, 6, 64)
    targets = build_stage1_targets(
        batch, config, torch.Generator(), BatchSlice(0, 2, 2), PLAIN_BACKEND.augmentation
    )
    maps = phi(torch.rand(4, 3, 64, 64))
    stage1_loss(maps.confidence, phi.describe(maps.features, targets.cells), targets, config)[
        "total"
    ].backward()
    without_gradient = [
        name
        for name, parameter in phi.named_parameters()
        if parameter.grad is None or not parameter.grad.abs().sum() > 0
    ]
    assert without_gradient == []


def test_stage2_swaps_mirror_partners_in_flipped_images() -> None:
    """Train on a left dot (landmark 0) and a right dot (landmark 1), which are mirror partners.

    In flipped images, the left dot is landmark 0, too. If partners were not swapped, both channels of the
    heatmap would learn both dots.
    """
    config = _make_config(
        K=2,
        stage2__iterations=1,
        stage2__batch=8,
        stage2__cutout_fraction=0.0,
        augment__rotation=5.0,
        augment__noise=0.0,
        optimizer__lr=2e-3,
    )
    pixels = torch.zeros(4, 3, 64, 64, dtype=torch.uint8)
    pixels[:, 0, 30:35, 14:19] = 255
    pixels[:, 0, 30:35, 45:50] = 255
    xy = torch.tensor([[16.0, 32.0], [47.0, 32.0]]).expand(4, 2, 2).contiguous()
    table = LandmarkTable.from_partners(xy, torch.ones(4, 2, dtype=torch.bool), PAIRED)
    torch.manual_seed(0)
    psi = Psi(config.network, 2)
    feed = PixelFeed(pixels, torch.device("cpu"))
    settings = RegressionSettings.of_stage2(config)
    task = build_regression_task(psi, feed, table, settings, torch.Generator().manual_seed(0), seed=0)
    optimizer = torch.optim.RMSprop(psi.parameters(), lr=config.optimizer.lr)
    for batch in task.batches(0, 60):
        optimizer.zero_grad()
        task.losses(*batch)["total"].backward()
        optimizer.step()
    with torch.no_grad():
        maps = psi(pixels[:1].float() / 255)[0]
    # These are the columns of the highest cells of both landmarks, in maps of 16 x 16 cells.
    left, right = maps[0].argmax() % 16, maps[1].argmax() % 16
    assert left < 8 <= right


class _NoHeat(torch.nn.Module):
    """A network that returns heatmaps of zeros and remembers the images that it gets."""

    backend = PLAIN_BACKEND

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.images = images
        return torch.zeros(len(images), 3, 16, 16)


def test_labels_of_mirror_images_may_differ_from_those_of_partners() -> None:
    """A flipped image has the labels that were found in its mirror image, and other images have their own."""
    no_deformation = {
        "rotation": 0,
        "scale": [1, 1],
        "shift": 0,
        "noise": 0,
        "blur_fraction": 0,
        "color_fraction": 0,
    }
    same_light = {"contrast": [1, 1], "brightness": [1, 1]}
    config = _make_config(
        K=3,
        student__batch=8,
        **{f"augment__{name}": value for name, value in (no_deformation | same_light).items()},
    )
    generator = torch.Generator().manual_seed(4)
    pixels = torch.zeros(8, 3, 64, 64, dtype=torch.uint8)
    pixels[..., :32] = 100  # Flipped images are bright on the right.
    # The lowest value of an image is 10 times its row, so this value identifies the image.
    pixels += torch.arange(0, 80, 10, dtype=torch.uint8)[:, None, None, None]
    xy, mirrored_xy = torch.rand(2, 8, 3, 2, generator=generator) * 63
    present, mirrored_present = torch.rand(2, 8, 3, generator=generator) < 0.7
    present[:, 0] = mirrored_present[:, 0] = True
    table = LandmarkTable(xy, present, mirrored_xy, mirrored_present, torch.arange(8))
    psi, feed = _NoHeat(), PixelFeed(pixels, torch.device("cpu"))
    settings = RegressionSettings.of_student(config)
    task = build_regression_task(psi, feed, table, settings, generator, seed=0)
    num_flipped = 0
    for batch in task.batches(0, 4):
        loss = float(task.losses(*batch)["total"])
        per_image = []
        for image in psi.images:
            row = round(float(image.min()) * 255 / 10)
            is_flipped = bool(image[0, 0, 63] > image[0, 0, 0])
            num_flipped += is_flipped
            points, is_present = (mirrored_xy, mirrored_present) if is_flipped else (xy, present)
            errors = []
            for x, y in points[row][is_present[row]].tolist():
                shown_x = 63 - x if is_flipped else x
                center_x, center_y = (shown_x + 0.5) / 4 - 0.5, (y + 0.5) / 4 - 0.5  # in cells
                line = torch.arange(16)
                squared = (line[:, None] - center_y) ** 2 + (line - center_x) ** 2
                errors.append(float(torch.exp(-squared / (2 * config.student.sigma**2)).square().mean()))
            per_image.append(sum(errors) / len(errors))
        assert loss == pytest.approx(sum(per_image) / len(per_image), rel=1e-4)
    assert 4 < num_flipped < 28


def test_partners_give_the_labels_of_mirror_images() -> None:
    xy, present = torch.rand(4, 3, 2), torch.tensor([[True, False, True]] * 3 + [[False] * 3])
    partners = LandmarkPartners((1, 0, 2), (True, True, True))
    table = LandmarkTable.from_partners(xy, present, partners)
    for landmark, partner in enumerate((1, 0, 2)):
        assert torch.equal(table.mirrored_xy[:, landmark], xy[:, partner])
        assert torch.equal(table.mirrored_present[:, landmark], present[:, partner])
    assert table.usable.tolist() == [0, 1, 2]
    unpaired = LandmarkTable.from_partners(xy, present, replace(partners, is_paired=(True, True, False)))
    assert torch.equal(unpaired.mirrored_present[:, :2], table.mirrored_present[:, :2])
    assert not unpaired.mirrored_present[:, 2].any(), "a landmark without a partner is masked"
    assert torch.equal(unpaired.present, table.present)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The first landmark is inside the view, the second is outside, and the third was not found. The
        # heatmaps of the network are zero, so only the first landmark has an error. `expected` is the weight
        # of this error in the mean.
        ({}, 1.0),
        ({"average": "all"}, 1 / 3),
        ({"outside": "absent"}, 1 / 2),
        ({"outside": "absent", "average": "all"}, 1 / 3),
    ],
)
def test_settings_decide_whether_landmarks_outside_the_view_and_absent_landmarks_count(
    settings: dict[str, str], expected: float
) -> None:
    no_deformation = {
        "rotation": 0,
        "scale": [1, 1],
        "shift": 0,
        "noise": 0,
        "blur_fraction": 0,
        "color_fraction": 0,
    }
    changes = {f"augment__{name}": value for name, value in no_deformation.items()}
    changes |= {f"stage2__{name}": value for name, value in settings.items()}
    config = _make_config(K=3, flip__train=False, flip__test=False, **changes)
    xy = torch.tensor([[[30.0, 30.0], [-9.0, 30.0], [40.0, 40.0]]]).repeat(2, 1, 1)
    present = torch.tensor([[True, True, False]]).repeat(2, 1)
    table = LandmarkTable.from_partners(xy, present, LandmarkPartners.identity(3))
    feed = PixelFeed(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.device("cpu"))
    regression = RegressionSettings.of_stage2(config)
    task = build_regression_task(_NoHeat(), feed, table, regression, torch.Generator(), seed=0)
    loss = float(task.losses(*next(task.batches(0, 1)))["total"])
    line = torch.arange(16.0)
    squared = (line[:, None] - 7.125) ** 2 + (line - 7.125) ** 2  # Pixel 30 is at cell coordinate 7.125.
    error = float(torch.exp(-squared / (2 * config.stage2.sigma**2)).square().mean())
    assert loss == pytest.approx(expected * error, rel=1e-4)


def test_students_are_trained_without_erased_squares() -> None:
    config = _make_config(student__batch=5, student__sigma=1.25, images__size=128)
    student, stage2 = RegressionSettings.of_student(config), RegressionSettings.of_stage2(config)
    assert (student.batch, student.batch_setting, student.sigma) == (5, "student.batch", 1.25)
    assert (stage2.batch, stage2.batch_setting, stage2.sigma) == (4, "stage2.batch", config.stage2.sigma)
    assert (student.cutout, student.cutout_fraction) == (0, 0)
    assert (stage2.cutout, stage2.cutout_fraction) == (40, 0.5)
    assert student.augment == stage2.augment == config.augment
    assert student.size == stage2.size == 128
