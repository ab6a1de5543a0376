"""Try a correction of the appearance error for the inexact places that the check of appearance finds.

    PYTHONPATH=src:benchmarks:benchmarks/trust python benchmarks/trust/noise_floor.py RUNS.json OUTPUT.json

RUNS.json is the file that `trust_model.py --later` extends. The check of appearance predicts a landmark from
places that are found in a coarse grid of features. Their inexactness adds to the error of the landmark, most
where landmarks move little, as on aligned faces. The correction subtracts it from the square of the
appearance error a: a' = sqrt(a^2 - (noise / spread)^2). The spread is the mean distance of the landmark from
its mean position. Noise and spread are fractions of the side of the image.

The weights are fitted to the later runs on the other data sets. The noise and the quantile of the best
landmarks are not: the table shows all combinations, so its best row is too optimistic.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from trust_model import MAX_ERROR, judge_forward_share, solve_weighted_ridge

from selfmark.config import Evaluation
from selfmark.points import FloatArray
from selfmark.run.files import read_json, write_json

NOISE = (0.0, 0.008, 0.012, 0.016, 0.02, 0.024)
BEST_FRACTIONS = (0.1, 0.25)


def main() -> None:
    """Write the table for the later runs of a file."""
    content = read_json(Path(sys.argv[1]))
    runs = content["later_runs"]
    rows = [try_correction(runs, noise, best) for noise in NOISE for best in BEST_FRACTIONS]
    about = {"script": "benchmarks/trust/noise_floor.py", "runs": len(runs)}
    write_json(about | {"made_with": content["later_made_with"], "rows": rows}, Path(sys.argv[2]))


def try_correction(runs: list[dict[str, Any]], noise: float, best_fraction: float) -> dict[str, Any]:
    """Judge the runs on each data set with weights fitted to the runs on the others.

    Args:
        runs: runs that `trust_model.gather_runs` returned.
        noise: inexactness of the places, as a fraction of the image's side; 0 corrects nothing.
        best_fraction: quantile of the expected errors by which a run is judged.
    """
    spearman, relative, num_right = [], [], 0
    for name in sorted({run["data"] for run in runs}):
        others = [run for run in runs if run["data"] != name]
        weights = _fit_landmarks(others, noise)
        line = _fit_line(others, weights, noise, best_fraction)
        left_out = [run for run in runs if run["data"] == name]
        expected_errors = [_expect_errors(run, weights, noise) for run in left_out]
        truth = np.concatenate([run["landmark_shares"] for run in left_out])
        spearman.append(spearmanr(np.concatenate(expected_errors), truth)[0])
        for run, errors in zip(left_out, expected_errors, strict=True):
            expected = float(line[0] + line[1] * np.quantile(errors, best_fraction))
            verdicts = [
                judge_forward_share(error, Evaluation()) for error in (expected, run["forward_share"])
            ]
            num_right += verdicts[0] == verdicts[1]
            relative.append(abs(expected / run["forward_share"] - 1))
    return {
        "noise": noise,
        "best_fraction": best_fraction,
        "verdicts_right": num_right,
        "relative_error": round(float(np.median(relative)), 3),
        "spearman_mean": round(float(np.mean(spearman)), 3),
    }


def correct_error(error: FloatArray, spread: FloatArray, noise: float) -> FloatArray:
    """Subtract the share of inexact places from appearance errors.

    >>> correct_error(np.array([0.5, 0.2]), np.array([0.05, 0.05]), 0.02).round(6).tolist()
    [0.3, 0.0]
    """
    share = noise / np.maximum(spread, 1e-3)
    corrected: FloatArray = np.sqrt(np.clip(error**2 - share**2, 0, 1))
    return corrected


def _build_columns(run: dict[str, Any], noise: float) -> FloatArray:
    """Return the inputs of the regression, [K, 3]; unknown checks count as failed."""
    stable = np.nan_to_num(np.array(run["stable"], float), nan=0.0)
    error = np.clip(np.nan_to_num(np.array(run["appearance_error"], float), nan=1.0), 0, 1)
    corrected = correct_error(error, np.array(run["spread"], float), noise)
    return np.stack([np.ones(len(stable)), 1 - stable, corrected], axis=1)


def _expect_errors(run: dict[str, Any], weights: FloatArray, noise: float) -> FloatArray:
    expected: FloatArray = np.maximum(_build_columns(run, noise) @ weights, 0)
    return expected


def _fit_landmarks(runs: list[dict[str, Any]], noise: float) -> FloatArray:
    targets = [np.clip(np.array(run["landmark_shares"]), 0, MAX_ERROR) for run in runs]
    return solve_weighted_ridge([_build_columns(run, noise) for run in runs], targets)


def _fit_line(
    runs: list[dict[str, Any]], weights: FloatArray, noise: float, best_fraction: float
) -> FloatArray:
    best = [np.quantile(_expect_errors(run, weights, noise), best_fraction) for run in runs]
    forward = np.clip([run["forward_share"] for run in runs], 0, MAX_ERROR)
    line: FloatArray = np.linalg.lstsq(np.stack([np.ones(len(best)), best], axis=1), forward, rcond=None)[0]
    return line


if __name__ == "__main__":
    main()
