"""Test the cost model: formulas match counted traffic and a simulation, and docs/scale.md is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def scripts() -> Iterator[Path]:
    folder = ROOT / "benchmarks"
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def formulas(scripts: Path) -> ModuleType:
    return import_module("cost_formulas")


@pytest.fixture(scope="module")
def simulation(scripts: Path) -> ModuleType:
    return import_module("cost_simulation")


def test_the_page_matches_the_script(scripts: Path) -> None:
    model = import_module("cost_model")
    page, new_tables = (ROOT / "docs" / "scale.md").read_text(), model.build_tables()
    assert model.insert_tables(page, new_tables) == page, (
        "run: python benchmarks/cost_model.py --write docs/scale.md"
    )
    assert page.count("<!-- table: ") == len(new_tables)


def _run_ring_all_reduce(values: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Sum the rows of `values` by messages in a ring; each row belongs to one member of the ring.

    Returns:
        The sums that each member has in the end, and how many numbers each member sent.
    """
    members = len(values)
    chunks = values.reshape(members, members, -1).copy()
    sent = [0] * members
    for phase in range(2 * (members - 1)):
        # Members add up chunks in the first half of the phases, and pass on the sums in the second half.
        is_adding = phase < members - 1
        messages = []
        for member in range(members):
            chunk = (member - phase) % members
            messages.append((member, chunk, chunks[member, chunk].copy()))
            sent[member] += len(chunks[member, chunk])
        for member, chunk, content in messages:
            target = (member + 1) % members
            if is_adding:
                chunks[target, chunk] += content
            else:
                chunks[target, chunk] = content
    return chunks.reshape(members, -1), sent


def test_traffic_matches_that_counted_in_a_ring(formulas: ModuleType) -> None:
    values = np.random.default_rng(0).normal(size=(8, 8 * 3))
    result, sent = _run_ring_all_reduce(values)
    np.testing.assert_allclose(result, np.tile(values.sum(axis=0), (8, 1)))
    within_node, between_nodes = formulas.count_sent_bytes(8, 24.0)
    assert sent == [pytest.approx(within_node)] * 8
    assert between_nodes == 0


@pytest.mark.parametrize("gpus", [8, 64])
def test_formula_equals_simulation_without_randomness(
    gpus: int, formulas: ModuleType, simulation: ModuleType
) -> None:
    without_randomness = replace(formulas.ASSUMPTIONS, jitter=0.0, stall_fraction=0.0, link_jitter=0.0)
    compute, size = 0.01, 27e6  # seconds per step, bytes of gradients
    simulated = simulation.simulate_steps(
        gpus, compute, size, 5, without_randomness, np.random.default_rng(0)
    )
    predicted = compute + formulas.estimate_all_reduce(gpus, size, without_randomness)
    assert simulated == pytest.approx(predicted, rel=1e-9)


@pytest.mark.parametrize("gpus", [8, 64])
def test_formula_is_within_six_percent_with_randomness(
    gpus: int, formulas: ModuleType, simulation: ModuleType
) -> None:
    for compute, size in ((0.028, 27e6), (2e-4, 2e5)):  # seconds per step, bytes of gradients
        simulated = simulation.simulate_steps(
            gpus, compute, size, 400, formulas.ASSUMPTIONS, np.random.default_rng(1)
        )
        predicted = compute * formulas.compute_slowest_gpu_factor(gpus) + formulas.estimate_all_reduce(
            gpus, size
        )
        assert predicted == pytest.approx(simulated, rel=0.06)


@pytest.mark.parametrize("count", [2, 8, 64, 1024])
def test_the_expected_largest_sample_matches_drawn_samples(count: int, formulas: ModuleType) -> None:
    sampled = np.random.default_rng(2).normal(size=(3_000, count)).max(axis=1).mean()
    assert formulas.compute_expected_largest(count) == pytest.approx(sampled, abs=0.06)


def test_measured_rates_replace_assumed_ones(scripts: Path, tmp_path: Path) -> None:
    model = import_module("cost_model")
    (tmp_path / "speed.json").write_text(
        '{"hardware": "a GPU", "rows": [{"name": "extract", "value": 7000, "unit": "images/s"},'
        ' {"name": "other", "value": 1, "unit": "s"}]}'
    )
    rates, origins = model.read_rates(tmp_path)
    assert rates.extract == 7000
    assert "a GPU" in origins["extract"]
    assert origins["stage1_16_pairs"] == "assumed"


def test_gpu_hours_do_not_decrease_with_more_gpus(formulas: ModuleType) -> None:
    """More GPUs split the work but do not reduce it. This catches a formula that loses a factor `gpus`."""
    for images in (1e7, 1e9):
        costs = [
            gpus * sum(formulas.estimate_seconds_by_part(images, gpus, formulas.Rates(), False).values())
            for gpus in (8, 64, 1024)
        ]
        assert costs == sorted(costs)
        recoveries = 35  # Each correspondence recovery describes the keypoints of all images.
        assert costs[0] > images * recoveries / formulas.Rates().extract
