"""What is measured without Stage 2: precision of first keypoints, errors of Stage 1, also round by round."""

from __future__ import annotations

import torch

from selfmark.correspondence.describe import describe_images
from selfmark.correspondence.recovery import fit_centroids
from selfmark.evaluation import protocol
from selfmark.evaluation.detector_precision import detector_precisions
from selfmark.evaluation.labeled_images import LabeledImages
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.normalizers import default_normalizer
from selfmark.evaluation.stage1_landmarks import Stage1, find_stage1_landmarks, load_phi
from selfmark.images.feed import PixelFeed
from selfmark.images.store import load_store
from selfmark.paper.reproduction.measurement_task import MeasurementTask, load_task_images, read_labels
from selfmark.paper.reproduction.table_metrics import Figures
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors


def measure_precision(study: MeasurementTask) -> Figures:
    """Of the detectors asked for, on the test images."""
    truth = read_labels(study.test, study.config)
    found = detector_precisions(
        truth, default_normalizer(truth), study.detectors, study.config, study.device, study.folder
    )
    return {"precision": found}


def measure_stage1_errors(study: MeasurementTask) -> Figures:
    """Of Stage 1 after its last clustering; the same numbers that `evaluate_run` has under "stage1"."""
    stage1 = Stage1.load(Run.open(study.trained), study.device)
    return _errors(study, stage1, load_task_images(study, study.fit), load_task_images(study, study.test))


def measure_errors_by_round(study: MeasurementTask) -> Figures:
    """Of Stage 1 as it was after each round, its training images clustered anew with K each time."""
    run = Run.open(study.trained)
    fit, test = load_task_images(study, study.fit), load_task_images(study, study.test)
    images = load_store(run.refs(), run.config.images, run.config.runtime.store_gigabytes, study.folder)
    feed = PixelFeed(images.pixels, study.device, run.config.runtime.device_fraction)
    rounds = [
        _errors(study, _after(run, number, feed), fit, test)
        for number in range(1, run.config.rounds.count + 1)
    ]
    return {"rounds": rounds}


def _after(run: Run, number: int, feed: PixelFeed) -> Stage1:
    """Stage 1 with the weights that a round ended with."""
    path = run.round_weights_path(number)
    weights, _ = read_tensors(path)
    phi = load_phi(run, weights, path, feed.device)
    described = describe_images(phi, feed, run.config)
    generator = torch.Generator(feed.device).manual_seed(run.config.seed)
    centroids = fit_centroids(described, run.config.K, run.config.correspondence, generator)
    return Stage1(phi, centroids, run.config, feed.device)


def _errors(study: MeasurementTask, stage1: Stage1, fit: LabeledImages, test: LabeledImages) -> Figures:
    spec, size, settings = default_normalizer(test.truth), study.config.images.size, study.config.evaluation
    train, judged = (
        build_examples(
            shown.truth,
            find_stage1_landmarks(stage1, shown.store.pixels).xy,
            shown.store.regions,
            spec,
            size,
        )
        for shown in (fit, test)
    )
    return {
        "headline": {"regressor": f"ridge {settings.ridge:g}"},
        "stage1": protocol.stage1_errors(train, judged, settings),
    }
