"""Fit the weights of trust and verdict, and measure how well they work on data sets left out of the fit.

    PYTHONPATH=src:benchmarks python benchmarks/trust/trust_model.py --gather PART OUT RUNS.json
    PYTHONPATH=src:benchmarks python benchmarks/trust/trust_model.py RUNS.json OUTPUT.json

The first command stores the runs that `calibration_runs.py` wrote to OUT as one part of RUNS.json:

- `runs`: the weights are fitted to these runs.
- `confirmation_runs`: runs with another seed, made after everything else was decided.
- `verified_runs`: verified runs, to which only the weights of verified runs are fitted.

The second command leaves out each data set in turn: it fits the weights to the runs on the other data sets,
and compares trust and verdict of the left-out runs, and of the confirmation runs on this data set, with their
true errors. The weights in the settings (`evaluation.error_weights` and others) are those fitted to all
`runs` and `verified_runs`. The choices of recipes are stored in RUNS.json, too.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, spearmanr

from selfmark.config import Evaluation
from selfmark.evaluation.trust import LandmarkTrust, TrustEvidence, judge_landmarks
from selfmark.evaluation.verdict import judge_run
from selfmark.model.card import GOOD_TRUST, MIN_TRUST
from selfmark.points import FloatArray
from selfmark.run.files import read_json, write_json

CHECKS = ("stable", "appearance_error", "unexplained", "found")
MAX_ERROR = 1.2  # higher errors are clipped, because the landmark is useless anyway
RIDGE = 1e-4
ESTIMATE_ERRORS = (0.05, 0.1, 0.15, 0.2)  # relative errors of an estimate of the forward error
AUTO_RECIPES = {  # the recipe that `--recipe auto` chooses for each data set
    "birds-cub": "upright",
    "faces-yt68": "upright",
    "flies-dpk": "any-orientation",
    "flies-pair-video": "any-orientation",
    "mouse-openfield": "any-orientation",
}


PARTS = ("runs", "confirmation_runs", "verified_runs")


class Weights(NamedTuple):
    """Fitted weights, named like the settings in `Evaluation`."""

    error_weights: tuple[float, ...]
    run_error_weights: tuple[float, ...]
    missed_movement_weight: float


def main() -> None:
    """Gather the runs, or fit the weights to them."""
    if sys.argv[1] == "--gather":
        part, folder, path = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
        if part not in PARTS:
            raise SystemExit(f"'{part}' is not one of {', '.join(PARTS)}")
        write_json(read_json(path) | {part: gather_runs(folder)}, path)
        return
    content = read_json(Path(sys.argv[1]))
    about = {"script": "benchmarks/trust/trust_model.py", "made_with": content["made_with"]}
    result = measure(content["runs"]) | measure_recipes(content["recipes"])
    write_json(
        about
        | result
        | {
            "verified_runs": measure_verified(content["verified_runs"]),
            "confirmation_runs": measure_confirmation(content),
        },
        Path(sys.argv[2]),
    )


def gather_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the checks and true errors of all runs of a folder."""
    runs = [read_json(path) for path in sorted(folder.glob("*.json"))]
    return [_select_values(run) for run in runs if "error" not in run]


def _select_values(run: dict[str, Any]) -> dict[str, Any]:
    checks = {name: _round_values(run["checks"][name]) for name in CHECKS}
    second = None if run["verification"] is None else _round_values(run["verification"]["backward_shares"])
    return {
        "data": run["data"],
        "variant": run["variant"],
        "images": run["images"],
        "forward_share": round(run["forward_share"], 4),
        "backward_share": round(run["backward_share"], 4),
        "landmark_shares": _round_values(run["landmark_shares"]),
        "second_run_error": second,
        "kind_separation": _round_values([run["checks"]["kind_separation"]], 3)[0],
        "missed_movement": _round_values([run["checks"]["missed_movement"]])[0],
        "duplicates": run["checks"]["duplicates"],
        **checks,
    }


def _round_values(values: list[float | None], digits: int = 4) -> list[float | None]:
    return [None if value is None else round(value, digits) for value in values]


def measure(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Leave out each data set once; return Spearman correlations, verdicts, and weights fitted to all runs.

    Args:
        runs: runs that `gather_runs` returned.
    """
    judged = judge_left_out(runs, runs)
    forward = np.array([run["forward_share"] for run in runs])
    return {
        **_summarize(judged),
        "attainable_accuracy": {
            str(error): compute_attainable_accuracy(forward, error) for error in ESTIMATE_ERRORS
        },
        "mixed_kinds_noticed": _notice_mixed_kinds(runs),
        "weights": fit_weights(runs)._asdict(),
    }


def measure_confirmation(content: dict[str, Any]) -> dict[str, Any]:
    """Judge runs that were made last with weights fitted to the earlier runs on the other data sets."""
    result = _summarize(judge_left_out(content["runs"], content["confirmation_runs"]))
    return {"made_with": content["confirmation_made_with"]} | result


def measure_verified(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Leave out each data set once; return how well trust ranks landmarks with and without a second run."""
    spearman: dict[str, list[float]] = {"without": [], "with": []}
    for name in sorted({run["data"] for run in runs}):
        left_out = [run for run in runs if run["data"] == name and run["second_run_error"] is not None]
        if not left_out:
            continue
        others = [run for run in runs if run["data"] != name]
        truth = np.concatenate([run["landmark_shares"] for run in left_out])
        for key, is_verified in (("without", False), ("with", True)):
            weights = fit_landmark_weights(others, is_verified=is_verified)
            settings = replace(Evaluation(), **{_name_of_weights(is_verified): weights})
            trust = [judge_landmarks(_build_evidence(run, is_verified), settings).trust for run in left_out]
            spearman[key].append(_correlate(np.concatenate(trust), truth))
    return {
        "runs": sum(run["second_run_error"] is not None for run in runs),
        "spearman_left_out_mean": {key: round(float(np.mean(rows)), 4) for key, rows in spearman.items()},
        "weights": {"verified_error_weights": fit_landmark_weights(runs, is_verified=True)},
    }


def _name_of_weights(is_verified: bool) -> str:
    return "verified_error_weights" if is_verified else "error_weights"


class JudgedRun(NamedTuple):
    """A run, judged with weights that were fitted to runs on other data sets."""

    run: dict[str, Any]
    trust: LandmarkTrust
    expected_forward: float
    verdict: str


def judge_left_out(runs: list[dict[str, Any]], judged_runs: list[dict[str, Any]]) -> list[JudgedRun]:
    """Judge runs, each with weights that are fitted to those of `runs` that are on other data sets."""
    judged = []
    for name in sorted({run["data"] for run in judged_runs}):
        settings = replace(
            Evaluation(), **fit_weights([run for run in runs if run["data"] != name])._asdict()
        )
        for run in (run for run in judged_runs if run["data"] == name):
            trust = judge_landmarks(_build_evidence(run, is_verified=False), settings)
            verdict, expected = judge_run(trust.expected_error, _missed_movement(run), settings)
            judged.append(JudgedRun(run, trust, expected, verdict))
    return judged


def _summarize(judged: list[JudgedRun]) -> dict[str, Any]:
    """Return how well trust and verdict agree with the true errors."""
    rows = [
        {
            **{key: item.run[key] for key in ("data", "variant", "images", "forward_share")},
            "expected_forward": round(item.expected_forward, 3),
            "verdict": item.verdict,
            "true_verdict": judge_forward_share(item.run["forward_share"], Evaluation()),
        }
        for item in judged
    ]
    has_features = np.array([item.run["missed_movement"] is None for item in judged])
    is_right = np.array([row["verdict"] == row["true_verdict"] for row in rows])
    relative = np.array([row["expected_forward"] / row["forward_share"] for row in rows])
    spearman = {
        name: _correlate(
            np.concatenate([item.trust.trust for item in judged if item.run["data"] == name]),
            np.concatenate([item.run["landmark_shares"] for item in judged if item.run["data"] == name]),
        )
        for name in sorted({item.run["data"] for item in judged})
    }
    within_runs = [_correlate(item.trust.trust, np.array(item.run["landmark_shares"])) for item in judged]
    levels = [np.stack([item.trust.trust, item.run["landmark_shares"]]) for item in judged]
    return {
        "runs": len(rows),
        "landmarks": sum(len(item.run["landmark_shares"]) for item in judged),
        "spearman_left_out": spearman,
        "spearman_left_out_mean": round(float(np.mean(list(spearman.values()))), 4),
        "spearman_within_runs_mean": round(float(np.nanmean(within_runs)), 4),
        "levels": _measure_levels(*np.concatenate(levels, axis=1)),
        "verdict_accuracy": _mean(is_right),
        "verdict_accuracy_with_features": _mean(is_right[has_features]),
        "verdict_accuracy_without_features": _mean(is_right[~has_features]),
        "relative_error_of_expected_forward": round(float(np.median(np.abs(relative - 1))), 4),
        "verdicts_good_for_failed": _count_confused(rows),
        "verdicts_missed": [row for row, right in zip(rows, is_right, strict=True) if not right],
        "verdicts": rows,
    }


def compute_attainable_accuracy(forward: FloatArray, relative_error: float) -> float:
    """Compute how often the verdict is right if the expected forward error is inexact, but unbiased.

    Args:
        forward: [N] true forward errors of the runs, divided by those of guessing.
        relative_error: standard deviation of the logarithm of the expected error; about the relative error.

    Returns:
        Probability that the expected error is on the same side of both limits as the true one, averaged over
        the runs.

    >>> compute_attainable_accuracy(np.array([0.3, 0.001]), 0.1)
    0.75
    """
    limits = np.log([Evaluation().good_error, Evaluation().failed_error])
    distance = (limits - np.log(forward)[:, None]) / relative_error
    is_below = np.log(forward)[:, None] <= limits
    is_good, is_not_failed = norm.cdf(distance).T
    probability = np.where(
        is_below[:, 0], is_good, np.where(is_below[:, 1], is_not_failed - is_good, 1 - is_not_failed)
    )
    return round(float(probability.mean()), 4)


def _mean(values: npt.NDArray[np.bool_]) -> float | None:
    return round(float(values.mean()), 4) if len(values) else None


def _count_confused(rows: list[dict[str, Any]]) -> int:
    """Count the good runs that are called failed, and the failed runs that are called good."""
    return sum({row["verdict"], row["true_verdict"]} == {"good", "failed"} for row in rows)


def _measure_levels(trust: FloatArray, error: FloatArray) -> dict[str, dict[str, float]]:
    """Return the number of landmarks at each level of trust, and the fraction with a small true error."""
    levels = {
        "trustworthy": trust >= GOOD_TRUST,
        "use with care": (trust >= MIN_TRUST) & (trust < GOOD_TRUST),
        "do not rely on": trust < MIN_TRUST,
    }
    return {
        name: {
            "landmarks": int(members.sum()),
            "error_below_half": round(float((error[members] < 0.5).mean()), 4),
        }
        for name, members in levels.items()
    }


def _notice_mixed_kinds(runs: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return which runs on two kinds of objects were noticed, which were missed, and the false alarms."""
    limit = Evaluation().max_kind_separation
    result: dict[str, list[str]] = {"noticed": [], "missed": [], "false_alarms": []}
    for run in runs:
        is_mixed, is_noticed = run["variant"] == "mixed", (run["kind_separation"] or 0) > limit
        title = f"{run['data']}, {run['variant']}"
        if is_mixed:
            result["noticed" if is_noticed else "missed"].append(title)
        elif is_noticed:
            result["false_alarms"].append(title)
    return result


def judge_forward_share(forward_share: float, settings: Evaluation) -> str:
    """Return the true verdict of a run from its forward error divided by that of guessing."""
    if forward_share <= settings.good_error:
        return "good"
    return "failed" if forward_share >= settings.failed_error else "usable"


def fit_weights(runs: list[dict[str, Any]]) -> Weights:
    """Fit the weights of the expected error of landmarks, then those of the expected forward error of runs.

    The line from the best landmarks to the forward error is fitted to all runs, because hardly any run with
    features fails. The weight of the missed movement is fitted to the runs in which it was measured.

    Args:
        runs: runs that `gather_runs` returned.
    """
    weights = fit_landmark_weights(runs, is_verified=False)
    best_errors, missed = [], []
    for run in runs:
        forward = min(run["forward_share"], MAX_ERROR)
        settings = Evaluation(error_weights=weights)
        errors = judge_landmarks(_build_evidence(run, is_verified=False), settings).expected_error
        best_errors.append((float(np.quantile(errors, Evaluation().best_fraction)), forward))
        if run["missed_movement"] is not None:
            missed.append((run["missed_movement"], forward))
    return Weights(weights, _fit_line(best_errors), _fit_slope(missed))


def fit_landmark_weights(runs: list[dict[str, Any]], *, is_verified: bool) -> tuple[float, ...]:
    """Fit the weights of the expected error of landmarks.

    Args:
        runs: runs that `gather_runs` returned.
        is_verified: whether the second run is part of the evidence. Runs without one are then left out.
    """
    if is_verified:
        runs = [run for run in runs if run["second_run_error"] is not None]
    targets = [np.clip(np.array(run["landmark_shares"]), 0, MAX_ERROR) for run in runs]
    return _round_weights(solve_weighted_ridge([_build_columns(run, is_verified) for run in runs], targets))


def _fit_line(pairs: list[tuple[float, float]]) -> tuple[float, ...]:
    """Return constant and slope of the line through pairs of evidence and forward error."""
    evidence, forward = np.array(pairs).T
    inputs = np.stack([np.ones(len(evidence)), evidence], axis=1)
    return _round_weights(np.linalg.lstsq(inputs, forward, rcond=None)[0])


def _fit_slope(pairs: list[tuple[float, float]]) -> float:
    """Return the slope of the line through zero and pairs of evidence and forward error."""
    evidence, forward = np.array(pairs).T
    return round(float(evidence @ forward / (evidence @ evidence)), 2)


def _round_weights(values: FloatArray) -> tuple[float, ...]:
    return tuple(round(float(value), 2) for value in values)


def solve_weighted_ridge(inputs: list[FloatArray], targets: list[FloatArray]) -> FloatArray:
    """Fit landmarks by ridge regression; every run has the same total weight.

    Args:
        inputs: [K, C] inputs of the landmarks of each run; the first column is 1 and is not penalized.
        targets: [K] errors of the landmarks of each run.

    Returns:
        [C] weights.
    """
    weight = np.concatenate([np.full(len(target), 1 / len(target)) for target in targets])
    stacked = np.concatenate(inputs)
    penalty = RIDGE * len(inputs) * np.diag([0.0] + [1.0] * (stacked.shape[1] - 1))
    gram = (stacked * weight[:, None]).T @ stacked + penalty
    solution: FloatArray = np.linalg.solve(gram, (stacked * weight[:, None]).T @ np.concatenate(targets))
    return solution


def _build_columns(run: dict[str, Any], is_verified: bool) -> FloatArray:
    """Return the inputs of the regression, [K, 3 or 4]: 1 and the evidence of each landmark, 0 to 1."""
    evidence = _build_evidence(run, is_verified)
    columns = [1 - np.nan_to_num(evidence.stable, nan=0.0), evidence.appearance_error]
    if evidence.second_run_error is not None:
        columns.append(evidence.second_run_error)
    clipped = [np.clip(np.nan_to_num(column, nan=1.0), 0, 1) for column in columns]
    return np.stack([np.ones(len(clipped[0])), *clipped], axis=1)


def _build_evidence(run: dict[str, Any], is_verified: bool) -> TrustEvidence:
    as_array = partial(np.array, dtype=np.float64)
    has_second = is_verified and run["second_run_error"] is not None
    second = as_array(run["second_run_error"]) if has_second else None
    return TrustEvidence(**{name: as_array(run[name]) for name in CHECKS}, second_run_error=second)


def _missed_movement(run: dict[str, Any]) -> float:
    missed = run["missed_movement"]
    return math.nan if missed is None else missed


def _correlate(trust: FloatArray, error: FloatArray) -> float:
    """Return Spearman's correlation of trust and error; positive if trusted landmarks have small errors."""
    if np.ptp(trust) == 0:
        return float("nan")
    return round(-float(spearmanr(trust, error)[0]), 4)


def measure_recipes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the automatic choice with the best recipe on every data set."""
    table = {}
    for name, chosen in AUTO_RECIPES.items():
        errors = {row["recipe"]: round(row["forward_share"], 4) for row in rows if row["data"] == name}
        ratio = errors[chosen] / min(errors.values())
        table[name] = {"chosen": chosen, "forward_share": errors, "chosen_over_best": round(ratio, 3)}
    num_within = sum(row["chosen_over_best"] <= 1.1 for row in table.values())
    return {"recipe_within_10_percent": num_within, "recipe_data_sets": len(table), "recipes": table}


if __name__ == "__main__":
    main()
