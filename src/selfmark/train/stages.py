"""What is minimised in each phase: the warm-up and the rounds share one loss, Stage 2 has its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.images.augment import cut_out, inside, move_points, photometric, random_affine, warp, with_flip
from selfmark.images.flow import CarriedPoints
from selfmark.model import losses
from selfmark.model.heatmaps import draw, draw_together, sample_descriptors, to_cells
from selfmark.model.network import Phi, Psi
from selfmark.train.engine import Losses, autocast
from selfmark.train.feed import PixelFeed
from selfmark.train.pairs import PairBatch, PairRecipe, draw_pairs
from selfmark.train.table import PointTable


def warmup_recipe() -> PairRecipe:
    """Bootstrapping (Sec. 3.5): an image and its synthetic deformation, no flips while labels are unknown."""
    return PairRecipe(same_image=1.0, flip=False, flip_together=True)


def round_recipe(config: Config, mirrored_labels: bool) -> PairRecipe:
    """Self-training: two images with the same clusters, or one image twice; flipped once labels exist."""
    equivariance = config.correspondence.mode == "equivariance"
    return PairRecipe(
        same_image=1.0 if equivariance else config.rounds.same_image_share,
        flip=config.flip.train and (mirrored_labels or equivariance),
        flip_together=equivariance,
    )


def stage1_losses(
    phi: Phi,
    feed: PixelFeed,
    table: PointTable,
    carried: CarriedPoints | None,
    recipe: PairRecipe,
    config: Config,
    generator: torch.Generator,
) -> Callable[[], Losses]:
    """A function that draws a batch of pairs and returns L = L_f + lambda L_d and its terms (Sec. 3.4)."""

    def step() -> Losses:
        batch = draw_pairs(feed, table, carried, recipe, config, generator)
        with autocast(feed.device, config.runtime):
            maps = phi(batch.images)
        target = draw_together(
            to_cells(batch.target_xy), batch.target_valid, config.map_size, config.heatmaps.sigma
        )
        detector = losses.detector(maps.confidence, target)
        descriptor = descriptor_loss(maps.features, batch, config, generator)
        return {
            "total": descriptor + config.loss.detector_weight * detector,
            "descriptor": descriptor,
            "detector": detector,
        }

    return step


def descriptor_loss(features: Tensor, batch: PairBatch, config: Config, generator: torch.Generator) -> Tensor:
    """L_f over a batch: positives across the two views, negatives as the settings choose them."""
    settings = config.loss
    cells = to_cells(batch.xy)
    count = len(cells)
    places = torch.rand(count, settings.random_negatives, 2, generator=generator, device=generator.device)
    places = places * config.map_size - 0.5
    both = sample_descriptors(features, torch.cat([cells, places], dim=1))
    points, elsewhere = both[:, : cells.shape[1]], both[:, cells.shape[1] :]
    a, b = points.chunk(2)
    label_a, label_b = batch.label.chunk(2)
    valid_a, valid_b = batch.valid.chunk(2)
    if settings.negatives == "same-image":
        negatives = [
            losses.negatives_same_image(
                points, cells, batch.valid, elsewhere, places, settings.negative_distance
            ),
            _keypoint_negatives(points, cells, batch.valid, settings.negative_distance),
        ]
    else:
        negatives = [losses.negatives_different_cluster(a, b, label_a, label_b, valid_a, valid_b)]
    return losses.contrastive(losses.positives(a, b, label_a, label_b, valid_a, valid_b), negatives, settings)


def _keypoint_negatives(points: Tensor, cells: Tensor, valid: Tensor, least_distance: float) -> losses.Pairs:
    pairs = losses.negatives_same_image(points, cells, valid, points, cells, least_distance)
    once = torch.ones(pairs.mask.shape[1:], dtype=torch.bool, device=cells.device).triu(1)
    return losses.Pairs(pairs.distance, pairs.mask & valid[:, None, :] & once)


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


def stage2_losses(
    psi: Psi, feed: PixelFeed, table: LandmarkTable, config: Config, generator: torch.Generator
) -> Callable[[], Losses]:
    """A function that draws a batch of images and returns the masked heatmap regression error (Sec. 3.6)."""
    size, count = config.images.size, config.stage2.batch
    cutout = round(config.stage2.cutout * size / 256)

    def step() -> Losses:
        chosen = torch.randint(len(table.usable), (count,), generator=generator, device=generator.device)
        index = table.usable[chosen]
        xy, present = table.xy[index], table.present[index]
        flip = torch.rand(count, generator=generator, device=generator.device) < 0.5 * config.flip.train
        # In a flipped image, channel k holds the point that was its partner's.
        xy = torch.where(flip[:, None, None], xy[:, table.mirror], xy)
        present = torch.where(flip[:, None], present[:, table.mirror], present)
        matrix = with_flip(random_affine(count, size, config.augment, generator), flip, size)
        images = photometric(warp(feed.gather(index), matrix), config.augment, generator)
        images = cut_out(images, cutout, config.stage2.cutout_share, generator)
        moved = move_points(xy, matrix)
        with autocast(feed.device, config.runtime):
            maps = psi(images)
        target = draw(to_cells(moved), config.map_size, config.heatmaps.sigma)
        return {"total": losses.masked_regression(maps, target, present & inside(moved, size))}

    return step
