"""Judge a whole run without labels: good, usable or failed."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from selfmark.config import Evaluation
from selfmark.model.card import Verdict
from selfmark.points import FloatArray


class RunVerdict(NamedTuple):
    """How a run turned out.

    verdict:          good, usable or failed
    expected_forward: expected error of predicting annotated points from landmarks (the forward error),
                      divided by the error of guessing their mean positions
    """

    verdict: Verdict
    expected_forward: float


def judge_run(expected_error: FloatArray, missed_movement: float, settings: Evaluation) -> RunVerdict:
    """Judge a run by its best landmarks, or by the parts of the object that its landmarks predict.

    The error of the best landmarks is the quantile `best_fraction` of the expected errors. Runs without
    features are judged by `missed_movement`, which also counts what all landmarks know together.

    Args:
        expected_error: [K] expected error of each landmark, see `trust`.
        missed_movement: see `reference_parts.measure_missed_movement`; NaN if it was not measured.
        settings: weights that turn one of these into a forward error, and the limits of the verdicts.

    >>> judge_run(np.array([0.1, 0.9]), math.nan, Evaluation()).verdict
    'good'
    >>> judge_run(np.array([0.1, 0.9]), 1.0, Evaluation()).verdict
    'failed'
    """
    if math.isnan(missed_movement):
        error_of_best = float(np.quantile(expected_error, settings.best_fraction))
        constant, factor = settings.run_error_weights
        forward = constant + factor * error_of_best
    else:
        forward = settings.missed_movement_weight * missed_movement
    verdict: Verdict = "usable"
    if forward <= settings.good_error:
        verdict = "good"
    elif forward >= settings.failed_error:
        verdict = "failed"
    return RunVerdict(verdict, round(forward, 4))
