"""Estimate the cost of a plan in minutes on one NVIDIA H200.

The estimate combines the amount of work with measured rates (docs/results/speed.json), which hold for images
of 256 px and networks with 256 channels. For other sizes, the network's time is scaled with the number of
pixels and the square of the number of channels. This underestimates the cost of small networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfmark.config import Config, override
from selfmark.config.schedule import fit_schedule, schedule_settings
from selfmark.paper.datasets.dataset_registry import DATASETS
from selfmark.paper.reproduction.experiment import StartPoints
from selfmark.paper.reproduction.experiment_plan import ExperimentPlan, Measurement, Training

# Measured rates, under the same names as in docs/results/speed.json.
STAGE1_16_PAIRS_STEP = 9.72e-3  # seconds per training step on 32 images
STAGE1_64_PAIRS_STEP = 31.11e-3  # seconds per training step on 128 images
# Images per second when points and descriptors of every image and of its mirror image are computed.
EXTRACT = 5921.25
PREDICT_GPU = 6253.48  # images per second when landmarks are predicted
COLD_FIRST_STEP_S = 15.55  # seconds until the first step, from a cold start
# Seconds to cluster the keypoints of 200,000 images twice, into K and into M clusters, with 10 restarts. The
# estimate uses this time for any number of images, because K-means is fitted on a sample and fitting takes
# most of the time.
RECOVERY_200K = 3.16
# Measured in docs/results/reproduced/birds.json; large JPEGs take longer. benchmarks/cost_formulas.py has the
# same values for first keypoints and decoding.
FIRST_KEYPOINTS = 1_500.0  # images per second when first keypoints are detected, rounded down
DECODE = 950.0  # images per second when images are decoded
MEASURING = 45.0  # seconds of one measurement without prediction: reading, fitting and drawing

# Mapping from data sets to three numbers of images: for discovery, for fitting regressors and for testing.
IMAGES: dict[str, tuple[int, int, int]] = {
    name: (info.counts["train"], info.counts.get("fit", info.counts["train"]), info.counts["test"])
    for name, info in DATASETS.items()
    if info.counts
}
IMAGES["cub"] = (4_765, 4_765, 4_660)  # without seabirds, for which there are no published numbers


class DatasetNames:
    """A `DatasetLibrary` that knows only the names of data sets, to make plans without the data."""

    def settings(self, name: str) -> Mapping[str, Any]:
        """Return no settings, because only the readers know which settings the paper changes."""
        return {}

    def train_digest(self, name: str) -> str:
        """Return a placeholder for the digest of the training images."""
        return name

    def start_digest(self, name: str, points: int | None, start: StartPoints) -> str:
        """Return a placeholder for the digest of the training images with start points."""
        return f"{name}/{points}"

    def labels_digest(self, name: str, points: int | None, seed: int, fit_images: int | None) -> str:
        """Return a placeholder for the digest of the labels."""
        return f"{name}/{points}/{fit_images}"


def estimate_training_seconds(training: Training) -> float:
    """Estimate the seconds of a training run, up to the last stage that is needed."""
    images, _, _ = IMAGES.get(training.data, (0, 0, 0))
    config = _fit_iterations(training, images)
    rounds = config.rounds.count
    warmup = config.warmup.iterations if config.warmup.bootstrap == "equivariance" else 0
    stage1_iterations = warmup + rounds * config.rounds.iterations
    seconds = COLD_FIRST_STEP_S + images / DECODE + images / FIRST_KEYPOINTS
    seconds += stage1_iterations * estimate_step_seconds(2 * config.runtime.batch, config)
    extraction = images / EXTRACT * _relative_work(config)
    clustering = RECOVERY_200K * config.correspondence.restarts / 10
    seconds += (rounds + 1) * (extraction + clustering)
    if training.stages > 1:
        seconds += config.stage2.iterations * estimate_step_seconds(config.stage2.batch, config)
    return seconds


def estimate_step_seconds(images: int, config: Config) -> float:
    """Estimate the seconds of one training step from a straight line through two measured batch sizes.

    Args:
        images: Number of images in a batch.
        config: Settings of the run.

    >>> from selfmark.config import preset
    >>> round(1000 * estimate_step_seconds(32, preset("paper")), 2)
    9.72
    """
    per_image = (STAGE1_64_PAIRS_STEP - STAGE1_16_PAIRS_STEP) / (128 - 32)
    fixed = STAGE1_16_PAIRS_STEP - 32 * per_image
    return fixed + per_image * images * _relative_work(config)


def estimate_measuring_seconds(measurement: Measurement) -> float:
    """Estimate the seconds of one measurement: prediction, plus a constant for everything else."""
    train, fit, test = IMAGES.get(measurement.data, (0, 0, 0))
    seconds = (fit + test) / PREDICT_GPU
    if measurement.kind == "rounds":  # The training images are clustered again for each round.
        seconds += train / EXTRACT + RECOVERY_200K
        seconds *= measurement.training.config.rounds.count
    return MEASURING + seconds


def estimate_minutes(plan: ExperimentPlan) -> float:
    """Estimate the GPU minutes of a whole plan."""
    seconds = sum(map(estimate_training_seconds, plan.trainings.values()))
    return (seconds + sum(map(estimate_measuring_seconds, plan.measurements.values()))) / 60


def _fit_iterations(training: Training, images: int) -> Config:
    """Return the settings with iterations that suit the number of images, as `run_plan` chooses them."""
    names = schedule_settings(training.config)
    given = {name: value for name, value in training.settings.items() if name in names}
    return override(fit_schedule(training.config, images), given)


def _relative_work(config: Config) -> float:
    """Return the network's work for one image, relative to the work at 256 px and 256 channels."""
    return (config.images.size / 256) ** 2 * (config.network.channels / 256) ** 2
