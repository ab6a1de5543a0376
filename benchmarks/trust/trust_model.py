"""Fit the weights of trust and verdict, and measure how well they work on data sets left out of the fit.

    PYTHONPATH=src:benchmarks python benchmarks/trust/trust_model.py --gather OUT RUNS.json
    PYTHONPATH=src:benchmarks python benchmarks/trust/trust_model.py --update OUT RUNS.json
    PYTHONPATH=src:benchmarks python benchmarks/trust/trust_model.py --later OUT RUNS.json
    PYTHONPATH=src:benchmarks python benchmarks/trust/trust_model.py RUNS.json OUTPUT.json

The first command collects the files that `calibration_runs.py` and `recipe_runs.py` wrote to OUT. The second
command adds the runs of OUT to RUNS.json; they replace runs of the same data set and variant. The third
command stores the runs of OUT as runs of a later version, which no weights are fitted to. The last command
leaves out each data set in turn: it fits the weights to the runs on the other data sets, and compares trust
and verdict of the left-out runs, and of the later runs on this data set, with their true errors. The weights
in the settings (`evaluation.error_weights` and others) are those fitted to all runs but the later ones.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import provenance
import torch
from scipy.stats import norm, spearmanr

from selfmark.config import Evaluation
from selfmark.evaluation.trust import TrustEvidence, judge_landmarks
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


class Weights(NamedTuple):
    """Fitted weights, named like the settings in `Evaluation`."""

    error_weights: tuple[float, ...]
    run_error_weights: tuple[float, ...]


def main() -> None:
    """Gather the runs, or fit the weights to them."""
    if sys.argv[1] == "--gather":
        write_json(gather_runs(Path(sys.argv[2])), Path(sys.argv[3]))
        return
    if sys.argv[1] == "--update":
        path = Path(sys.argv[3])
        write_json(update_runs(read_json(path), gather_runs(Path(sys.argv[2]))), path)
        return
    if sys.argv[1] == "--later":
        path, later_results = Path(sys.argv[3]), gather_runs(Path(sys.argv[2]))
        write_json(
            read_json(path)
            | {"later_runs": later_results["runs"], "later_made_with": later_results["made_with"]},
            path,
        )
        return
    content = read_json(Path(sys.argv[1]))
    about = {"script": "benchmarks/trust/trust_model.py", "made_with": content["made_with"]}
    result = measure(content["runs"]) | measure_recipes(content["recipes"])
    later_results = {"made_with": content["later_made_with"]} | measure_later(
        content["runs"], content["later_runs"]
    )
    write_json(about | result | {"later_runs": later_results}, Path(sys.argv[2]))


def gather_runs(folder: Path) -> dict[str, Any]:
    """Return the checks and true errors of all runs of a folder."""
    rows, recipes = [], []
    for path in sorted(folder.glob("*.json")):
        run = read_json(path)
        if path.name.startswith("recipe--"):
            recipes.append({key: run.get(key) for key in ("data", "recipe", "forward_share", "orientation")})
        elif "error" not in run:
            rows.append(_select_values(run))
    versions = {
        "torch": torch.__version__,
        "device": "",
        "commit": provenance.read_commit(),
        "seed": 0,
        "note": "",
    }
    return {"made_with": versions, "runs": rows, "recipes": recipes}


def update_runs(old_content: dict[str, Any], new_content: dict[str, Any]) -> dict[str, Any]:
    """Replace old runs by new runs of the same data set and variant; `made_with` lists the new runs.

    Args:
        old_content: what `gather_runs` returned for the old runs.
        new_content: the same for the new runs; their recipes are ignored.
    """
    added_runs = {(run["data"], run["variant"]): run for run in new_content["runs"]}
    kept_runs = {(run["data"], run["variant"]): run for run in old_content["runs"]}
    about = new_content["made_with"] | {
        "runs": [f"{data}, {variant}" for data, variant in sorted(added_runs)]
    }
    made_with = old_content["made_with"] | {"updates": [*old_content["made_with"].get("updates", []), about]}
    return old_content | {
        "made_with": made_with,
        "runs": [run for _, run in sorted((kept_runs | added_runs).items())],
    }


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
        "duplicates": run["checks"]["duplicates"],
        "spread": _round_values(run["checks"]["spread"]),
        **checks,
    }


def _round_values(values: list[float | None], digits: int = 4) -> list[float | None]:
    return [None if value is None else round(value, digits) for value in values]


def measure(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Leave out each data set once; return Spearman correlations, verdicts, and weights fitted to all runs.

    Args:
        runs: runs that `gather_runs` returned.
    """
    names = sorted({run["data"] for run in runs})
    spearman: dict[str, float] = {}
    spearman_verified: dict[str, float] = {}
    rows, correlations, levels = [], [], []
    for name in names:
        other_runs = [run for run in runs if run["data"] != name]
        left_out = [run for run in runs if run["data"] == name]
        settings = _fit_settings(other_runs)
        judged = [judge_landmarks(_build_evidence(run, is_verified=False), settings) for run in left_out]
        truth = np.concatenate([run["landmark_shares"] for run in left_out])
        spearman[name] = _correlate(np.concatenate([trust.trust for trust in judged]), truth)
        with_second = [judge_landmarks(_build_evidence(run, is_verified=True), settings) for run in left_out]
        has_second = [run["second_run_error"] is not None for run in left_out]
        if any(has_second):
            spearman_verified[name] = _correlate(
                np.concatenate(list(compress([trust.trust for trust in with_second], has_second))),
                np.concatenate(list(compress([run["landmark_shares"] for run in left_out], has_second))),
            )
        for run, trust, second in zip(left_out, judged, with_second, strict=True):
            verdict, expected = judge_run(trust.expected_error, settings)
            correlations.append(_correlate(trust.trust, np.array(run["landmark_shares"])))
            levels.append(np.stack([trust.trust, run["landmark_shares"]]))
            rows.append(
                {
                    "data": run["data"],
                    "variant": run["variant"],
                    "forward_share": run["forward_share"],
                    "expected_forward": round(expected, 3),
                    "verdict": verdict,
                    "verdict_verified": None
                    if run["second_run_error"] is None
                    else judge_run(second.expected_error, settings).verdict,
                    "true_verdict": judge_forward_share(run["forward_share"], settings),
                }
            )
    wrong_rows = [row for row in rows if row["verdict"] != row["true_verdict"]]
    final_weights, final_verified_weights = (
        fit_weights(runs, is_verified=is_verified) for is_verified in (False, True)
    )
    return {
        "runs": len(runs),
        "landmarks": sum(len(run["landmark_shares"]) for run in runs),
        "spearman_left_out": spearman,
        "spearman_left_out_mean": round(float(np.mean(list(spearman.values()))), 4),
        "spearman_left_out_verified": spearman_verified,
        "spearman_left_out_verified_mean": round(float(np.mean(list(spearman_verified.values()))), 4),
        "spearman_within_runs_mean": round(float(np.nanmean(correlations)), 4),
        "levels": _measure_levels(*np.concatenate(levels, axis=1)),
        "verdict_accuracy": _measure_accuracy(rows, "verdict"),
        "verdict_accuracy_verified": _measure_accuracy(rows, "verdict_verified"),
        "attainable_accuracy": {
            str(error): compute_attainable_accuracy(np.array([run["forward_share"] for run in runs]), error)
            for error in ESTIMATE_ERRORS
        },
        "verdicts_good_for_failed": _count_confused(rows),
        "verdicts_missed": wrong_rows,
        "verdicts": rows,
        "mixed_kinds_noticed": _notice_mixed_kinds(runs),
        "weights": final_weights._asdict() | {"verified_error_weights": final_verified_weights.error_weights},
    }


def measure_later(runs: list[dict[str, Any]], later: list[dict[str, Any]]) -> dict[str, Any]:
    """Judge runs of a later version with weights fitted to the earlier runs on the other data sets.

    Args:
        runs: earlier runs that `gather_runs` returned.
        later: the same for the later runs; the weights are not fitted to any of them.
    """
    rows, spearman = [], {}
    for name in sorted({run["data"] for run in later}):
        settings = _fit_settings([run for run in runs if run["data"] != name])
        left_out = [run for run in later if run["data"] == name]
        judged = [judge_landmarks(_build_evidence(run, is_verified=False), settings) for run in left_out]
        truth = np.concatenate([run["landmark_shares"] for run in left_out])
        spearman[name] = _correlate(np.concatenate([trust.trust for trust in judged]), truth)
        for run, trust in zip(left_out, judged, strict=True):
            verdict, expected = judge_run(trust.expected_error, settings)
            row = {key: run[key] for key in ("data", "variant", "images", "forward_share")}
            row |= {"expected_forward": round(expected, 3), "verdict": verdict}
            rows.append(row | {"true_verdict": judge_forward_share(run["forward_share"], settings)})
    expected = np.array([row["expected_forward"] for row in rows])
    forward = np.array([row["forward_share"] for row in rows])
    return {
        "runs": len(later),
        "landmarks": sum(len(run["landmark_shares"]) for run in later),
        "spearman_left_out": spearman,
        "spearman_left_out_mean": round(float(np.mean(list(spearman.values()))), 4),
        "verdict_accuracy": _measure_accuracy(rows, "verdict"),
        "verdicts_good_for_failed": _count_confused(rows),
        "relative_error_of_expected_forward": round(float(np.median(np.abs(expected / forward - 1))), 4),
        "verdicts_missed": [row for row in rows if row["verdict"] != row["true_verdict"]],
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


def _count_confused(rows: list[dict[str, Any]]) -> int:
    """Count the good runs that are called failed, and the failed runs that are called good."""
    return sum({row["verdict"], row["true_verdict"]} == {"good", "failed"} for row in rows)


def _measure_accuracy(rows: list[dict[str, Any]], name: str) -> float:
    """Return the fraction of right verdicts; runs without the verdict `name` are left out."""
    return round(float(np.mean([row[name] == row["true_verdict"] for row in rows if row[name]])), 4)


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


def fit_weights(runs: list[dict[str, Any]], *, is_verified: bool) -> Weights:
    """Fit the weights of the expected error of landmarks, then those of the expected error of runs.

    Args:
        runs: runs that `gather_runs` returned.
        is_verified: whether the second run is part of the evidence. Runs whose second training collapsed are
            then left out.
    """
    if is_verified:
        runs = [run for run in runs if run["second_run_error"] is not None]
    inputs = [_build_columns(run, is_verified) for run in runs]
    targets = [np.clip(np.array(run["landmark_shares"]), 0, MAX_ERROR) for run in runs]
    solution = solve_weighted_ridge(inputs, targets)
    expected = [np.maximum(columns @ solution, 0) for columns in inputs]
    best_errors = np.array([np.quantile(errors, Evaluation().best_fraction) for errors in expected])
    forward = np.clip([run["forward_share"] for run in runs], 0, MAX_ERROR)
    line = np.linalg.lstsq(np.stack([np.ones(len(best_errors)), best_errors], axis=1), forward, rcond=None)[0]
    return Weights(*(tuple(round(float(value), 2) for value in values) for values in (solution, line)))


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


def _fit_settings(runs: list[dict[str, Any]]) -> Evaluation:
    """Return the default settings with weights fitted to these runs."""
    weights, verified_weights = (fit_weights(runs, is_verified=is_verified) for is_verified in (False, True))
    return Evaluation(
        error_weights=weights.error_weights,
        verified_error_weights=verified_weights.error_weights,
        run_error_weights=weights.run_error_weights,
    )


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
