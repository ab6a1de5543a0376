"""What is measured without Stage 2: precision of first keypoints, errors of Stage 1, also round by round."""

from __future__ import annotations

import numpy as np
import torch

from selfmark.correspondence.describe import describe
from selfmark.correspondence.recovery import centroids_of
from selfmark.evaluate import protocol
from selfmark.evaluate.detectors import detector_precisions
from selfmark.evaluate.labelled import Labelled, examples
from selfmark.evaluate.normalise import default_spec
from selfmark.evaluate.predictions import Predictions
from selfmark.evaluate.shown import Shown
from selfmark.evaluate.stage1 import Stage1, phi_of, stage1_landmarks
from selfmark.images.store import load_store
from selfmark.reproduce.metrics import Figures
from selfmark.reproduce.study import Study, read_truth, show
from selfmark.run import Run
from selfmark.train.checkpoint import read_tensors
from selfmark.train.feed import PixelFeed


def precisions(study: Study) -> Figures:
    """Of the detectors asked for, on the test images."""
    truth = read_truth(study.test, study.config)
    found = detector_precisions(
        truth, default_spec(truth), study.detectors, study.config, study.device, study.folder
    )
    return {"precision": found}


def errors(study: Study) -> Figures:
    """Of Stage 1 after its last clustering; the same numbers that `evaluate_run` has under "stage1"."""
    stage1 = Stage1.load(Run.open(study.trained), study.device)
    return _errors(study, stage1, show(study, study.fit), show(study, study.test))


def by_round(study: Study) -> Figures:
    """Of Stage 1 as it was after each round, its training images clustered anew with K each time."""
    run = Run.open(study.trained)
    fit, test = show(study, study.fit), show(study, study.test)
    images = load_store(run.refs(), run.config.images, run.config.runtime.store_gigabytes, study.folder)
    feed = PixelFeed(images.pixels, study.device, run.config.runtime.device_share)
    rounds = [
        _errors(study, _after(run, number, feed), fit, test)
        for number in range(1, run.config.rounds.count + 1)
    ]
    return {"rounds": rounds}


def _after(run: Run, number: int, feed: PixelFeed) -> Stage1:
    """Stage 1 with the weights that a round ended with."""
    path = run.round_weights(number)
    weights, _ = read_tensors(path)
    phi = phi_of(run, weights, path, feed.device)
    described = describe(phi, feed, run.config)
    generator = torch.Generator(feed.device).manual_seed(run.config.seed)
    centroids = centroids_of(described, run.config.K, run.config.correspondence, generator)
    return Stage1(phi, centroids, run.config, feed.device)


def _errors(study: Study, stage1: Stage1, fit: Shown, test: Shown) -> Figures:
    spec, size, settings = default_spec(test.truth), study.config.images.size, study.config.evaluation
    found = [_labelled(stage1, shown) for shown in (fit, test)]
    train, judged = (examples(one, spec, size) for one in found)
    return {
        "headline": {"regressor": f"ridge {settings.ridge:g}"},
        "stage1": protocol.stage1_errors(
            train, judged, (found[0].found.stage1, found[1].found.stage1), settings
        ),
    }


def _labelled(stage1: Stage1, shown: Shown) -> Labelled:
    """Labels with what Stage 1 found; of Stage 2, which nothing here asks for, zeros."""
    xy = stage1_landmarks(stage1, shown.store.pixels).xy
    nothing = np.zeros(xy.shape, np.float32)
    rows = np.arange(len(xy))
    return Labelled(shown.truth, Predictions(rows, nothing, nothing[..., 0], xy, shown.store.regions, ()))
