"""Estimate the duration and the memory of a run by measuring a few of its steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from selfmark.config import Config, override
from selfmark.config.schedule import stage_iterations
from selfmark.errors import InputError
from selfmark.features.cells import described_channels
from selfmark.features.encoder import CELL, Encoder
from selfmark.features.loading import load_encoder
from selfmark.image_ref import ImageRef
from selfmark.images.store import load_store
from selfmark.inspection.step_timing import measure_pass, measure_steps
from selfmark.run.processes import measure_peak_memory
from selfmark.verification import build_second_config
from selfmark.wording import describe_count

MEASURED_SECONDS = 5.0  # time to spend on measuring training steps
_SAMPLE_IMAGES = 32  # number of images to measure with
# Estimated passes per checked image and deformation. They also cover the undeformed and the mirrored image.
_PASSES_PER_DEFORMATION = 4


@dataclass(frozen=True)
class RunEstimate:
    """Estimated duration and memory of a run.

    Attributes:
        seconds_per_iteration: Mapping from the name of each stage in `stage_iterations` to the seconds per
            training iteration.
        training: Seconds of all training iterations.
        other: Seconds before and between the training iterations: reading images, and passes over all images.
        after: Seconds of the checks at the end and, if enabled, of the verification.
        host_bytes: Peak memory of the process.
        device_bytes: Peak memory of the GPU; 0 on the CPU.
    """

    seconds_per_iteration: dict[str, float]
    training: float
    other: float
    after: float
    host_bytes: int
    device_bytes: int

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.training + self.other + self.after


def estimate_run(refs: Sequence[ImageRef], config: Config, device: torch.device) -> RunEstimate:
    """Estimate the duration and memory of a run from measurements on a few images.

    Reading, forward passes and training steps are measured, the training steps for `MEASURED_SECONDS`.

    Args:
        refs: Images of the run.
        config: Settings of the run. If the orientation of the objects is `auto`, objects are assumed to be
            upright, because Stage 1, the longest stage, runs only for upright objects.
        device: Device to compute on.

    Raises:
        InputError: Fewer than two of the first images can be read.
    """
    if config.uses_features and config.features.orientation == "auto":
        config = override(config, {"features.orientation": "upright"})
    # Use the first images, because later frames of a video take longer to reach.
    sample = list(refs[:_SAMPLE_IMAGES])
    start = time.monotonic()
    store = load_store(sample, config.images, float("inf"), None)
    read_seconds = (time.monotonic() - start) / len(sample)  # seconds per image
    if len(store) < 2:
        raise InputError(f"only {len(store)} of the first {len(sample)} images can be read")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    encoder = load_encoder(config.features.name, device) if config.uses_features else None
    pass_seconds = measure_pass(config, store.pixels, encoder, device)  # seconds per image
    per_iteration = measure_steps(config, store, device, MEASURED_SECONDS)
    device_bytes = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
    data_bytes = _count_data_bytes(config, len(refs), encoder)
    num_deformations = min(config.evaluation.num_samples, len(refs)) * config.evaluation.deformations
    after = num_deformations * _PASSES_PER_DEFORMATION * pass_seconds
    if config.verification.enabled:
        shorter, fewer = build_second_config(config), round(config.verification.training_fraction * len(refs))
        after += (
            _estimate_training_seconds(shorter, per_iteration) + _count_passes(shorter, fewer) * pass_seconds
        )
    return RunEstimate(
        per_iteration,
        _estimate_training_seconds(config, per_iteration),
        read_seconds * len(refs) + _count_passes(config, len(refs)) * pass_seconds,
        after,
        measure_peak_memory()
        + (data_bytes if device.type == "cpu" else 2 * _count_store_bytes(config, len(refs))),
        device_bytes + data_bytes if device.type == "cuda" else 0,
    )


def describe_estimate(estimate: RunEstimate, device: torch.device) -> str:
    """Return the estimate as a sentence."""
    memory = f"{estimate.host_bytes / 2**30:.1f} GiB of memory"
    if device.type == "cuda":
        memory += f" and {estimate.device_bytes / 2**30:.1f} GiB of GPU memory"
    return f"about {describe_duration(estimate.seconds)} and {memory} on this machine ({device.type})"


def describe_duration(seconds: float) -> str:
    """Return a duration in minutes, hours or days.

    >>> describe_duration(40), describe_duration(100), describe_duration(900), describe_duration(9000)
    ('1 minute', '2 minutes', '15 minutes', '2.5 hours')
    """
    minutes = max(1, round(seconds / 60))
    if minutes < 90:
        return describe_count(minutes, "minute")
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.0f} days"


def _estimate_training_seconds(config: Config, per_iteration: dict[str, float]) -> float:
    """Return the seconds of all training iterations of a run."""
    stages = stage_iterations(config)
    return sum(iterations * per_iteration.get(stage, 0.0) for stage, iterations in stages.items())


def _count_passes(config: Config, num_images: int) -> float:
    """Return the number of forward passes of single images outside training iterations.

    The orientation must not be `auto`. The passes that find out whether objects are upright are few, and are
    not counted.
    """
    if config.is_from_another_paper and not config.merges_clusters:
        return 2 * num_images
    if not config.uses_features:
        return 2 * num_images * (config.rounds.count + 2)
    features = config.features
    used = min(num_images, features.max_images)
    passes = 2.0 * used * features.averaged_rotations
    if features.orientation in ("not-upright", "turned"):  # Every image is compared in many rotations.
        passes += used * features.rotations * (features.direction_size / config.images.size) ** 2
    if config.method == "self-training":
        passes += 2 * used * config.student.rounds
        if features.runs_stage1:
            passes += 2 * used * (config.rounds.count + 2)
    return passes


def _count_store_bytes(config: Config, num_images: int) -> int:
    """Return the bytes of the images in memory; 0 if there are so many that they are kept in a file."""
    size = num_images * 3 * config.images.size**2
    return size if size <= config.runtime.store_gigabytes * 1e9 else 0


def _count_data_bytes(config: Config, num_images: int, encoder: Encoder | None) -> int:
    """Return the bytes of the images and features that are kept in memory."""
    image_bytes = _count_store_bytes(config, num_images)
    if encoder is None:
        return image_bytes
    used = min(num_images, config.features.max_images)
    cells = used * (config.images.size // CELL) ** 2
    channels = described_channels(encoder, config.features)
    feature_bytes = 2 * cells * channels  # float16
    sample_bytes = 4 * min(cells, config.features.sample) * channels  # the float32 sample that is clustered
    # Features of the images and of their mirror images, unless they are kept in files.
    is_in_memory = feature_bytes <= config.runtime.store_gigabytes * 1e9
    return image_bytes + sample_bytes + (2 * feature_bytes if is_in_memory else 0)
