"""Join labels with a run's predictions; the metrics are computed from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, Evaluation
from selfmark.errors import InputError
from selfmark.evaluation.cached_predictions import CachedPredictions, Progress, load_or_predict
from selfmark.evaluation.label_files import find_common_points, read_ground_truth
from selfmark.evaluation.normalizers import measure_lengths
from selfmark.evaluation.protocol import Examples
from selfmark.evaluation.run_models import RunModels
from selfmark.image_ref import Box
from selfmark.images.crop import region_sides, to_network
from selfmark.points import FloatArray
from selfmark.tracking.regions import Regions, locate_objects
from selfmark.wording import choose_form, describe_count


@dataclass(frozen=True)
class LabeledInputs:
    """Inputs as the user gave them, and their label file.

    Attributes:
        images: Folders, globs, image files, videos, text lists and COCO files.
        labels: The label file.
        every: Use every n-th frame of each video.
        regions: Where the objects are in the images; None if each object fills its image.
    """

    images: Sequence[str | Path]
    labels: Path
    every: int = 1
    regions: Regions | None = None


@dataclass(frozen=True)
class LabeledRun:
    """Annotated objects and the landmarks that a run predicts for them, in the same order."""

    truth: AnnotatedObjects
    predictions: CachedPredictions


def read_labeled_inputs(inputs: LabeledInputs, config: Config) -> AnnotatedObjects:
    """Read a label file and find its images; with a crop, only points inside the crop are kept."""
    regions = inputs.regions or Regions()
    # A crop is not the box of an object. So labels are matched to whole images, which are then cropped.
    without_crop = Regions() if regions.crop is not None else regions
    notes: list[str] = []
    refs = locate_objects(inputs.images, inputs.every, without_crop, config.tracking, on_note=notes.append)
    truth = read_ground_truth(inputs.labels, refs, config.evaluation.min_visibility)
    truth = replace(truth, notes=(*notes, *truth.notes))
    return truth if regions.crop is None else crop_objects(truth, regions.crop)


def crop_objects(truth: AnnotatedObjects, crop: Box) -> AnnotatedObjects:
    """Crop all images to the same part: keep only the annotations inside, with a note about the others.

    Points outside the crop count as not annotated, and boxes are clipped. Objects without a point inside are
    left out, and so are points that are never inside.

    Args:
        truth: Objects in whole images.
        crop: x, y, width and height of the part, pixels.

    Raises:
        InputError: If no annotated point is inside.
    """
    x, y, width, height = crop
    low, high = np.array([x, y]), np.array([x + width, y + height])
    is_inside = np.asarray(((truth.xy + 0.5 >= low) & (truth.xy + 0.5 <= high)).all(axis=2))
    box_low = np.clip(truth.boxes[:, :2], low, high)
    box_high = np.clip(truth.boxes[:, :2] + truth.boxes[:, 2:], low, high)
    cropped = replace(
        truth,
        refs=tuple(replace(ref, box=crop) for ref in truth.refs),
        xy=np.where(is_inside[..., None], truth.xy, np.nan),
        hidden=truth.hidden & is_inside,
        boxes=np.concatenate([box_low, box_high - box_low], axis=1),
    )
    if not is_inside.any():
        raise InputError(
            f"{truth.source}: no annotated point lies inside the crop {x:g},{y:g},{width:g},{height:g}"
        )
    names = [name for column, name in enumerate(truth.names) if is_inside[:, column].any()]
    total = int(truth.visible.sum())
    num_outside = total - int(is_inside.sum())
    reason = choose_form(num_outside, "is outside the crop and was", "are outside the crop and were")
    note = f"{truth.source}: {num_outside} of {describe_count(total, 'point')} {reason} left out"
    notes = (*truth.notes, note) if num_outside else truth.notes
    return replace(cropped.select(is_inside.any(axis=1)).select_points(names), notes=notes)


def predict_labeled(models: RunModels, truth: AnnotatedObjects, on_progress: Progress | None) -> LabeledRun:
    """Predict the landmarks of annotated objects; unreadable images are left out."""
    predictions = load_or_predict(models, truth.refs, on_progress)
    return LabeledRun(truth.select(predictions.rows), predictions)


def keep_common_points(
    train: AnnotatedObjects, test: AnnotatedObjects
) -> tuple[AnnotatedObjects, AnnotatedObjects]:
    """Keep only the points that are annotated in both data sets, because only these can be compared."""
    names = find_common_points(train, test)
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
    """Build examples whose points and normalizers are in network pixels, because originals differ in size.

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
        normalizer=measure_in_network_pixels(truth, regions, spec, size),
    )


def measure_in_network_pixels(
    truth: AnnotatedObjects, regions: FloatArray, spec: str, size: int
) -> FloatArray:
    """Return the normalizer [N] in network pixels; see `build_examples` for the arguments."""
    scaled: FloatArray = measure_lengths(truth, spec, regions) * (size / region_sides(regions))
    return scaled
