"""Test the claims that the paper makes in its ablations, by differences with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from claim_experiments import DATA, FACES, SEEDS, build_row_name
from claim_records import Record, get_stage2_value
from experiments import CLUSTERS, DETECTORS, REAL_PERCENT
from scipy.stats import t as student_t

FloatArray = npt.NDArray[np.float64]

READING = "centroid"  # how the preset `tiny` reads heatmaps of Stage 2
CONFIDENCE = 0.95

# Mapping from labels in the tables to the names of rows, without the prefix of the data set.
NEGATIVE_ROWS = {
    "different clusters + clustering": "different-clustering",
    "same image + equivariance": "same-equivariance",
    "different clusters + equivariance": "different-equivariance",
    "same image + clustering": "base",
}
FLIPPING_ROWS = {"none": "flip-none", "train and test": "base", "the same, own partners": "flip-itself"}
_BASE_ROWS = {"clusters": "100", "keypoints": "superpoint"}  # label of the row `base` in two ablations


@dataclass(frozen=True)
class Claim:
    """A statement of the paper: one row has a lower forward error than another one.

    Attributes:
        text: The statement.
        better: Label of the row that the paper finds better.
        worse: Label of the other row.
        rows: Mapping from labels to the names of all rows of the ablation. The interval uses the spread over
            seeds of all rows.
        datasets: Data sets on which the statement is tested.
    """

    text: str
    better: str
    worse: str
    rows: Mapping[str, str]
    datasets: Sequence[str] = tuple(DATA)


def _name_rows(kind: str, labels: Sequence[object]) -> dict[str, str]:
    return {str(label): "base" if str(label) == _BASE_ROWS[kind] else f"{kind}-{label}" for label in labels}


CLUSTER_ROWS = _name_rows("clusters", CLUSTERS)
DETECTOR_ROWS = _name_rows("keypoints", DETECTORS)
REAL_POINT_ROWS = {f"{percent} %": f"real-{percent}" for percent in REAL_PERCENT}
WITHOUT_FLIES = tuple(data for data in DATA if data != "flies-dpk")

CLAIMS = (
    Claim("M = 100 clusters are better than M = K = 30", "100", "30", CLUSTER_ROWS, WITHOUT_FLIES),
    Claim("M = 100 clusters are better than M = 500", "100", "500", CLUSTER_ROWS, WITHOUT_FLIES),
    Claim(
        "positive pairs from clusters are better than from deformations only",
        "same image + clustering",
        "same image + equivariance",
        NEGATIVE_ROWS,
    ),
    Claim(
        "with clusters, negatives from the same image are better than from different clusters",
        "same image + clustering",
        "different clusters + clustering",
        NEGATIVE_ROWS,
    ),
    *(
        Claim(f"SuperPoint is better than {title}", "superpoint", name, DETECTOR_ROWS, (FACES,))
        for name, title in (("r2d2", "R2D2"), ("orb", "ORB"), ("sift", "SIFT"))
    ),
    Claim("flipping in training and at test time helps", "train and test", "none", FLIPPING_ROWS),
    Claim("100 % real points are better than 40 %", "100 %", "40 %", REAL_POINT_ROWS, (FACES,)),
    Claim("40 % real points are better than 20 %", "40 %", "20 %", REAL_POINT_ROWS, (FACES,)),
)


def collect_row_errors(
    records: Sequence[Record], name: str, stage: int, reading: str = READING
) -> list[float]:
    """Return the forward error of a row for every seed that has been run, in the order of seeds."""
    chosen = sorted(
        (record for record in records if record["row"] == name), key=lambda record: record["seed"]
    )
    if stage == 1:
        return [float(record["stage1"]["forward"]) for record in chosen]
    return [get_stage2_value(record, "forward", reading) for record in chosen]


def compare_rows(errors: FloatArray, better: int, worse: int) -> tuple[float, float]:
    """Return the mean difference of two rows and the half-width of its 95 % interval.

    The interval comes from a two-way analysis of variance. Its variance is that of the residuals of all rows
    after subtracting the mean of each row and of each seed.

    Args:
        errors: one error per row and seed, [R, S].
        better: index of the row whose error is subtracted.
        worse: index of the other row.

    >>> compare_rows(np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]), 0, 1)
    (1.0, 0.0)
    """
    num_rows, num_seeds = errors.shape
    residuals = errors - errors.mean(1, keepdims=True) - errors.mean(0) + errors.mean()
    freedom = (num_rows - 1) * (num_seeds - 1)
    variance = float((residuals**2).sum()) / freedom
    quantile = float(student_t.ppf((1 + CONFIDENCE) / 2, freedom))
    difference = float(errors[worse].mean() - errors[better].mean())
    return difference, quantile * math.sqrt(2 * variance / num_seeds)


def measure_claim(
    records: Sequence[Record], claim: Claim, data: str, stage: int
) -> tuple[float, float] | None:
    """Return the result of `compare_rows` for the two rows of a claim; None if their runs are missing."""
    rows = {
        label: collect_row_errors(records, build_row_name(data, name), stage)
        for label, name in claim.rows.items()
    }
    complete = {label: errors for label, errors in rows.items() if len(errors) == len(SEEDS)}
    if not {claim.better, claim.worse} <= set(complete):
        return None
    labels = list(complete)
    return compare_rows(
        np.array(list(complete.values())), labels.index(claim.better), labels.index(claim.worse)
    )


def judge(difference: float, half_width: float) -> str:
    """Return the verdict on a claim.

    Args:
        difference: Mean difference of the two rows; positive if it agrees with the claim.
        half_width: Half-width of the confidence interval of the difference.

    >>> judge(1.0, 0.5), judge(0.3, 0.5), judge(-1.0, 0.5)
    ('as in the paper', 'no measurable effect', 'the opposite')
    """
    if abs(difference) <= half_width:
        return "no measurable effect"
    return "as in the paper" if difference > 0 else "the opposite"
