"""Join labels with a run's predictions; the metrics are computed from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from selfmark.evaluation.stage1_landmarks import Stage1Finder
from selfmark.images.crop import region_sides, to_network
from selfmark.images.sources import list_images
from selfmark.points import FloatArray
from selfmark.run.folder import Run


@dataclass(frozen=True)
class LabeledInputs:
    """Images as the user gave them (files, folders, globs, videos), and their label file."""

    images: Sequence[str | Path]
    labels: Path


@dataclass(frozen=True)
class LabeledRun:
    """Annotated objects and the landmarks that a run predicts for them, in the same order."""

    truth: AnnotatedObjects
    predictions: CachedPredictions


def read_labeled_inputs(inputs: LabeledInputs, config: Config) -> AnnotatedObjects:
    """Read a label file and find its images."""
    return read_ground_truth(inputs.labels, list_images(inputs.images), config.evaluation.min_visibility)


def predict_labeled(
    run: Run,
    detector: Detector,
    stage1: Stage1Finder,
    truth: AnnotatedObjects,
    on_progress: Progress | None,
) -> LabeledRun:
    """Predict the landmarks of annotated objects; unreadable images are left out."""
    predictions = load_or_predict(run, detector, stage1, truth.refs, on_progress)
    return LabeledRun(truth.select(predictions.rows), predictions)


def keep_common_points(
    train: AnnotatedObjects, test: AnnotatedObjects
) -> tuple[AnnotatedObjects, AnnotatedObjects]:
    """Keep only the points that are annotated in both data sets, because only these can be compared."""
    names = common_points(train, test)
    return train.select_points(names), test.select_points(names)


def split_in_half(labeled: LabeledRun, settings: Evaluation) -> tuple[LabeledRun, LabeledRun]:
    """Split the objects into two random halves, one to fit regressors on and one to test them on.

    Raises:
        InputError: If there is only one object.
    """
    count = len(labeled.truth)
    if count < 2:
        raise InputError(
            f"{labeled.truth.source} has labels for one image only: give a second file with --train-labels"
        )
    order = np.random.default_rng(settings.seed).permutation(count)
    first, second = np.sort(order[: count // 2]), np.sort(order[count // 2 :])
    return _select_rows(labeled, first), _select_rows(labeled, second)


def _select_rows(labeled: LabeledRun, rows: npt.NDArray[np.int64]) -> LabeledRun:
    predictions = labeled.predictions
    selected = CachedPredictions(
        predictions.rows[rows],
        predictions.xy[rows],
        predictions.score[rows],
        predictions.stage1[rows],
        predictions.regions[rows],
        predictions.skipped,
    )
    return LabeledRun(labeled.truth.select(rows), selected)


def build_examples(
    truth: AnnotatedObjects, landmarks: FloatArray, regions: FloatArray, spec: str, size: int
) -> Examples:
    """Convert annotated points and the normalizer to network pixels, because originals differ in size.

    Args:
        truth: N objects.
        landmarks: [N, K, 2] network pixels.
        regions: [N, 4] x, y, w, h of the network images in the originals.
        spec: The normalizer, see `normalizers`.
        size: Side of the network image.
    """
    return Examples(
        landmarks=landmarks.astype(np.float64),
        truth=to_network(truth.xy, regions[:, None], size),
        visible=truth.visible,
        normalizer=normalizer_in_network_pixels(truth, regions, spec, size),
    )


def normalizer_in_network_pixels(
    truth: AnnotatedObjects, regions: FloatArray, spec: str, size: int
) -> FloatArray:
    """Return the normalizer [N] in network pixels; arguments as in `build_examples`."""
    scaled: FloatArray = normalizer_lengths(truth, spec, regions) * (size / region_sides(regions))
    return scaled
