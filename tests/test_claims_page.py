"""Test claims.md and compare.md: compare statistics with those of scipy, and pages with their records."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import t as student_t
from scipy.stats import ttest_rel

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "quality"))
    return import_module("claims")


def test_two_rows_are_compared_as_in_a_paired_t_test(claims: ModuleType) -> None:
    errors = np.random.default_rng(0).normal(3, 1, (2, 5))
    expected = ttest_rel(errors[1], errors[0])
    interval = expected.confidence_interval(0.95)
    difference, half_width = claims.compare_rows(errors, 0, 1)
    assert difference == pytest.approx((interval.low + interval.high) / 2)
    assert half_width == pytest.approx((interval.high - interval.low) / 2)


def test_the_spread_is_what_rows_and_seeds_do_not_explain(claims: ModuleType) -> None:
    rows, seeds = 4, 3
    seed_effects = np.array([[0.0, 5.0, -2.0]])
    errors = np.random.default_rng(1).normal(0, 1, (rows, seeds)) + seed_effects
    # Fit the errors by least squares, with one coefficient for each row and one for each seed.
    design = np.array(
        [[*np.eye(rows)[row], *np.eye(seeds)[seed]] for row in range(rows) for seed in range(seeds)]
    )
    fitted = design @ np.linalg.lstsq(design, errors.ravel(), rcond=None)[0]
    degrees_of_freedom = (rows - 1) * (seeds - 1)
    variance = float(((errors.ravel() - fitted) ** 2).sum()) / degrees_of_freedom
    _, half_width = claims.compare_rows(errors, 2, 0)
    standard_error = np.sqrt(2 * variance / seeds)
    assert half_width == pytest.approx(student_t.ppf(0.975, degrees_of_freedom) * standard_error)


def test_the_committed_pages_match_their_records(claims: ModuleType) -> None:
    records = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))["runs"]
    page = import_module("claims_page").build_claims_page(records)
    assert (RESULTS / "claims.md").read_text(encoding="utf-8") == page, "run quality_pages.py"
    rows = json.loads((RESULTS / "compare.json").read_text(encoding="utf-8"))["rows"]
    page = import_module("compare_page").build_compare_page(rows)
    assert (RESULTS / "compare.md").read_text(encoding="utf-8") == page, "run quality_pages.py"


def test_records_have_the_settings_of_their_experiments(claims: ModuleType) -> None:
    experiments = {
        run: experiment
        for experiment in import_module("claim_experiments").CLAIM_EXPERIMENTS
        for run in experiment.list_run_names()
    }
    records = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))["runs"]
    assert len(records) == len({record["run"] for record in records}) > 90
    for record in records:
        assert record["digest"] == experiments[record["run"]].compute_digest(), record["run"]


def test_a_claim_is_judged_only_if_all_seeds_have_run(claims: ModuleType) -> None:
    records = [
        {"row": row, "seed": seed, "stage1": {"forward": error + 0.1 * seed}}
        for row, error in (("yt68-base", 2.0), ("yt68-clusters-30", 3.0))
        for seed in range(3)
    ]
    claim = claims.CLAIMS[0]
    difference, half_width = claims.measure_claim(records, claim, "faces-yt68", 1)
    assert (difference, half_width) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert claims.measure_claim(records[:-1], claim, "faces-yt68", 1) is None
