"""What a plan would cost, in minutes of one NVIDIA H200: rates measured there, times what settings ask for.

An extrapolation: the rates are those of docs/results/speed.json, taken with 256 px and 256 channels. The
arithmetic of other sizes is scaled with pixels and channels, so for small networks it says too little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfmark.config import Config
from selfmark.paper.reproduction.experiment import StartPoints
from selfmark.paper.reproduction.experiment_plan import ExperimentPlan, Measurement, Training

# Measured, docs/results/speed.json: the same names there.
STAGE1_16_PAIRS_STEP = 9.72e-3  # s; a step on 32 images
STAGE1_64_PAIRS_STEP = 31.11e-3  # s; a step on 128 images
EXTRACT = 5921.25  # images/s; points and descriptors, of the image and its mirror image
PREDICT_GPU = 6253.48  # images/s
FIRST_STEP = 34.63  # s; of a cold start
RECOVERY_200K = 3.16  # s; both clusterings, 10 restarts
# Measured, docs/results/reproduced/birds.json; as in benchmarks/cost_formulas.py. Large JPEGs take longer.
FIRST_KEYPOINTS = 1_500.0  # images/s; rounded down
DECODE = 950.0  # images/s
MEASURING = 45.0  # s; reading, regressors and pictures of one measurement

# Images of the paper's splits (Sec. 4.1): to discover in, to fit regressors on, to test on. Where it does not
# say, those of the official files.
IMAGES: dict[str, tuple[int, int, int]] = {
    "celeba": (201_599, 19_000, 1_000),
    "aflw": (10_112, 10_112, 2_991),
    "ls3d": (61_225, 61_225, 7_200),
    "bbcpose": (60_885, 60_885, 1_000),
    "human36m": (48_240, 48_240, 2_760),
    "human36m32": (48_240, 48_240, 2_760),
    "pennaction": (51_661, 51_661, 1_776),
    "cats": (7_747, 7_747, 1_257),
    "cub": (4_765, 4_765, 4_660),
    "mtfl": (10_000, 10_000, 2_995),
}


class DatasetNames:
    """The data sets by name alone, for a plan without the data (see `plan.Library`)."""

    def settings(self, name: str) -> Mapping[str, Any]:
        return {}

    def trained_on(self, name: str) -> str:
        return name

    def started_from(self, name: str, points: int | None, start: StartPoints) -> str:
        return f"{name}/{points}"

    def measured_on(self, name: str, points: int | None, seed: int, fit_images: int | None) -> str:
        return f"{name}/{points}/{fit_images}"


def training_seconds(training: Training) -> float:
    """Of one training, as far as it is needed."""
    config, (images, _, _) = training.config, IMAGES.get(training.data, (0, 0, 0))
    rounds = config.rounds.count
    warmup = config.warmup.iterations if config.warmup.bootstrap == "equivariance" else 0
    stage1 = warmup + rounds * config.rounds.iterations
    seconds = FIRST_STEP + images / DECODE + images / FIRST_KEYPOINTS
    seconds += stage1 * step_seconds(2 * config.runtime.batch, config)
    seconds += (rounds + 1) * (
        images / EXTRACT * _arithmetic(config) + RECOVERY_200K * config.correspondence.restarts / 10
    )
    if training.stages > 1:
        seconds += config.stage2.iterations * step_seconds(config.stage2.batch, config)
    return seconds


def step_seconds(images: int, config: Config) -> float:
    """Of a step on so many images: a fixed part and one that grows, through the two batches measured.

    >>> from selfmark.config import preset
    >>> round(1000 * step_seconds(32, preset("paper")), 2)
    9.72
    """
    each = (STAGE1_64_PAIRS_STEP - STAGE1_16_PAIRS_STEP) / (128 - 32)
    fixed = STAGE1_16_PAIRS_STEP - 32 * each
    return fixed + each * images * _arithmetic(config)


def measuring_seconds(measurement: Measurement) -> float:
    """Of one measurement: predicting, and a flat minute for all that follows."""
    train, fit, test = IMAGES.get(measurement.data, (0, 0, 0))
    seconds = (min(fit, measurement.fit_images or fit) + test) / PREDICT_GPU
    if measurement.need == "rounds":  # the training images are clustered anew after each
        seconds += train / EXTRACT + RECOVERY_200K
        seconds *= measurement.training.config.rounds.count
    return MEASURING + seconds


def estimate_minutes(plan: ExperimentPlan) -> float:
    """GPU minutes of a whole plan."""
    seconds = sum(map(training_seconds, plan.trainings.values()))
    return (seconds + sum(map(measuring_seconds, plan.measurements.values()))) / 60


def _arithmetic(config: Config) -> float:
    """Work of the network for one image, that of 256 px and 256 channels being 1."""
    return (config.images.size / 256) ** 2 * (config.network.channels / 256) ** 2
