"""Test the script that fills docs/results/compare.json: several runs at a time, within a time limit."""

from __future__ import annotations

import json
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from selfmark.comparison.comparison_plan import Comparison, MethodJob, RowName
from selfmark.errors import InputError

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "quality"))
    return import_module("compare_methods")


def _make_entry(name: RowName, budget: float) -> tuple[dict[str, Any], MethodJob]:
    """Return the fields of a row that do not come from its job, and the job; `budget` is in seconds."""
    comparison = Comparison(("images",), Path("labels.json"), 4, budget)
    return {"data": "faces", "part": "validation", "commit": "abc"}, MethodJob(
        comparison, name, Path(name), "cpu"
    )


def test_rows_are_stored_one_by_one_and_runs_beyond_the_time_limit_are_left_out(
    script: ModuleType, tmp_path: Path
) -> None:
    results = tmp_path / "compare.json"
    old_record = {
        "data": "faces",
        "part": "validation",
        "method": "dve",
        "budget_minutes": 2.0,
        "seed": 0,
        "k": 9,
    }
    old_record |= {"commit": "old", "failure": ""}
    results.write_text(json.dumps({"rows": [old_record, old_record | {"seed": 1}]}))
    done = []

    def run(job: MethodJob) -> dict[str, Any]:
        done.append(job.name)
        if job.name == "jakab2018":
            raise InputError("the process of jakab2018 ended with -9")
        row = {"method": job.name, "budget_minutes": job.comparison.budget / 60, "seed": 0}
        return row | {"k": 4, "forward": 3.0, "failure": "", "minutes": 1.0}

    methods: list[tuple[RowName, float]] = [
        ("dve", 120),
        ("jakab2018", 120),
        ("autolink", 600),
        ("zero-shot", 600),
    ]
    # 240 seconds are too short for the ten minutes of autolink; zero-shot does not train, so it can run.
    limit = time.monotonic() + 240
    script.run_jobs([_make_entry(*method) for method in methods], 2, limit, results, run)
    assert sorted(done) == ["dve", "jakab2018", "zero-shot"]
    fields, job = _make_entry("dve", 120)
    assert script.is_stored(fields, job, results)
    assert not script.is_stored(fields | {"commit": "another"}, job, results)
    assert not script.is_stored(*_make_entry("dve", 60), results)
    rows = json.loads(results.read_text())["rows"]
    assert [(row["method"], row["seed"], row["k"]) for row in rows] == [
        ("dve", 0, 4),
        ("dve", 1, 9),
        ("zero-shot", 0, 4),
    ]
