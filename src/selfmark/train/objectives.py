"""What is minimized in each phase: the warm-up and the rounds share one loss, Stage 2 has its own."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.images.augment import (
    fill_gray,
    move_points,
    points_inside,
    random_affine,
    random_cutout,
    with_flip,
)
from selfmark.images.feed import PixelFeed, to_device
from selfmark.images.flow import CarriedPoints
from selfmark.model import losses
from selfmark.model.heatmaps import draw_gaussians, to_cells
from selfmark.model.network import Phi, Psi
from selfmark.model.operations import Operations
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.train.batch_plan import BatchSlice, IntArray, PlannedPairs, plan_images, plan_pairs
from selfmark.train.engine import Batch, Losses, TrainingTask
from selfmark.train.pairs import PairBatch, PairSettings, build_pair_batch
from selfmark.train.point_table import PointTable
from selfmark.train.views import make_views


def warmup_pairs(config: Config) -> PairSettings:
    """Bootstrapping (Sec. 3.5): an image and its synthetic deformation, no flips while labels are unknown.

    Where every landmark is its own mirror partner, a mirrored view is one more deformation.
    """
    itself = config.flip.train and config.flip.partner == "itself"
    return PairSettings(same_image=1.0, flip=itself, flip_together=not itself)


def round_pairs(config: Config, mirrored_labels: bool) -> PairSettings:
    """Self-training: two images with the same clusters, or one image twice; flipped once labels exist."""
    equivariance = config.correspondence.mode == "equivariance"
    return PairSettings(
        same_image=1.0 if equivariance else config.rounds.same_image_fraction,
        flip=config.flip.train and (mirrored_labels or equivariance),
        flip_together=equivariance,
    )


# --- Stage 1 -------------------------------------------------------------------------------------------


def build_stage1_task(
    phi: Phi,
    feed: PixelFeed,
    table: PointTable,
    carried: CarriedPoints | None,
    recipe: PairSettings,
    config: Config,
    generator: torch.Generator,
    seed: int,
    group: ProcessGroup = SINGLE_PROCESS,
) -> TrainingTask:
    """L = L_f + lambda L_d (Sec. 3.4) on planned pairs.

    `seed` decides which pairs, `generator` how they look.
    """
    part = BatchSlice.of_group(config.runtime.batch, group, "runtime.batch")
    neighbor = None if carried is None else carried.neighbor.cpu().numpy()
    plan = plan_pairs(
        table.usable.cpu().numpy(), part.whole, recipe.same_image, neighbor, config.temporal.fraction, seed
    )
    operations = phi.operations

    def terms(pixels: Tensor, planned: Tensor) -> Losses:
        batch = build_pair_batch(pixels, planned, table, carried, recipe, config, generator, part, operations)
        wanted, maps = operations.both(
            lambda: build_stage1_targets(batch, config, generator, part, operations, group),
            lambda: phi(batch.images),
        )
        return stage1_loss(maps.confidence, phi.describe(maps.features, wanted.cells), wanted, config)

    def batches(start: int, stop: int) -> Generator[Batch]:
        def planned(iteration: int) -> PlannedPairs:
            return plan(iteration).of(part)

        iterations = range(start, stop)
        images = feed.batches(planned(iteration).images for iteration in iterations)
        for iteration, pixels in zip(iterations, images, strict=True):
            pairs = planned(iteration)
            yield pixels, to_device(np.stack([pairs.one, pairs.other, pairs.slot]), feed.device)

    return TrainingTask(terms, batches)


@dataclass(frozen=True)
class Stage1Targets:
    """What a batch asks of the network. Weights are those of `losses.weights`.

    target:   [2B, 1, h, w] where the detector should fire
    cells:    [2B, P + R, 2] where descriptors are read: keypoints, then random places
    positive: [B, P, P] weights of the pairs across the two views
    negative: [2B, P, P + R] weights of the pairs within each view; or [B, P, P], across the two views
    """

    target: Tensor
    cells: Tensor
    positive: Tensor
    negative: Tensor


def build_stage1_targets(
    batch: PairBatch,
    config: Config,
    generator: torch.Generator,
    part: BatchSlice,
    operations: Operations,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Stage1Targets:
    """What follows from the batch alone: has no gradient and can run beside the network."""
    settings, cells = config.loss, to_cells(batch.xy)
    target = operations.targets(
        to_cells(batch.target_xy), batch.target_valid, config.map_size, config.heatmaps.sigma
    )
    label_a, label_b = batch.label.chunk(2)
    valid_a, valid_b = batch.valid.chunk(2)
    positive = losses.positive_pairs(label_a, label_b, valid_a, valid_b)
    if settings.negatives == "same-image":
        shape = (2 * part.whole, settings.random_negatives, 2)
        drawn = torch.rand(shape, generator=generator, device=generator.device)
        places = part.of(drawn) * config.map_size - 0.5
        negative = losses.negatives_same_image(cells, batch.valid, places, settings.negative_distance)
        cells = torch.cat([cells, places], dim=1)
    else:
        negative = losses.negatives_different_cluster(label_a, label_b, valid_a, valid_b)
    return Stage1Targets(target, cells, *losses.pair_weights(positive, negative, settings, group))


def stage1_loss(confidence: Tensor, descriptors: Tensor, wanted: Stage1Targets, config: Config) -> Losses:
    """The terms of L, from descriptors [2B, P + R, d] at `wanted.cells`."""
    points = descriptors[:, : wanted.positive.shape[1]]
    between = losses.squared_distances(*points.chunk(2))
    same_image = config.loss.negatives == "same-image"
    within = losses.squared_distances(points, descriptors) if same_image else between
    descriptor = losses.contrastive_loss(between, wanted.positive, within, wanted.negative, config.loss)
    detector = losses.detector_loss(confidence, wanted.target)
    total = descriptor + config.loss.detector_weight * detector
    return {"total": total, "descriptor": descriptor, "detector": detector}


# --- Stage 2 -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LandmarkTable:
    """Stage 2's pseudo ground truth.

    xy:      [N, K, 2] float32, network pixels; present [N, K] bool, the detected set D_j of each image
    usable:  [U] int64, images with at least one landmark
    mirror:  [K] int64, the landmark each becomes in the mirror image
    """

    xy: Tensor
    present: Tensor
    usable: Tensor
    mirror: Tensor


def build_stage2_task(
    psi: Psi,
    feed: PixelFeed,
    table: LandmarkTable,
    config: Config,
    generator: torch.Generator,
    seed: int,
    group: ProcessGroup = SINGLE_PROCESS,
) -> TrainingTask:
    """The masked heatmap regression error (Sec. 3.6) on planned images."""
    part = BatchSlice.of_group(config.stage2.batch, group, "stage2.batch")
    plan = plan_images(table.usable.cpu().numpy(), part.whole, seed)
    return TrainingTask(
        _stage2_losses(psi, table, config, generator, part, group),
        lambda start, stop: _image_batches(feed, plan, part, range(start, stop)),
    )


def _image_batches(
    feed: PixelFeed, plan: Callable[[int], IntArray], part: BatchSlice, iterations: range
) -> Generator[Batch]:
    def planned(iteration: int) -> IntArray:
        return plan(iteration)[part.start : part.stop]

    images = feed.batches(planned(iteration) for iteration in iterations)
    for iteration, pixels in zip(iterations, images, strict=True):
        yield pixels, to_device(planned(iteration), feed.device)


def _stage2_losses(
    psi: Psi,
    table: LandmarkTable,
    config: Config,
    generator: torch.Generator,
    part: BatchSlice,
    group: ProcessGroup,
) -> Callable[[Tensor, Tensor], Losses]:
    size, whole, device = config.images.size, part.whole, generator.device
    cutout = round(config.stage2.cutout * size / 256)

    def terms(pixels: Tensor, index: Tensor) -> Losses:
        xy, present = table.xy[index], table.present[index]
        flip = part.of(torch.rand(whole, generator=generator, device=device) < 0.5 * config.flip.train)
        # In a flipped image, channel k holds the point that was its partner's.
        xy = torch.where(flip[:, None, None], xy[:, table.mirror], xy)
        present = torch.where(flip[:, None], present[:, table.mirror], present)
        matrix = with_flip(part.of(random_affine(whole, size, config.augment, generator)), flip, size)
        images = make_views(pixels, matrix, config.augment, generator, part, psi.operations)
        square = random_cutout(whole, size, cutout, config.stage2.cutout_fraction, generator)
        images = fill_gray(images, part.of(square))
        moved = move_points(xy, matrix)
        target, maps = psi.operations.both(
            lambda: draw_gaussians(to_cells(moved), config.map_size, config.stage2.sigma), lambda: psi(images)
        )
        present = present & points_inside(moved, size)
        return {"total": losses.masked_regression_loss(maps, target, present, group)}

    return terms
