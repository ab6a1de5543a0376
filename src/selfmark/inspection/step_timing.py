"""Measure how long training steps and network passes take on this machine, with the networks of a run.

The steps are real training steps on a few of the images. Only the labels are random, because the duration of
a step does not depend on the labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from selfmark.config import Config
from selfmark.config.schedule import stage_iterations
from selfmark.correspondence.mirror import LandmarkPartners
from selfmark.features.encoder import Encoder
from selfmark.features.loading import load_encoder
from selfmark.images.feed import PixelFeed
from selfmark.images.store import ImageStore
from selfmark.methods.method_registry import build_method
from selfmark.methods.training import build_task
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.landmark_network import prepare_landmark_network
from selfmark.model.network import Phi, Psi, prepare_network
from selfmark.run.devices import uses_bf16
from selfmark.run.processes import SINGLE_PROCESS
from selfmark.train.engine import (
    Phase,
    TrainingTask,
    TrainState,
    build_method_state,
    build_student_state,
    build_train_state,
    run_phase,
)
from selfmark.train.objectives import (
    LandmarkTable,
    RegressionSettings,
    build_regression_task,
    build_stage1_task,
    warmup_pair_settings,
)
from selfmark.train.pairs import PairSource
from selfmark.train.point_table import PointTable

# Steps before the measured ones. The first includes one-time costs; the second tells how many more steps fit
# into the time.
_FIRST_STEPS = 2
_MAX_STEPS = 60  # largest number of measured steps
# Number of images in a measured pass. On a GPU, most passes of the run have the same number of images. cuDNN
# plans the convolutions for each number of images, so the run can use the plans that were made here.
_PASS_IMAGES = {"cpu": 8, "cuda": 64}
_PASSES = 2  # number of passes after the first, which includes one-time costs

Task = tuple[TrainState, TrainingTask]


def measure_steps(
    config: Config, store: ImageStore, device: torch.device, seconds: float
) -> dict[str, float]:
    """Train each network of a run for a few steps and measure the duration of a step.

    Args:
        config: Settings of the run.
        store: A few images of the run, at least two.
        device: Device to compute on.
        seconds: Time to spend on all networks together. At least two steps of each network are run, even if
            these steps take longer.

    Returns:
        Mapping from the name of each stage in `stage_iterations` to the seconds per training iteration.
    """
    stages = stage_iterations(config)
    builders: dict[str, Callable[[], Task]] = {}
    feed, generator = PixelFeed(store.pixels, device), torch.Generator(device).manual_seed(0)
    num_landmarks = config.K or max(config.auto_k.candidates)
    if config.merges_clusters:  # The number of landmarks is not known before merging; it is at most M.
        num_landmarks = config.M
    if "student" in stages:
        builders["student"] = lambda: _build_student(config, feed, num_landmarks, generator, True)
        # After the rounds with a frozen encoder, steps also train the encoder, which takes longer.
        if config.student.encoder_lr > 0 and config.student.frozen_rounds < config.student.rounds:
            builders["unfrozen"] = lambda: _build_student(config, feed, num_landmarks, generator, False)
    if "round" in stages:
        builders["round"] = lambda: _build_stage1(config, feed, generator)
    if "stage 2" in stages:
        builders["stage 2"] = lambda: _build_stage2(config, feed, num_landmarks, generator)
    if "method" in stages:
        builders["method"] = lambda: _build_method(config, feed, store, generator)
    measured_seconds: dict[str, float] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for stage, build in builders.items():
            state, task = build()
            measured_seconds[stage] = _time_steps(state, task, config, seconds / len(builders))
    return _combine_stages(measured_seconds, config)


@torch.no_grad()
def measure_pass(config: Config, pixels: Tensor, encoder: Encoder | None, device: torch.device) -> float:
    """Return the seconds that a forward pass over one image takes, without gradients.

    Args:
        config: Settings of the run.
        pixels: [N, 3, S, S] uint8, images to measure with.
        encoder: Pretrained encoder; None to measure the paper's network Phi.
        device: Device to compute on.
    """
    rows = torch.arange(_PASS_IMAGES.get(device.type, 8)) % len(pixels)
    images = pixels[rows].to(device).float() / 255
    network: Callable[[Tensor], object]
    if encoder is not None:
        network = encoder.describe
    else:
        with torch.random.fork_rng(devices=[]):
            phi = Phi(config.network)
        prepare_network(phi, device, config.runtime)
        network = phi.eval()
    durations = []
    with torch.autocast(device.type, torch.bfloat16, enabled=uses_bf16(config.runtime, device)):
        for _ in range(1 + _PASSES):
            start = time.monotonic()
            network(images)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            durations.append(time.monotonic() - start)
    return min(durations) / len(images)


def _combine_stages(measured_seconds: dict[str, float], config: Config) -> dict[str, float]:
    """Return the seconds per iteration of every stage, given the measured seconds of each network."""
    per_stage = {stage: seconds for stage, seconds in measured_seconds.items() if stage != "unfrozen"}
    if "unfrozen" in measured_seconds:
        frozen_fraction = config.student.frozen_rounds / config.student.rounds
        frozen, unfrozen = measured_seconds["student"], measured_seconds["unfrozen"]
        per_stage["student"] = frozen_fraction * frozen + (1 - frozen_fraction) * unfrozen
    if "round" in measured_seconds:
        per_stage["warm-up"] = measured_seconds["round"]
    return {stage: per_stage[stage] for stage in stage_iterations(config)}


def _time_steps(state: TrainState, task: TrainingTask, config: Config, seconds: float) -> float:
    """Return the seconds per iteration, not counting the first `_FIRST_STEPS` steps.

    If the remaining time is too short for another `_FIRST_STEPS` steps, return the duration of the last step.
    """
    times: list[tuple[int, float]] = []  # iteration, and seconds since the start of the phase

    def on_log(phase: Phase, iteration: int, means: dict[str, float], elapsed: float) -> None:
        times.append((iteration, elapsed))

    def run(start: int, stop: int, log_every: int) -> None:
        times.clear()
        runtime = replace(config.runtime, log_every=log_every, checkpoint_every=10 * _MAX_STEPS)
        run_phase(state, Phase("timing", 0, start, stop, ()), task, runtime, on_log, lambda: None)

    start_time = time.monotonic()
    run(0, _FIRST_STEPS, 1)
    seconds_left = seconds - (time.monotonic() - start_time)
    last_step_seconds = times[-1][1] - times[-2][1]
    num_steps = int(min(max(seconds_left / max(last_step_seconds, 1e-6), 0), _MAX_STEPS))
    if num_steps < _FIRST_STEPS:
        return last_step_seconds
    log_every = max(1, num_steps // 3)
    run(_FIRST_STEPS, _FIRST_STEPS + num_steps, log_every)
    if len(times) < 2:
        return times[0][1] / num_steps
    (first_iteration, first_seconds), (last_iteration, last_seconds) = times[0], times[-1]
    return (last_seconds - first_seconds) / (last_iteration - first_iteration)


# --- training tasks with random labels --------------------------------------------------------------------


def _build_student(
    config: Config, feed: PixelFeed, num_landmarks: int, generator: torch.Generator, is_frozen: bool
) -> Task:
    psi = FeaturePsi(load_encoder(config.features.name, feed.device), config.student, num_landmarks)
    prepare_landmark_network(psi, feed.device, config.runtime)
    is_frozen = is_frozen or not psi.encoder.is_trainable
    state = build_student_state(psi, config.student, is_frozen, generator, SINGLE_PROCESS)
    table = _draw_landmarks(len(feed), num_landmarks, config, feed.device)
    settings = RegressionSettings.of_student(config)
    return state, build_regression_task(psi, feed, table, settings, generator, 0)


def _build_stage1(config: Config, feed: PixelFeed, generator: torch.Generator) -> Task:
    phi = Phi(config.network)
    prepare_network(phi, feed.device, config.runtime)
    state = build_train_state(phi, [(phi, 1.0)], config.optimizer, generator)
    num_points = max(1, round((1 - config.keypoints.outlier_fraction) * config.keypoints.max_points))
    shape = (len(feed), num_points)
    label = torch.arange(num_points, device=feed.device).expand(shape)
    points = PointTable(
        xy=torch.rand(*shape, 2, device=feed.device) * (config.images.size - 1),
        valid=torch.ones(shape, dtype=torch.bool, device=feed.device),
        label=label,
        mirrored_label=label,
        usable=torch.arange(len(feed), device=feed.device),
    )
    source = PairSource(points, warmup_pair_settings(config))
    return state, build_stage1_task(phi, feed, source, config, generator, 0)


def _build_stage2(config: Config, feed: PixelFeed, num_landmarks: int, generator: torch.Generator) -> Task:
    psi = Psi.from_phi(Phi(config.network), config.network, num_landmarks, config.stage2.head)
    prepare_network(psi, feed.device, config.runtime)
    state = build_train_state(psi, [(psi, 1.0)], config.optimizer, generator)
    table = _draw_landmarks(len(feed), num_landmarks, config, feed.device)
    settings = RegressionSettings.of_stage2(config)
    return state, build_regression_task(psi, feed, table, settings, generator, 0)


def _build_method(config: Config, feed: PixelFeed, store: ImageStore, generator: torch.Generator) -> Task:
    network = build_method(config)
    network.to(feed.device)
    prepare_network(network.psi, feed.device, config.runtime)
    state = build_method_state(network, network.psi, network.lr, generator, SINGLE_PROCESS)
    return state, build_task(config, SINGLE_PROCESS, network, feed, store.video, generator)


def _draw_landmarks(
    num_images: int, num_landmarks: int, config: Config, device: torch.device
) -> LandmarkTable:
    """Return landmarks at random places; each landmark is its own mirror partner."""
    xy = torch.rand(num_images, num_landmarks, 2, device=device) * (config.images.size - 1)
    present = torch.ones(num_images, num_landmarks, dtype=torch.bool, device=device)
    return LandmarkTable.from_partners(xy, present, LandmarkPartners.identity(num_landmarks))
