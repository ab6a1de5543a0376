"""Train a method of another paper, from images to a detector, in one phase that can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from selfmark.config import Config
from selfmark.config.schedule import stage_iterations
from selfmark.correspondence.mirror import (
    LandmarkPartners,
    count_nearest_in_mirror,
    find_mirror_partners,
)
from selfmark.detector import Detector
from selfmark.images.feed import PixelFeed
from selfmark.images.store import ImageStore
from selfmark.methods.contract import RandomChanges, TrainedMethod
from selfmark.methods.method_registry import build_method
from selfmark.model.heatmaps import heat_centroids, sample_descriptors, to_pixels
from selfmark.model.network import prepare_network
from selfmark.model.soft_argmax import SoftArgmaxPsi
from selfmark.pipeline_steps import (
    build_card,
    create_generator,
    derive_seed,
    discard_if_unusable,
    keep_edits,
    load_training_images,
    report_out_of_memory,
    seed_weights,
    train_phase,
)
from selfmark.points import Keypoints, LabeledPoints
from selfmark.run.folder import Run
from selfmark.run.processes import ProcessGroup
from selfmark.train.batch_plan import BatchSlice, IntArray, iteration_rng, plan_images
from selfmark.train.checkpoints import load_checkpoint
from selfmark.train.engine import Batch, Losses, Phase, TrainingTask, build_method_state

_CHECKPOINT = "method"


def train_method(run: Run, device: torch.device, is_new: bool) -> tuple[Detector, ImageStore]:
    """Run the method of another paper from the images to a detector.

    Args:
        run: the run folder, locked.
        device: device to compute on.
        is_new: whether the run was just created. The folder of a new run is deleted if its images are
            unusable.
    """
    config = run.config
    stages = stage_iterations(config)
    run.log("plan", rounds=0, stage1=0, stage2=config.methods.iterations, stages=stages)
    with discard_if_unusable(run, is_new):
        store = load_training_images(run)
    feed = PixelFeed(store.pixels, device, config.runtime.device_fraction)
    psi = _train_network(run, feed, store.video)
    landmarks, partners = _locate_landmarks(run, psi, feed)
    run.load_or_compute_labels("landmarks", device, lambda: landmarks)
    card = replace(
        build_card(run, partners, len(store)),
        architecture=psi.architecture,
        softmax=psi.softmax,
        refine="centroid",
        flip_test=False,
    )
    card.provenance.update(method=config.method)
    return Detector(psi, keep_edits(run, psi, card), device, config.runtime), store


def _train_network(run: Run, feed: PixelFeed, video: IntArray) -> SoftArgmaxPsi:
    """Train from the last checkpoint, if there is one, to the last iteration; return the landmark network."""
    config = run.config
    with seed_weights(config, config.method):
        network = build_method(config)
    network.to(feed.device)
    prepare_network(network.psi, feed.device, config.runtime)
    generator = create_generator(config, config.method, feed.device)
    state = build_method_state(network, network.psi, network.lr, generator, run.group)
    run.restore_checkpoint(_CHECKPOINT, partial(load_checkpoint, state))
    phase = Phase("method", 0, 0, config.methods.iterations, ())
    if state.iteration < phase.stop:
        task = build_task(config, run.group, network, feed, video, generator)
        train_phase(run, _CHECKPOINT, state, phase, task, ("methods.batch", config.methods.batch))
    with report_out_of_memory(run, "runtime.predict_batch", config.runtime.predict_batch):
        network.choose_landmarks(feed, create_generator(config, f"{config.method} landmarks", feed.device))
    return network.psi


def build_task(
    config: Config,
    group: ProcessGroup,
    network: TrainedMethod,
    feed: PixelFeed,
    video: IntArray,
    generator: torch.Generator,
) -> TrainingTask:
    """Return the task that minimizes the losses of a method.

    Args:
        config: settings.
        group: the processes that share a batch.
        network: the networks of the method.
        feed: the training images.
        video: [N] number of the video of each image, -1 for still images.
        generator: source of the random numbers of warps and colors.
    """
    part = BatchSlice.for_process(config.methods.batch, group, "methods.batch")
    changes = RandomChanges(config, part, generator)
    seed = derive_seed(config, f"{config.method} images")
    plan = plan_images(np.arange(len(feed)), part.total, seed)
    find_others = _plan_frame_pairs(video, seed) if network.uses_frame_pairs else None

    def batches(start: int, stop: int) -> Generator[Batch]:
        iterations = range(start, stop)
        images = feed.batches(plan(iteration)[part.start : part.stop] for iteration in iterations)
        if find_others is None:
            yield from ((pixels,) for pixels in images)
            return
        others = feed.batches(
            find_others(plan(iteration), iteration)[part.start : part.stop] for iteration in iterations
        )
        yield from zip(images, others, strict=True)

    def losses(pixels: Tensor, other_pixels: Tensor | None = None) -> Losses:
        images = pixels.float() / 255
        others = images if other_pixels is None else other_pixels.float() / 255
        return network.compute_losses(images, others, changes)

    return TrainingTask(losses, batches)


def _plan_frame_pairs(video: IntArray, seed: int) -> Callable[[IntArray, int], IntArray]:
    """Return a function that, for the images of an iteration, chooses random frames of the same videos.

    The function takes the rows of the images and the number of the iteration. It pairs still images with
    themselves.

    Args:
        video: [N] number of the video of each image, -1 for still images.
        seed: decides which frames are chosen.
    """
    frames = {number: np.flatnonzero(video == number) for number in np.unique(video[video >= 0])}

    def find_other(row: int, draw: float) -> int:
        if video[row] < 0:
            return row
        candidates = frames[video[row]]
        return int(candidates[int(draw * len(candidates))])

    def find_others(rows: IntArray, iteration: int) -> IntArray:
        draws = iteration_rng(seed + 1, iteration).random(len(rows))
        return np.array([find_other(*pair) for pair in zip(rows, draws, strict=True)], dtype=np.int64)

    return find_others


@torch.no_grad()
def _locate_landmarks(
    run: Run, psi: SoftArgmaxPsi, feed: PixelFeed
) -> tuple[LabeledPoints, LandmarkPartners]:
    """Find the landmarks of the training images and the mirror partners of the landmarks.

    The centroid of a landmark is the normalized mean of its descriptors in all images.
    """
    config = run.config
    batch, K = config.runtime.predict_batch, config.K
    psi.eval()

    def locate(rows: slice) -> list[Tensor]:
        passes = []
        for pixels in feed.sequential_batches(batch, rows):
            images = pixels.to(feed.device).float() / 255
            features, maps = psi.compute_features_and_heatmaps(images)
            peaks = heat_centroids(maps)
            mirrored = heat_centroids(psi(images.flip(-1)).flip(-1))
            descriptor_sum = sample_descriptors(features, peaks.cells).sum(0, keepdim=True)
            passes.append((to_pixels(peaks.cells), to_pixels(mirrored.cells), peaks.score, descriptor_sum))
        return [torch.cat(column) for column in zip(*passes, strict=True)]

    with report_out_of_memory(run, "runtime.predict_batch", batch):
        # There is one sum of descriptors per pass, so that the rounding of the total does not depend on the
        # number of processes.
        located, mirrored_located, score, sums = run.group.compute_shared(len(feed), batch, locate)
    table = count_nearest_in_mirror(located.cpu().numpy(), mirrored_located.cpu().numpy())
    partners = find_mirror_partners(table)
    label = torch.arange(K, device=feed.device).repeat(len(located))
    index = torch.arange(len(located), device=feed.device).repeat_interleave(K)
    points = Keypoints(located.reshape(-1, 2), index, score.flatten())
    mirror = torch.tensor(partners.mirror, device=feed.device)
    mirror[list(partners.unpaired)] = -1
    centroids = F.normalize(sums.sum(0), dim=-1)
    return LabeledPoints(points, label, mirror[label], K, centroids), partners
