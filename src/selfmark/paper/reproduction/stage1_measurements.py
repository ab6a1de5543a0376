"""Measure without Stage 2: precision of first keypoints, errors of Stage 1, and errors of each round."""

from __future__ import annotations

from dataclasses import replace

import torch

from selfmark.correspondence.describe import describe_images
from selfmark.correspondence.recovery import fit_centroids
from selfmark.evaluation import protocol
from selfmark.evaluation.completion import complete_landmarks
from selfmark.evaluation.detector_precision import measure_detector_precisions
from selfmark.evaluation.inter_ocular import measure_by_definition
from selfmark.evaluation.labeled_images import LabeledImages
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.nme import IntArray
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.stage1_landmarks import Stage1, find_stage1_landmarks, load_phi
from selfmark.images.feed import PixelFeed
from selfmark.images.store import load_store
from selfmark.paper.reproduction.measurement_task import MeasurementTask, load_task_images, read_labels
from selfmark.paper.reproduction.table_metrics import Results
from selfmark.points import FloatArray
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors


def measure_precision(task: MeasurementTask) -> Results:
    """Measure the precision of generic keypoint detectors on the test images."""
    truth = read_labels(task.test, task.config)
    precision = measure_detector_precisions(
        truth, choose_normalizer(truth), task.detectors, task.config, task.device, task.folder
    )
    return {"precision": precision}


def measure_stage1_errors(task: MeasurementTask) -> Results:
    """Measure the errors of Stage 1 after its last clustering, as `evaluate_run` does under "stage1"."""
    stage1 = Stage1.load(Run.open(task.run_folder), task.device)
    return _measure_errors(task, stage1, load_task_images(task, task.fit), load_task_images(task, task.test))


def measure_errors_by_round(task: MeasurementTask) -> Results:
    """Measure the errors of Stage 1 after each round; descriptors are clustered again each time."""
    run = Run.open(task.run_folder)
    fit, test = load_task_images(task, task.fit), load_task_images(task, task.test)
    images = load_store(run.refs(), run.config.images, run.config.runtime.store_gigabytes, task.folder)
    feed = PixelFeed(images.pixels, task.device, run.config.runtime.device_fraction)
    rounds = [
        _measure_errors(task, _load_round(run, number, feed), fit, test)
        for number in range(1, run.config.rounds.count + 1)
    ]
    return {"rounds": rounds}


def _load_round(run: Run, number: int, feed: PixelFeed) -> Stage1:
    """Return Stage 1 with the weights from the end of a round.

    The descriptors in the training images are grouped into K clusters again.
    """
    path = run.round_weights_path(number)
    weights, _ = read_tensors(path)
    phi = load_phi(run, weights, path, feed.device)
    described = describe_images(phi, feed, run.config)
    generator = torch.Generator(feed.device).manual_seed(run.config.seed)
    centroids = fit_centroids(described, run.config.K, run.config.correspondence, generator)
    return Stage1(phi, centroids, run.config, feed.device)


def _measure_errors(
    task: MeasurementTask, stage1: Stage1, fit: LabeledImages, test: LabeledImages
) -> Results:
    """Fit regressors on the images `fit` and return the errors on the images `test`."""
    normalizer_name = choose_normalizer(test.truth)
    size, settings = task.config.images.size, task.config.evaluation
    fit_examples, test_examples = (
        build_examples(
            images.truth,
            find_stage1_landmarks(stage1, images.store.pixels).xy,
            images.store.regions,
            normalizer_name,
            size,
        )
        for images in (fit, test)
    )
    completed = complete_landmarks(fit_examples.landmarks, settings.completion_iterations)
    tables = protocol.stage1_tables(fit_examples, test_examples, settings, completed)

    def measure_with_lengths(_: str, rows: IntArray, lengths: FloatArray) -> Results:
        selected = replace(test_examples.select(rows), normalizer=lengths)
        rescaled = tables.rescale(rows, test_examples.normalizer[rows] / lengths)
        return {"stage1": protocol.stage1_errors(fit_examples, selected, settings, completed, rescaled)}

    return {
        "headline": {"regressor": f"ridge {settings.ridge:g}"},
        "normaliser": normalizer_name,
        "stage1": protocol.stage1_errors(fit_examples, test_examples, settings, completed, tables),
        "inter_ocular": measure_by_definition(test.truth, test.store.regions, size, measure_with_lengths),
    }
