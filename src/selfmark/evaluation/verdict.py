"""Judge a whole run without labels: good, usable or failed."""

from __future__ import annotations

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


def judge_run(expected_error: FloatArray, settings: Evaluation) -> RunVerdict:
    """Judge a run by its best landmarks, which decide how well annotated points can be predicted.

    The error of the best landmarks is the quantile `best_fraction` of the expected errors.

    Args:
        expected_error: [K] expected error of each landmark, see `trust`.
        settings: weights that turn this error into a forward error, and the limits of the verdicts.

    >>> judge_run(np.array([0.1, 0.9]), Evaluation()).verdict
    'good'
    """
    error_of_best = float(np.quantile(expected_error, settings.best_fraction))
    constant, factor = settings.run_error_weights
    forward = constant + factor * error_of_best
    verdict: Verdict = "usable"
    if forward <= settings.good_error:
        verdict = "good"
    elif forward >= settings.failed_error:
        verdict = "failed"
    return RunVerdict(verdict, round(forward, 4))
