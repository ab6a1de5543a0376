"""`selfmark evaluate`: from a run, images and their labels to metrics.json.

The labeled images are joined with what the run found in them, brought into network pixels, and handed to the
protocol. Without labels only the checks that need none are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfmark._version import __version__
from selfmark.config import Config, override
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation import protocol
from selfmark.evaluation.cached_predictions import Progress, run_fingerprint
from selfmark.evaluation.detector_precision import detector_precisions, run_keypoint_precision
from selfmark.evaluation.label_free import run_label_free_checks
from selfmark.evaluation.labeled_run import (
    EvaluationInputs,
    LabeledRun,
    build_examples,
    join_labels,
    keep_common_points,
    split_in_half,
)
from selfmark.evaluation.nme import box_normalizer, forward_prediction
from selfmark.evaluation.normalizers import default_normalizer, is_available, measurable_lengths, part_groups
from selfmark.evaluation.protocol import Examples, Figures
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.store import ImageStore
from selfmark.points import FloatArray
from selfmark.run.devices import select_device
from selfmark.run.files import write_json
from selfmark.run.folder import Run

_MOST_GROUPS = 12  # a numeric field with more values than this is cut into quarters


def evaluate_run(
    folder: str | Path,
    images: str | Path | Sequence[str | Path],
    labels: str | Path | None = None,
    train_images: str | Path | Sequence[str | Path] | None = None,
    train_labels: str | Path | None = None,
    normalizer: str = "",
    by: Sequence[str] = (),
    detectors: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Figures:
    """Measure a finished run on images, with their labels if there are any, and write metrics.json.

    Args:
        folder: run folder.
        images: folders, globs, image files, COCO files or videos to test on.
        labels: COCO keypoints of these images; None leaves only the checks that need no labels.
        train_images: images the regressors are fitted on; None takes `images`.
        train_labels: COCO keypoints of those; None fits on a random half of `labels` and tests on the other.
        normalizer: what errors are divided by (`box`, `bbox`, `inter_ocular`, `shoulders`, `torso`, `side`,
            `points:A,B`); empty takes what the label file says, else what its point names suggest.
        by: annotation fields to break the errors down by.
        detectors: generic keypoint detectors whose precision to measure.
        settings: changes to the evaluation's settings by name, e.g. `{"draws": 3}`.
        output: where metrics.json goes; None is the run folder.
        device: `auto`, `cpu`, `cuda`, ...
        on_progress: called with images done and images in all.

    Returns:
        What metrics.json holds.
    """
    run = Run.open(Path(folder))
    config = override(run.config, {f"evaluation.{name}": value for name, value in (settings or {}).items()})
    where = select_device(device)
    detector, stage1 = Detector.load(run.path, where), Stage1.load(run, where)
    if config.evaluation.flip == "never":
        detector = Detector(detector.psi, replace(detector.card, flip_test=False), where, detector.runtime)
    refs = list_images(_several(images))
    metrics = _header(run, detector) | {"images": [str(one) for one in _several(images)]}
    looked_at: Sequence[ImageRef] = refs
    if labels is None:
        if by or train_labels or normalizer or detectors:
            raise InputError("--by, --train-labels, --normalizer and --detectors need --labels")
    else:
        test = join_labels(
            run, detector, stage1, EvaluationInputs(_several(images), Path(labels)), config, on_progress
        )
        fitted_on = _several(train_images) if train_images is not None else _several(images)
        if train_labels is not None:
            fit = EvaluationInputs(fitted_on, Path(train_labels))
            train = join_labels(run, detector, stage1, fit, config, on_progress)
            train, test = keep_common_points(train, test)
        else:
            train, test = split_in_half(test, config.evaluation)
        looked_at = test.truth.refs
        spec = normalizer or default_normalizer(test.truth)
        metrics |= _measure(train, test, spec, by, config)
        metrics["precision"] = _precisions(run, train, test, spec, detectors, config, where)
        metrics["notes"] = list(_notes(train, test, train_labels is None))
    metrics["unlabelled"] = run_label_free_checks(detector, stage1, looked_at, config)
    target = Path(output) if output is not None else run.path
    try:
        target.mkdir(parents=True, exist_ok=True)
        write_json(metrics, target / "metrics.json")
    except OSError as error:
        raise InputError(f"cannot write to {target}: {error.strerror}") from error
    return metrics


def check_run(run: Run, detector: Detector, store: ImageStore) -> Figures:
    """What can be measured of a fresh run without any labels, also written to its metrics.json."""
    stage1 = Stage1.load(run, detector.device)
    metrics = _header(run, detector)
    metrics["unlabelled"] = run_label_free_checks(detector, stage1, store.refs, run.config, store)
    write_json(metrics, run.path / "metrics.json")
    return metrics


def _header(run: Run, detector: Detector) -> Figures:
    return {
        "selfmark": __version__,
        "model": run_fingerprint(run, detector.card),
        "run": str(run.path),
        "landmarks": list(detector.names),
        "notes": [],
    }


# --- figures ----------------------------------------------------------------------------------------------


def _measure(train: LabeledRun, test: LabeledRun, spec: str, by: Sequence[str], config: Config) -> Figures:
    settings, size = config.evaluation, config.images.size
    fit, judged = build_examples(train, spec, size), build_examples(test, spec, size)
    stands_for = protocol.matched_landmarks(fit)
    groups = part_groups(test.truth.names)
    limits = _limits(test, config)
    headline = protocol.regressors(replace(settings, ridges=(settings.ridge,)))[f"ridge {settings.ridge:g}"]
    regressed = forward_prediction(fit.landmarks, fit.truth, fit.visible, judged.landmarks, headline)
    return {
        "labels": str(test.truth.source),
        "train_labels": str(train.truth.source),
        "normaliser": spec,
        "train_images_used": len(fit),
        "test_images_used": len(judged),
        "points": list(test.truth.names),
        "errors": protocol.errors_by_images(fit, judged, settings),
        "guessing": protocol.guessing_errors(fit, judged),
        "headline": protocol.headline_errors(fit, judged, settings),
        "stage1": protocol.stage1_errors(fit, judged, (train.found.stage1, test.found.stage1), settings),
        "matched": [int(landmark) for landmark in stands_for],
        "raw": protocol.hit_rates_by_limit(judged.landmarks, stands_for, judged, limits, groups),
        "regressed": protocol.hit_rates_by_limit(
            regressed, np.arange(len(stands_for)), judged, limits, groups
        ),
        "oks": protocol.average_precisions(
            stands_for, judged, test.truth.names, _areas(test, judged, size), settings
        ),
        "by": {field: protocol.errors_by_group(fit, judged, _field(test, field), settings) for field in by},
    }


def _limits(test: LabeledRun, config: Config) -> dict[str, FloatArray]:
    """How far off a hit may be in each image, NaN where that cannot be told: by pixels, by eyes, by torso."""
    settings, size = config.evaluation, config.images.size
    pixels = settings.hit_pixels * size / settings.hit_side
    limits: dict[str, FloatArray] = {
        f"within {settings.hit_pixels:g} px at {settings.hit_side} px": np.full(len(test.truth), pixels)
    }
    regions = test.found.regions
    for share, spec, words in (
        (settings.hit_fraction, "inter_ocular", "of the inter-ocular distance"),
        (settings.pck_fraction, "torso", "of the torso (PCK)"),
    ):
        if is_available(test.truth, spec):
            length = share * measurable_lengths(test.truth, spec, regions) * (size / regions[:, 2])
            if (length > 0).any():
                limits[f"within {share:g} {words}"] = length
    return limits


def _areas(test: LabeledRun, judged: Examples, size: int) -> FloatArray:
    """Area of each object for OKS: of its annotated box, or where there is none of its points' box."""
    scale = size / test.found.regions[:, 2]
    boxes = test.truth.boxes
    tight = box_normalizer(judged.truth, judged.visible) ** 2
    areas: FloatArray = np.where(np.isnan(boxes).any(axis=1), tight, boxes[:, 2] * boxes[:, 3] * scale**2)
    return areas


def _field(test: LabeledRun, field: str) -> list[str]:
    """The value of an annotation field for each test image; many different numbers are cut into quarters."""
    if field not in test.truth.fields:
        known = ", ".join(test.truth.fields) or "none"
        raise InputError(f"{test.truth.source} has no field '{field}' to break down by; it has: {known}")
    values = test.truth.fields[field]
    numeric = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numeric) < len(values) or len(set(values)) <= _MOST_GROUPS:
        return ["none" if value is None else str(value) for value in values]
    array = np.array(numeric, dtype=np.float64)
    edges = np.quantile(array, (0.0, 0.25, 0.5, 0.75, 1.0))
    quarter = np.clip(np.searchsorted(edges, array, side="right") - 1, 0, 3)
    return [f"{edges[q]:.3g} to {edges[q + 1]:.3g}" for q in quarter]


def _notes(train: LabeledRun, test: LabeledRun, halves: bool) -> list[str]:
    sides = (test,) if halves else (train, test)
    notes = [note for side in sides for note in side.truth.notes]
    for side in sides:
        if side.found.skipped:
            notes.append(
                f"{len(side.found.skipped)} labeled images could not be read and were left out, "
                f"first {side.found.skipped[0]}"
            )
    unseen = np.flatnonzero(~train.truth.visible.any(axis=0) & test.truth.visible.any(axis=0))
    if len(unseen):
        notes.append(
            f"'{test.truth.names[unseen[0]]}' and {len(unseen) - 1} other points are annotated in no "
            "training image, so no regressor could be fitted to them and they were left out."
        )
    if halves:
        notes.append(
            f"Only {test.truth.source} was given, so regressors were fitted on a random half of its "
            f"{len(train.truth) + len(test.truth)} images and tested on the other; neighboring video frames "
            "in both halves make errors look small."
        )
    return notes


def _precisions(
    run: Run,
    train: LabeledRun,
    test: LabeledRun,
    spec: str,
    detectors: Sequence[str],
    config: Config,
    device: torch.device,
) -> Figures:
    """Share of keypoints near an annotated point, in percent: the run's own, and of detectors asked for."""
    own = run_keypoint_precision(run, train, spec, config)
    figures: Figures = {} if own is None else {f"{config.keypoints.detector}, outliers removed": own}
    if detectors:
        figures |= detector_precisions(test.truth, spec, detectors, config, device, run.path)
    return figures


def _several(named: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [named] if isinstance(named, (str, Path)) else list(named)
