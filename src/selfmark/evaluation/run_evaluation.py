"""Implement `selfmark evaluate`: measure a run on images and their labels, and write metrics.json.

Labels and the run's predictions are converted to network pixels and passed to `protocol`. Without labels,
only the label-free checks run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from selfmark._version import __version__
from selfmark.annotations import AnnotatedObjects
from selfmark.config import Config, override
from selfmark.detector import Detector
from selfmark.errors import InputError, report_write_errors, suggest
from selfmark.evaluation import protocol
from selfmark.evaluation.advice import advise
from selfmark.evaluation.cached_checks import load_or_check
from selfmark.evaluation.cached_predictions import Progress, run_fingerprint
from selfmark.evaluation.completion import complete_landmarks
from selfmark.evaluation.detector_precision import (
    build_detector_settings,
    measure_detector_precisions,
    measure_first_keypoint_precision,
)
from selfmark.evaluation.label_free import run_label_free_checks
from selfmark.evaluation.labeled_run import (
    LabeledInputs,
    LabeledRun,
    build_examples,
    keep_common_points,
    predict_labeled,
    read_labeled_inputs,
    split_in_half,
)
from selfmark.evaluation.nme import box_normalizer, forward_predictions
from selfmark.evaluation.normalizers import (
    choose_normalizer,
    group_by_part,
    is_available,
    keep_measurable,
    measure_unchecked_lengths,
)
from selfmark.evaluation.oks import TargetObjects
from selfmark.evaluation.protocol import Examples, Metrics
from selfmark.evaluation.raw_landmarks import (
    build_detections,
    hit_rates_by_limit,
    match_annotated_points,
    oks_metrics,
)
from selfmark.evaluation.regression import RegressorFitter, fit_ridge
from selfmark.evaluation.run_models import RunModels
from selfmark.evaluation.stage1_landmarks import load_stage1_finder
from selfmark.evaluation.stage_errors import StageExamples, measure_inter_ocular
from selfmark.image_ref import ImageRef
from selfmark.images.crop import region_sides
from selfmark.images.input_files import require_inputs_kept
from selfmark.images.sources import to_input_list
from selfmark.images.store import ImageStore
from selfmark.model.card import ModelCard
from selfmark.points import FloatArray
from selfmark.run.devices import select_device
from selfmark.run.files import write_json
from selfmark.run.folder import Run
from selfmark.run.guarded_files import make_folders
from selfmark.run.locks import exclusive_if_possible
from selfmark.run.output_folder import require_own_output, require_same_model
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from selfmark.tracking.regions import Regions, locate_objects
from selfmark.wording import choose_form, describe_count

_MAX_DIGITS = 17  # with so many digits, different numbers never look alike
_MAX_GROUPS = 12  # a numeric field with more values than this is divided into quartiles

ImageInputs = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class EvaluationInputs:
    """Images to evaluate on and their labels.

    Attributes:
        images: Folders, globs, image files, videos, text lists or COCO files to test on.
        labels: Label file of these images; None runs only the label-free checks.
        train_images: Images of `train_labels`; None means `images`.
        train_labels: Label file to fit regressors on; None fits on a random half of `labels` and tests on the
            other half.
        every: Use every n-th frame of each video.
        regions: Where the objects are in all of these images; None if each object fills its image.
    """

    images: ImageInputs
    labels: str | Path | None = None
    train_images: ImageInputs | None = None
    train_labels: str | Path | None = None
    every: int = 1
    regions: Regions | None = None


@dataclass(frozen=True)
class EvaluationOptions:
    """What to measure and how.

    Attributes:
        normalizer: What errors are divided by (`box`, `bbox`, `inter_ocular`, `shoulders`, `torso`, `side`,
            `points:A,B`). If empty, the normalizer that the label file declares, or else one that is chosen
            by the point names.
        by: Fields of the annotations; errors are measured for each of their values.
        detectors: Generic keypoint detectors whose precision to measure.
        settings: Mapping from names of evaluation settings to new values, e.g. `{"draws": 3}`.
    """

    normalizer: str = ""
    by: Sequence[str] = ()
    detectors: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def evaluate_run(
    folder: str | Path,
    inputs: EvaluationInputs,
    options: EvaluationOptions | None = None,
    output: str | Path | None = None,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Metrics:
    """Evaluate a finished run on images, with labels if there are any, and write metrics.json.

    Args:
        folder: Run folder.
        inputs: Images and labels.
        options: What to measure and how.
        output: Folder for metrics.json; None means the run folder.
        device: `auto`, `cpu`, `cuda`, ...
        on_progress: Called with the number of images done and the total.

    Returns:
        The content of metrics.json.

    Raises:
        InputError: If a file or option is not valid, or if metrics.json cannot be written.
    """
    if output == "":  # As a path, this would be the current folder.
        raise InputError("evaluate: 'output' must be a folder or None, not ''")
    options = options or EvaluationOptions()
    run = Run.open(Path(folder))
    config = override(run.config, {f"evaluation.{name}": value for name, value in options.settings.items()})
    models = RunModels.open(run, select_device(device), config.evaluation.flip != "never")
    images = to_input_list(inputs.images)
    target = Path(output) if output is not None else run.path
    require_inputs_kept([target / "metrics.json"], _list_named_inputs(inputs))
    _require_free_output(target, models)
    second_run = run.read_verification()
    refs: Sequence[ImageRef] = ()
    metrics = _build_header(run, models.card) | {"images": [str(item) for item in images]}
    if inputs.labels is None:
        if options.by or inputs.train_labels or options.normalizer or options.detectors:
            raise InputError("--by, --train-labels, --normalizer and --detectors need --labels")
        notes: list[str] = []
        refs = locate_objects(images, inputs.every, inputs.regions, config.tracking, None, notes.append)
        metrics["notes"] = notes
    else:
        # Files and options are checked first, so that mistakes are reported before minutes of prediction.
        train_truth, test_truth, spec = _read_label_files(inputs, options, config)
        for name in options.detectors:
            build_detector_settings(name, config)
        predict = partial(predict_labeled, models, on_progress=on_progress)
        test = predict(test_truth)
        if train_truth is None:
            train, test = split_in_half(test, config.evaluation)
        else:
            train = predict(train_truth)
        refs = test.truth.refs
        # The regressions are so small that several threads mostly wait for each other: with two threads on
        # two busy cores, 759 test images took 93 s of CPU time instead of 7 s.
        with threadpool_limits(1, user_api="blas"):
            metrics |= _measure(train, test, spec, options.by, config)
        precisions = _measure_run_precision(run, train, spec, config)
        if options.detectors:
            precisions |= measure_detector_precisions(
                test.truth, spec, options.detectors, config, models.device, run.path
            )
        metrics["precision"] = precisions
        metrics["notes"] = _collect_notes(train, test, inputs.train_labels is None)
    checks = load_or_check(
        models,
        refs,
        config.evaluation,
        second_run,
        lambda: run_label_free_checks(models.detector, models.stage1, refs, config, second_run=second_run),
    )
    metrics |= _build_check_entries(run, checks, second_run, config)
    _require_free_output(target, models)  # Another process may have written metrics in the meantime.
    with report_write_errors(f"to {target}"), exclusive_if_possible(run.model_folder):
        models.require_unchanged()  # A refinement waits for the lock.
        make_folders(target)
        write_json(metrics, target / "metrics.json")
    return metrics


def _require_free_output(folder: Path, models: RunModels) -> None:
    """Raise if a folder is in another run, or has metrics of another model; a run may replace its own."""
    run = models.run
    if folder.resolve() == run.path.resolve():
        return
    require_own_output(folder, run.path)
    fingerprint = run_fingerprint(run, models.card)
    advice = "choose another folder with -o, or remove them"
    # The fingerprint also depends on settings of the evaluation, which may change.
    require_same_model(folder / "metrics.json", fingerprint, run.path, advice, allow_earlier=True)


def _list_named_inputs(inputs: EvaluationInputs) -> list[str | Path | None]:
    """Return all files and folders that are given by name."""
    boxes = None if inputs.regions is None else inputs.regions.boxes
    images = [*to_input_list(inputs.images), *to_input_list(inputs.train_images or ())]
    return [*images, inputs.labels, inputs.train_labels, boxes]


def _read_label_files(
    inputs: EvaluationInputs, options: EvaluationOptions, config: Config
) -> tuple[AnnotatedObjects | None, AnnotatedObjects, str]:
    """Read the labels, and leave out objects whose normalizer cannot be measured.

    Returns:
        The objects to fit regressors on, the objects to test on, and the normalizer. The first is None if the
        objects to test on are to be split in half.
    """
    images = to_input_list(inputs.images)
    assert inputs.labels is not None
    every, regions = inputs.every, inputs.regions
    test = read_labeled_inputs(LabeledInputs(images, Path(inputs.labels), every, regions), config)
    train = None
    if inputs.train_labels is not None:
        train_images = images if inputs.train_images is None else to_input_list(inputs.train_images)
        train_inputs = LabeledInputs(train_images, Path(inputs.train_labels), every, regions)
        train = read_labeled_inputs(train_inputs, config)
        train, test = keep_common_points(train, test)
    spec = options.normalizer or choose_normalizer(test)
    for name in options.by:
        _require_field(test, name)
    return None if train is None else keep_measurable(train, spec), keep_measurable(test, spec), spec


def _require_field(truth: AnnotatedObjects, name: str) -> None:
    if name not in truth.fields:
        known = ", ".join(truth.fields) or "none"
        hint = suggest(name, truth.fields)
        raise InputError(f"{truth.source} has no field '{name}' to break down by; it has: {known}.{hint}")


def check_run(
    run: Run, detector: Detector, store: ImageStore, group: ProcessGroup = SINGLE_PROCESS
) -> Metrics:
    """Run the label-free checks on a new run and write its metrics.json.

    Args:
        run: The run, opened without a process group, because the leader alone writes its files.
        detector: Its detector.
        store: Its training images.
        group: The processes that share the checks; only the leader writes.
    """
    stage1, second_run = group.run_on_all(
        lambda: (load_stage1_finder(run, detector.device), run.read_verification())
    )
    checks = run_label_free_checks(detector, stage1, store.refs, run.config, store, second_run, group)
    metrics = _build_header(run, detector.card) | _build_check_entries(run, checks, second_run, run.config)
    group.run_on_leader(lambda: write_json(metrics, run.path / "metrics.json"))
    return metrics


def _build_check_entries(run: Run, checks: Metrics, second_run: Metrics | None, config: Config) -> Metrics:
    """Return the entries of metrics.json for the label-free checks, the second run and advice."""
    return {
        "unlabelled": checks,
        "verification": second_run,
        "advice": advise(checks, len(run.refs()), config),
    }


def _build_header(run: Run, card: ModelCard) -> Metrics:
    """Return the entries of metrics.json that say what was evaluated."""
    return {
        "selfmark": __version__,
        "model": run_fingerprint(run, card),
        "run": str(run.path),
        "landmarks": list(card.names),
        "notes": [],
    }


# --- metrics ----------------------------------------------------------------------------------------------


def _measure(train: LabeledRun, test: LabeledRun, spec: str, by: Sequence[str], config: Config) -> Metrics:
    """Compute all metrics that need labels, except for the precision of keypoints.

    Args:
        train: Images to fit regressors on.
        test: Images to measure errors on.
        spec: Normalizer.
        by: Fields of the annotations; errors are measured for each of their values.
        config: Settings of images and evaluation.
    """
    settings, size = config.evaluation, config.images.size
    train_examples, test_examples = (
        build_examples(labeled.truth, labeled.predictions.xy, labeled.predictions.regions, spec, size)
        for labeled in (train, test)
    )
    stages = StageExamples(
        train=train_examples,
        test=test_examples,
        stage1_train=replace(train_examples, landmarks=train.predictions.stage1),
        stage1_test=replace(test_examples, landmarks=test.predictions.stage1),
        completed=complete_landmarks(train.predictions.stage1, settings.completion_iterations),
    )
    matched = match_annotated_points(train_examples)
    (regressed,) = forward_predictions(
        train_examples.landmarks,
        train_examples.truth,
        train_examples.visible,
        test_examples.landmarks,
        RegressorFitter.of_one(partial(fit_ridge, ridge=settings.ridge)),
    )
    names = test.truth.names
    limits, groups = _compute_hit_limits(test, config), group_by_part(names)
    score = test.predictions.score.astype(np.float64)
    detections = build_detections(test_examples.landmarks, score, matched)
    targets = TargetObjects(
        np.arange(len(test_examples)),
        test_examples.truth,
        test_examples.visible,
        _compute_object_areas(test, test_examples, size),
    )
    tables = stages.tables(settings)
    errors = stages.measure(settings, tables)
    return {
        "labels": str(test.truth.source),
        "train_labels": str(train.truth.source),
        "normaliser": spec,
        "train_images_used": len(train_examples),
        "test_images_used": len(test_examples),
        "points": list(names),
        **errors,
        "inter_ocular": measure_inter_ocular(
            stages, errors, tables, test.truth, test.predictions.regions, spec, config
        ),
        "matched": [int(landmark) for landmark in matched],
        "raw": hit_rates_by_limit(test_examples.landmarks, matched, test_examples, limits, groups),
        "regressed": hit_rates_by_limit(regressed, np.arange(len(names)), test_examples, limits, groups),
        "oks": oks_metrics(detections, targets, names, settings),
        "by": {
            name: protocol.errors_by_group(train_examples, test_examples, _group_images(test, name), settings)
            for name in by
        },
    }


def _compute_hit_limits(test: LabeledRun, config: Config) -> dict[str, FloatArray]:
    """Return the maximum distance [T] of a hit, for each definition of a hit that applies to the points.

    Distances are network pixels, NaN where unknown.
    """
    settings, size = config.evaluation, config.images.size
    pixels = settings.hit_pixels * size / settings.hit_side
    limits: dict[str, FloatArray] = {
        f"within {settings.hit_pixels:g} px at {settings.hit_side} px": np.full(len(test.truth), pixels)
    }
    regions = test.predictions.regions
    for fraction, spec, unit in (
        (settings.hit_fraction, "inter_ocular", "of the inter-ocular distance"),
        (settings.pck_fraction, "torso", "of the torso (PCK)"),
    ):
        if is_available(test.truth, spec):
            lengths = measure_unchecked_lengths(test.truth, spec, regions)
            limit = fraction * lengths * (size / region_sides(regions))
            if (limit > 0).any():
                limits[f"within {fraction:g} {unit}"] = limit
    return limits


def _compute_object_areas(test: LabeledRun, test_examples: Examples, size: int) -> FloatArray:
    """Return the area [T] of each object for OKS, in square network pixels.

    It is the area of the annotated box or, without such a box, of the tight box around the points.
    """
    scale = size / region_sides(test.predictions.regions)
    boxes = test.truth.boxes
    tight = box_normalizer(test_examples.truth, test_examples.visible) ** 2
    areas: FloatArray = np.where(np.isnan(boxes).any(axis=1), tight, boxes[:, 2] * boxes[:, 3] * scale**2)
    return areas


def _group_images(test: LabeledRun, name: str) -> list[str]:
    """Return the group of each test image: its value of a field, or the quartile of a number.

    Quartiles are used if all values are numbers and more than `_MAX_GROUPS` of them are different.
    """
    _require_field(test.truth, name)
    values = test.truth.fields[name]
    numeric = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numeric) < len(values) or len(set(values)) <= _MAX_GROUPS:
        return ["none" if value is None else str(value) for value in values]
    array = np.array(numeric, dtype=np.float64)
    edges = np.quantile(array, (0.0, 0.25, 0.5, 0.75, 1.0))
    quartile = np.clip(np.searchsorted(edges, array, side="right") - 1, 0, 3)
    names = _write_distinctly(edges)
    return [f"{names[index]} to {names[index + 1]}" for index in quartile]


def _write_distinctly(numbers: FloatArray) -> list[str]:
    """Write numbers with three digits, or with more if different numbers would look alike.

    >>> _write_distinctly(np.array([0.5, 2 / 3, 10])), _write_distinctly(np.array([1.7e9, 1.7e9 + 5e3]))
    (['0.5', '0.667', '10'], ['1700000000', '1700005000'])
    """
    num_different = len(np.unique(numbers))
    names = [f"{number:.3g}" for number in numbers]
    digits = 3
    while len(set(names)) < num_different and digits < _MAX_DIGITS:
        digits += 1
        # Two more digits than needed show how far apart the numbers are.
        precision = min(digits + 2, _MAX_DIGITS)
        rounded = [float(f"{number:.{precision}g}") for number in numbers]
        names = [f"{number:.{max(precision, 15)}g}" for number in rounded]
    return names


def _measure_run_precision(run: Run, train: LabeledRun, spec: str, config: Config) -> Metrics:
    """Return the precision of the run's first keypoints, by the name of their detector.

    The result is empty if the run has no first keypoints, or if none of its images is labeled.
    """
    if not run.has_points("first"):
        return {}
    precision = measure_first_keypoint_precision(run, train, spec, config)
    return {} if precision is None else {f"{config.keypoints.detector}, outliers removed": precision}


def _collect_notes(train: LabeledRun, test: LabeledRun, is_split: bool) -> list[str]:
    """Return notes for the user; `is_split` says that both parts are from one label file."""
    label_files = (test,) if is_split else (train, test)
    notes = list(dict.fromkeys(note for labeled in label_files for note in labeled.truth.notes))
    for labeled in label_files:
        skipped = labeled.predictions.skipped
        if skipped:
            notes.append(
                f"{describe_count(len(skipped), 'labeled image')} could not be read and "
                f"{choose_form(len(skipped), 'was', 'were')} left out; the first is {skipped[0]}"
            )
    unseen = np.flatnonzero(~train.truth.visible.any(axis=0) & test.truth.visible.any(axis=0))
    if len(unseen):
        notes.append(
            f"{describe_count(len(unseen), 'annotated point')} "
            f"{choose_form(len(unseen), 'occurs', 'occur')} in no training image and "
            f"{choose_form(len(unseen), 'was', 'were')} left out, because no "
            f"regressor could be fitted for {choose_form(len(unseen), 'it', 'them')}; the first is "
            f"'{test.truth.names[unseen[0]]}'"
        )
    if is_split:
        notes.append(
            f"Only {test.truth.source} was given, so regressors were fitted on a random half of its "
            f"{len(train.truth) + len(test.truth)} annotated objects and tested on the other half. "
            "Neighboring video frames in both halves make errors look small."
        )
    return notes
