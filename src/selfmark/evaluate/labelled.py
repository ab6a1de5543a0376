"""A label file joined with what a run found in its images: what every metric starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.config import Config, Evaluation
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluate.labels import GroundTruth, common_points, read_ground_truth, with_points
from selfmark.evaluate.normalise import lengths
from selfmark.evaluate.predictions import Predictions, Progress, predictions
from selfmark.evaluate.protocol import Examples
from selfmark.evaluate.stage1 import Stage1
from selfmark.images.crop import to_network
from selfmark.images.sources import collect
from selfmark.points import FloatArray
from selfmark.run import Run


@dataclass(frozen=True)
class Named:
    """Images as the user names them, and the file that labels them."""

    images: Sequence[str | Path]
    labels: Path


@dataclass(frozen=True)
class Labelled:
    """A label file joined with what the run found in its images."""

    truth: GroundTruth
    found: Predictions


def join_found(
    run: Run,
    detector: Detector,
    stage1: Stage1,
    named: Named,
    config: Config,
    on_progress: Progress | None,
) -> Labelled:
    """Read a label file and what the run finds in its images; those that cannot be read are left out."""
    truth = read_ground_truth(named.labels, collect(named.images), config.evaluation.least_visibility)
    found = predictions(run, detector, stage1, truth.refs, on_progress)
    return Labelled(truth.select(found.rows), found)


def same_points(train: Labelled, test: Labelled) -> tuple[Labelled, Labelled]:
    """Across data sets only points annotated in both can be compared."""
    names = common_points(train.truth, test.truth)
    return (
        replace(train, truth=with_points(train.truth, names)),
        replace(test, truth=with_points(test.truth, names)),
    )


def halves(labelled: Labelled, settings: Evaluation) -> tuple[Labelled, Labelled]:
    """One label file only: regressors are fitted on a random half of it and tested on the other half."""
    count = len(labelled.truth)
    if count < 2:
        raise InputError(
            f"{labelled.truth.source} labels one image only: give a second file with --train-labels"
        )
    order = np.random.default_rng(settings.seed).permutation(count)
    first, second = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    return _rows(labelled, first), _rows(labelled, second)


def _rows(labelled: Labelled, rows: npt.NDArray[np.int64]) -> Labelled:
    found = labelled.found
    part = Predictions(
        found.rows[rows],
        found.xy[rows],
        found.score[rows],
        found.stage1[rows],
        found.regions[rows],
        found.skipped,
    )
    return Labelled(labelled.truth.select(rows), part)


def examples(labelled: Labelled, spec: str, size: int) -> Examples:
    """In network pixels: originals may have any size, and one linear map must serve them all."""
    truth, regions = labelled.truth, labelled.found.regions
    return Examples(
        landmarks=labelled.found.xy.astype(np.float64),
        score=labelled.found.score.astype(np.float64),
        truth=to_network(truth.xy, regions[:, None], size),
        visible=truth.visible,
        normaliser=network_lengths(truth, regions, spec, size),
    )


def network_lengths(truth: GroundTruth, regions: FloatArray, spec: str, size: int) -> FloatArray:
    """What errors are divided by, [N], in network pixels."""
    scaled: FloatArray = lengths(truth, spec, regions) * (size / regions[:, 2])
    return scaled
