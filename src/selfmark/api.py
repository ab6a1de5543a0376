"""Define the public functions that load a detector, evaluate a run, and learn a map to your own points."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfmark.argument_types import check_argument_types
from selfmark.detector import Detector
from selfmark.errors import InputError, escape_control_characters, report_path_errors
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.export.onnx_detector import load_detector
from selfmark.images.sources import to_input_list
from selfmark.mapping.learning import learn_map
from selfmark.mapping.mapped_detector import MappedDetector, load_mapping
from selfmark.multiview.view_detector import load_view_detector
from selfmark.run.devices import select_device


@report_path_errors()
@check_argument_types
def load(folder: str | Path, device: str = "cpu", mapped: bool = False, runtime: str = "torch") -> Detector:
    """Load the detector of a run.

    Args:
        folder: a run folder, its model folder, or `demo` for the detector that ships with selfmark. A
            folder with one run per view of the object gives the landmarks of all views.
        device: `auto`, `cpu`, `cuda`, ...
        mapped: detect your own points, learned by `map_points`, instead of the landmarks.
        runtime: `torch`; or `onnx` or `onnx-int8` to run the files of `selfmark export` on the CPU.

    Returns:
        The detector; call it with images to get their landmarks.
    """
    views = load_view_detector(Path(folder), (), lambda part: load_detector(part, runtime, device))
    if views is not None:
        if mapped:
            raise InputError(
                f"{folder} has a run for each view: load the run of one view to get mapped points"
            )
        return views
    detector = load_detector(folder, runtime, device)
    return MappedDetector(detector, load_mapping(folder, detector)) if mapped else detector


@report_path_errors()
@check_argument_types
def evaluate(
    run: str | Path,
    images: str | Path | Sequence[str | Path],
    labels: str | Path | None = None,
    *,
    train_images: str | Path | Sequence[str | Path] | None = None,
    train_labels: str | Path | None = None,
    normalizer: str = "",
    by: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Measure the landmarks of a run, like `selfmark evaluate`.

    Args:
        run: run folder.
        images: folders, glob patterns, image files, COCO files or videos to test on.
        labels: file with annotated points of these images; None runs only the checks that need no labels.
        train_images: images of `train_labels`; None uses `images`.
        train_labels: file with annotated points to fit the regressors on; None fits on a random half of the
            labeled `images` and tests on the other half.
        normalizer: the length that errors are divided by, e.g. `inter_ocular`; empty uses the length that the
            label file names, or else chooses one by the names of the points.
        by: annotation fields; errors are also reported for each value of these fields.
        settings: mapping from names of evaluation settings to new values, e.g. `{"draws": 3}`.
        output: folder for metrics.json; None uses the run folder.
        device: `auto`, `cpu`, `cuda`, ...

    Returns:
        The content of metrics.json.
    """
    return evaluate_run(
        run,
        EvaluationInputs(images, labels, train_images, train_labels),
        EvaluationOptions(normalizer, by, settings=settings or {}),
        output=output,
        device=device,
    )


@report_path_errors()
@check_argument_types
def map_points(
    run: str | Path,
    labels: str | Path,
    images: str | Path | Sequence[str | Path] = (),
    *,
    normalizer: str = "",
    device: str = "auto",
) -> MappedDetector:
    """Learn your own points from a few annotated images, like `selfmark map`.

    The map is saved with the model; `load` with `mapped=True` loads it again.

    Args:
        run: run folder or model folder.
        labels: file with annotated points: COCO keypoints, a DeepLabCut table or a Label Studio export.
        images: the annotated images; empty uses the images listed in a COCO file.
        normalizer: the length that errors are divided by; empty chooses one from the labels.
        device: `auto`, `cpu`, `cuda`, ...

    Returns:
        A detector of your points. `mapping.error` of this detector is the mean error of your points on
        held-out images, in percent of the normalizer. It is None if there is only one annotated image.

    Warns:
        UserWarning: for each note about the labels or the map, e.g. about images that could not be used.
    """
    learned = learn_map(run, labels, to_input_list(images), normalizer, device)
    for note in learned.notes:
        warnings.warn(escape_control_characters(note), stacklevel=2)
    return MappedDetector(Detector.load(run, select_device(device)), learned.mapping)
