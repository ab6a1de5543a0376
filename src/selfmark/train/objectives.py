"""Define the training tasks: Stage 1 and Stage 2 (Sec. 3.4 and 3.6 of the paper), and the student."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from selfmark.config import STRIDE, Augment, Config
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.images.augment import (
    erase,
    move_points,
    points_inside,
    prepend_flip,
    random_affine,
    random_cutout,
)
from selfmark.images.feed import PixelFeed, to_device
from selfmark.model import losses
from selfmark.model.backend import AugmentOps
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.heatmaps import draw_gaussians, prepare_gaussians, to_cells
from selfmark.model.network import Phi, Psi
from selfmark.points import Keypoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.train.batch_plan import (
    BatchSlice,
    IntArray,
    NearbyFrames,
    PlannedPairs,
    plan_images,
    plan_pairs,
)
from selfmark.train.engine import Batch, Losses, TrainingTask
from selfmark.train.pairs import PairBatch, PairSettings, PairSource, build_pair_batch
from selfmark.train.views import make_views


def warmup_pair_settings(config: Config) -> PairSettings:
    """Return the settings of the warm-up (Sec. 3.5): both views of a pair are deformations of one image.

    Views are not flipped, because mirrored labels are not known yet. There is one exception: if every
    landmark is its own mirror partner, flipping is just another deformation.
    """
    is_flipped = config.flip.train and config.flip.partner == "itself"
    return PairSettings(same_image_fraction=1.0, flip=is_flipped, flip_together=not is_flipped)


def round_pair_settings(config: Config, has_mirrored_labels: bool) -> PairSettings:
    """Return the settings of a round: pairs of two images, or of two deformations of one image.

    Views are flipped if mirrored labels exist (Sec. 3.7). In the mode "equivariance", all pairs are two
    deformations of one image, and both views of a pair are flipped or neither.
    """
    is_equivariance = config.correspondence.mode == "equivariance"
    return PairSettings(
        same_image_fraction=1.0 if is_equivariance else config.rounds.same_image_fraction,
        flip=config.flip.train and (has_mirrored_labels or is_equivariance),
        flip_together=is_equivariance,
    )


# --- Stage 1 -------------------------------------------------------------------------------------------


def build_stage1_task(
    phi: Phi,
    feed: PixelFeed,
    source: PairSource,
    config: Config,
    generator: torch.Generator,
    seed: int,
    group: ProcessGroup = SINGLE_PROCESS,
) -> TrainingTask:
    """Return the task that minimizes L = L_f + lambda L_d (Eq. 2 and 3, lambda in Sec. 4.2) over pairs.

    Args:
        phi: the network.
        feed: the training images.
        source: points, labels and settings of the pairs.
        config: settings.
        generator: source of the random numbers of augmentation and negatives.
        seed: decides which images are paired.
        group: the processes that share a batch.
    """
    part = BatchSlice.for_process(config.runtime.batch, group, "runtime.batch")
    nearby: NearbyFrames | None = None
    if source.propagated is not None:
        neighbor, video = source.propagated.neighbor.cpu().numpy(), source.propagated.video.cpu().numpy()
        nearby = NearbyFrames(neighbor, video, config.temporal.fraction)
    plan = plan_pairs(
        source.table.usable.cpu().numpy(),
        part.total,
        source.settings.same_image_fraction,
        nearby,
        seed,
    )
    augmentation, execution = phi.backend.augmentation, phi.backend.execution
    describe = phi.describe if config.loss.descriptors == "unit" else phi.describe_raw

    def compute_losses(pixels: Tensor, planned: Tensor) -> Losses:
        batch = build_pair_batch(pixels, planned, source, config, generator, part, augmentation)
        targets, maps = execution.parallel(
            lambda: build_stage1_targets(batch, config, generator, part, augmentation, group),
            lambda: phi(batch.images),
        )
        return stage1_loss(maps.confidence, describe(maps.features, targets.cells), targets, config)

    def batches(start: int, stop: int) -> Generator[Batch]:
        def planned(iteration: int) -> PlannedPairs:
            return plan(iteration).take(part)

        iterations = range(start, stop)
        images = feed.batches(planned(iteration).images for iteration in iterations)
        for iteration, pixels in zip(iterations, images, strict=True):
            pairs = planned(iteration)
            yield pixels, to_device(np.stack([pairs.first, pairs.second, pairs.slot]), feed.device)

    return TrainingTask(compute_losses, batches)


@dataclass(frozen=True)
class Stage1Targets:
    """Targets of a batch of Stage 1: 2B views with P keypoints and R random cells each.

    The weights are those of `losses.pair_weights`. R is 0 unless `loss.negatives` is "same-image".

    target:   [2B, 1, h, w] target heatmap of the detector head
    cells:    [2B, P + R, 2] cells at which descriptors are sampled: keypoints, then random cells
    positive: [B, P, P] weights of pairs of keypoints across the two views
    negative: weights of negative pairs: [2B, P, P + R] within each view if `loss.negatives` is "same-image",
              otherwise [B, P, P] across the two views
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
    augmentation: AugmentOps,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Stage1Targets:
    """Build the targets; they do not depend on the network, so they can be built while it runs.

    Args:
        batch: this process's pairs.
        config: settings.
        generator: source of the random cells.
        part: position of these pairs in the whole batch.
        augmentation: draws the target heatmaps.
        group: the processes that share the batch.
    """
    settings, cells = config.loss, to_cells(batch.xy)
    target_cells, sigma = prepare_gaussians(to_cells(batch.target_xy), config.heatmaps.sigma)
    target = augmentation.draw_targets(target_cells, batch.target_valid, config.map_size, sigma)
    label_a, label_b = batch.label.chunk(2)
    valid_a, valid_b = batch.valid.chunk(2)
    positive = losses.positive_pairs(label_a, label_b, valid_a, valid_b)
    if settings.negatives == "same-image":
        shape = (2 * part.total, settings.random_negatives, 2)
        drawn = torch.rand(shape, generator=generator, device=generator.device)
        random_cells = part.take(drawn) * config.map_size - 0.5
        negative = losses.negatives_same_image(cells, batch.valid, random_cells, settings.negative_distance)
        cells = torch.cat([cells, random_cells], dim=1)
    else:
        negative = losses.negatives_different_cluster(label_a, label_b, valid_a, valid_b)
    return Stage1Targets(target, cells, *losses.pair_weights(positive, negative, settings, group))


def stage1_loss(confidence: Tensor, descriptors: Tensor, targets: Stage1Targets, config: Config) -> Losses:
    """Compute the loss terms L ("total"), L_f ("descriptor", Eq. 3) and L_d ("detector", Eq. 2).

    Args:
        confidence: [2B, 1, h, w] confidence maps.
        descriptors: [2B, P + R, d] at `targets.cells`; unit vectors if `loss.descriptors` is "unit".
        targets: targets of the batch.
        config: settings.
    """
    at_keypoints = descriptors[:, : targets.positive.shape[1]]
    are_units = config.loss.descriptors == "unit"
    squared_distances = losses.squared_distances_of_units if are_units else losses.squared_distances
    across_views = squared_distances(*at_keypoints.chunk(2))
    same_image = config.loss.negatives == "same-image"
    negative_squared = squared_distances(at_keypoints, descriptors) if same_image else across_views
    descriptor_loss = losses.contrastive_loss(
        across_views, targets.positive, negative_squared, targets.negative, config.loss
    )
    detector = losses.detector_loss(confidence, targets.target)
    total = descriptor_loss + config.loss.detector_weight * detector
    return {"total": total, "descriptor": descriptor_loss, "detector": detector}


# --- heatmap regression ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LandmarkTable:
    """Labels of heatmap regression: the landmarks of N images and of their mirror images.

    xy:               [N, K, 2] float32, network pixels
    present:          [N, K] bool, the detected set D_j of each image (Sec. 3.6)
    mirrored_xy:      [N, K, 2] float32, landmarks of the mirror image, mapped back to the image; network
                      pixels
    mirrored_present: [N, K] bool, landmarks present in the mirror image
    usable:           [U] int64, images to train on
    """

    xy: Tensor
    present: Tensor
    mirrored_xy: Tensor
    mirrored_present: Tensor
    usable: Tensor

    @classmethod
    def from_partners(cls, xy: Tensor, present: Tensor, partners: LandmarkPartners) -> LandmarkTable:
        """Build a table in which landmark k of a mirror image is the mirror partner of k in the image.

        Landmarks without a partner are not present in mirror images.

        Args:
            xy: [N, K, 2].
            present: [N, K].
            partners: mirror partners of the K landmarks.
        """
        mirror = torch.tensor(partners.mirror, device=xy.device)
        is_paired = torch.tensor(partners.is_paired, device=xy.device)
        return cls.from_positions(xy, present, xy[:, mirror], present[:, mirror] & is_paired)

    @classmethod
    def from_positions(
        cls, xy: Tensor, present: Tensor, mirrored_xy: Tensor, mirrored_present: Tensor
    ) -> LandmarkTable:
        """Build a table; images with a landmark in the image or in its mirror image are usable."""
        usable = torch.nonzero((present | mirrored_present).any(dim=1)).flatten()
        return cls(xy, present, mirrored_xy, mirrored_present, usable)

    def select(self, chosen: Tensor) -> LandmarkTable:
        """Keep the landmarks with these indices [L]; images without any of them are not usable."""
        return LandmarkTable.from_positions(
            self.xy[:, chosen],
            self.present[:, chosen],
            self.mirrored_xy[:, chosen],
            self.mirrored_present[:, chosen],
        )

    def hold_out(self, count: int, seed: int) -> tuple[LandmarkTable, IntArray]:
        """Choose images at random that are no longer trained on.

        Args:
            count: number of images to hold out.
            seed: decides which images are held out.

        Returns:
            A table in which these images are not usable, and their row numbers in increasing order.
        """
        order = np.random.default_rng(seed).permutation(len(self.usable))
        held_out, kept = (
            self.usable[torch.from_numpy(np.sort(rows)).to(self.usable.device)]
            for rows in (order[:count], order[count:])
        )
        return replace(self, usable=kept), held_out.cpu().numpy()


def tabulate_landmarks(
    points: Keypoints, label: Tensor, num_images: int, landmarks: int
) -> tuple[Tensor, Tensor]:
    """Arrange labeled points as positions [N, K, 2] and a mask [N, K] of the landmarks present.

    Args:
        points: keypoints of N images.
        label: [P] int64, landmark of each point; -1 for none. A landmark occurs at most once per image.
        num_images: number of images N.
        landmarks: number of landmarks K.
    """
    is_labeled = label >= 0
    image, landmark_index = points.image_index[is_labeled], label[is_labeled]
    xy = torch.zeros(num_images, landmarks, 2, device=image.device)
    present = torch.zeros(num_images, landmarks, dtype=torch.bool, device=image.device)
    xy[image, landmark_index] = points.xy[is_labeled]
    present[image, landmark_index] = True
    return xy, present


@dataclass(frozen=True)
class RegressionSettings:
    """Settings of heatmap regression.

    batch:           images per iteration
    batch_setting:   name of the setting that defines `batch`, for error messages
    sigma:           standard deviation of the target Gaussians, in cells
    flip:            whether each image is mirrored with probability 0.5
    cutout:          side of the erased square, in pixels
    cutout_fraction: fraction of images with an erased square
    cutout_value:    brightness of the square, 0..1
    average:         "found" averages the loss over the landmarks found in an image (Eq. 4), "all" over all
                     landmarks
    outside:         what happens to landmarks that augmentation moves out of the image: "ignored" omits them
                     from the loss, "absent" gives them an empty target
    augment:         random changes of the images
    size:            side of the images, in pixels
    """

    batch: int
    batch_setting: str
    sigma: float
    flip: bool
    cutout: int
    cutout_fraction: float
    cutout_value: float
    average: Literal["found", "all"]
    outside: Literal["ignored", "absent"]
    augment: Augment
    size: int

    @classmethod
    def of_stage2(cls, config: Config) -> RegressionSettings:
        """Return the settings of Stage 2 (Sec. 3.6)."""
        stage2, size = config.stage2, config.images.size
        return cls(
            batch=stage2.batch,
            batch_setting="stage2.batch",
            sigma=stage2.sigma,
            flip=config.flip.train,
            cutout=round(stage2.cutout * size / 256),  # the setting is for images of 256 pixels
            cutout_fraction=stage2.cutout_fraction,
            cutout_value=0.5 if stage2.cutout_color == "gray" else 0.0,
            average=stage2.average,
            outside=stage2.outside,
            augment=config.augment,
            size=size,
        )

    @classmethod
    def of_student(cls, config: Config) -> RegressionSettings:
        """Return the settings of the student, a detector on pretrained features."""
        student = config.student
        return cls(
            batch=student.batch,
            batch_setting="student.batch",
            sigma=student.sigma,
            flip=config.flip.train,
            cutout=0,
            cutout_fraction=0.0,
            cutout_value=0.5,
            average="found",
            outside="ignored",
            augment=config.augment,
            size=config.images.size,
        )


def build_regression_task(
    psi: Psi | FeaturePsi,
    feed: PixelFeed,
    table: LandmarkTable,
    settings: RegressionSettings,
    generator: torch.Generator,
    seed: int,
    group: ProcessGroup = SINGLE_PROCESS,
) -> TrainingTask:
    """Return the task that minimizes the masked heatmap regression loss (Sec. 3.6, Eq. 4).

    Args:
        psi: the landmark detector.
        feed: the training images.
        table: labels.
        settings: batch, targets and augmentation.
        generator: source of the random numbers of the augmentation.
        seed: decides which images are in a batch.
        group: the processes that share a batch.
    """
    part = BatchSlice.for_process(settings.batch, group, settings.batch_setting)
    plan = plan_images(table.usable.cpu().numpy(), part.total, seed)
    return TrainingTask(
        _build_regression_losses(psi, table, settings, generator, part, group),
        lambda start, stop: _iterate_image_batches(feed, plan, part, range(start, stop)),
    )


def _iterate_image_batches(
    feed: PixelFeed, plan: Callable[[int], IntArray], part: BatchSlice, iterations: range
) -> Generator[Batch]:
    """Yield the images [B, 3, S, S] of this process and their indices [B], iteration by iteration."""

    def planned(iteration: int) -> IntArray:
        return plan(iteration)[part.start : part.stop]

    images = feed.batches(planned(iteration) for iteration in iterations)
    for iteration, pixels in zip(iterations, images, strict=True):
        yield pixels, to_device(planned(iteration), feed.device)


def _build_regression_losses(
    psi: Psi | FeaturePsi,
    table: LandmarkTable,
    settings: RegressionSettings,
    generator: torch.Generator,
    part: BatchSlice,
    group: ProcessGroup,
) -> Callable[[Tensor, Tensor], Losses]:
    """Return a function that augments images [B, 3, S, S] uint8 with indices [B] and computes the loss."""
    size, total, device = settings.size, part.total, generator.device
    flip_probability = 0.5 if settings.flip else 0.0

    def compute_losses(pixels: Tensor, index: Tensor) -> Losses:
        flip = part.take(torch.rand(total, generator=generator, device=device) < flip_probability)
        xy = torch.where(flip[:, None, None], table.mirrored_xy[index], table.xy[index])
        present = torch.where(flip[:, None], table.mirrored_present[index], table.present[index])
        matrix = prepend_flip(part.take(random_affine(total, size, settings.augment, generator)), flip, size)
        images = make_views(pixels, matrix, settings.augment, generator, part, psi.backend.augmentation)
        square = random_cutout(total, size, settings.cutout, settings.cutout_fraction, generator)
        images = erase(images, part.take(square), settings.cutout_value)
        moved = move_points(xy, matrix)
        is_inside = points_inside(moved, size)

        def draw_targets() -> Tensor:
            maps = draw_gaussians(to_cells(moved), size // STRIDE, settings.sigma)
            return maps if settings.outside == "ignored" else maps * is_inside[..., None, None]

        target, maps = psi.backend.execution.parallel(draw_targets, lambda: psi(images))
        present = present & is_inside if settings.outside == "ignored" else present
        return {"total": losses.masked_regression_loss(maps, target, present, settings.average, group)}

    return compute_losses
