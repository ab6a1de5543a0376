"""A label file joined with what a run found in its images: what every metric starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, Evaluation
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation.cached_predictions import CachedPredictions, Progress, load_or_predict
from selfmark.evaluation.label_files import common_points, read_ground_truth
from selfmark.evaluation.normalizers import normalizer_lengths
from selfmark.evaluation.protocol import Examples
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.images.crop import to_network
from selfmark.images.sources import list_images
from selfmark.points import FloatArray
from selfmark.run.folder import Run


@dataclass(frozen=True)
class EvaluationInputs:
    """Images as the user names them, and the file that labels them."""

    images: Sequence[str | Path]
    labels: Path


@dataclass(frozen=True)
class LabeledRun:
    """A label file joined with what the run found in its images."""

    truth: AnnotatedObjects
    found: CachedPredictions


def join_labels(
    run: Run,
    detector: Detector,
    stage1: Stage1,
    named: EvaluationInputs,
    config: Config,
    on_progress: Progress | None,
) -> LabeledRun:
    """Read a label file and what the run finds in its images; those that cannot be read are left out."""
    truth = read_ground_truth(named.labels, list_images(named.images), config.evaluation.min_visibility)
    found = load_or_predict(run, detector, stage1, truth.refs, on_progress)
    return LabeledRun(truth.select(found.rows), found)


def keep_common_points(train: LabeledRun, test: LabeledRun) -> tuple[LabeledRun, LabeledRun]:
    """Across data sets only points annotated in both can be compared."""
    names = common_points(train.truth, test.truth)
    return (
        replace(train, truth=train.truth.select_points(names)),
        replace(test, truth=test.truth.select_points(names)),
    )


def split_in_half(labeled: LabeledRun, settings: Evaluation) -> tuple[LabeledRun, LabeledRun]:
    """One label file only: regressors are fitted on a random half of it and tested on the other half."""
    count = len(labeled.truth)
    if count < 2:
        raise InputError(
            f"{labeled.truth.source} labels one image only: give a second file with --train-labels"
        )
    order = np.random.default_rng(settings.seed).permutation(count)
    first, second = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    return _rows(labeled, first), _rows(labeled, second)


def _rows(labeled: LabeledRun, rows: npt.NDArray[np.int64]) -> LabeledRun:
    found = labeled.found
    part = CachedPredictions(
        found.rows[rows],
        found.xy[rows],
        found.score[rows],
        found.stage1[rows],
        found.regions[rows],
        found.skipped,
    )
    return LabeledRun(labeled.truth.select(rows), part)


def build_examples(labeled: LabeledRun, spec: str, size: int) -> Examples:
    """In network pixels: originals may have any size, and one linear map must serve them all."""
    truth, regions = labeled.truth, labeled.found.regions
    return Examples(
        landmarks=labeled.found.xy.astype(np.float64),
        score=labeled.found.score.astype(np.float64),
        truth=to_network(truth.xy, regions[:, None], size),
        visible=truth.visible,
        normalizer=normalizer_in_network_pixels(truth, regions, spec, size),
    )


def normalizer_in_network_pixels(
    truth: AnnotatedObjects, regions: FloatArray, spec: str, size: int
) -> FloatArray:
    """What errors are divided by, [N], in network pixels."""
    scaled: FloatArray = normalizer_lengths(truth, spec, regions) * (size / regions[:, 2])
    return scaled
