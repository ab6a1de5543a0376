"""SIGKILL at any moment: the run goes on to bitwise the same result as one that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.__main__ import made_on
from tests.reliability.runs import PHASES, Moment, durations, phase_reached, same_bits, work

CHANGES = 120  # changes of files in a tiny run, about
KILLS = 36  # in the slow test


@pytest.fixture(scope="module")
def undisturbed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    assert work(photos, output, None) == 0
    return output


def moments(count: int, seconds: dict[str, float], rng: random.Random) -> list[Moment]:
    """As many by time, in every phase in turn, as by what is being written."""
    phases = list(PHASES)
    drawn = []
    for number in range(count):
        phase = phases[(number // 2) % len(phases)]
        by_time = Moment(phase, seconds=rng.uniform(0, seconds[phase]))
        drawn.append(Moment(change=rng.randint(1, CHANGES)) if number % 2 else by_time)
    return drawn


def kill_and_resume(
    photos: Path, folder: Path, plan: list[Moment], at_a_time: int, undisturbed: Path
) -> Counter[str]:
    """Kill one run up to `at_a_time` times, let it end, compare; then the next. Counts kills by phase."""
    killed: Counter[str] = Counter()
    for start in range(0, len(plan), at_a_time):
        output = folder / f"run-{start}"
        for moment in plan[start : start + at_a_time]:
            code = work(photos, output, moment)
            if code == 0:
                break  # it was done before the moment came
            assert code == -signal.SIGKILL, moment
            killed[phase_reached(output)] += 1
        assert work(photos, output, None) == 0
        same_bits(undisturbed, output)
    return killed


def test_killed_runs_end_in_the_same_bits(photos: Path, undisturbed: Path, tmp_path: Path) -> None:
    seconds = durations(undisturbed)
    assert min(seconds.values()) >= 0
    plan = [Moment(change=3), Moment("recovery", seconds["recovery"] / 2), Moment(change=40)]
    killed = kill_and_resume(photos, tmp_path, plan, 3, undisturbed)
    assert killed.total() >= 2


@pytest.mark.slow
def test_killed_again_and_again_runs_end_in_the_same_bits(
    photos: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Writes what it counted to the file that SELFMARK_COUNTS names, for docs/results."""
    rng = random.Random(7)
    seconds = durations(undisturbed)
    killed: Counter[str] = Counter()
    turn = 0
    while killed.total() < KILLS:
        plan = moments(2 * len(PHASES), seconds, rng)
        killed += kill_and_resume(photos, tmp_path / str(turn), plan, 2, undisturbed)
        turn += 1
    assert set(PHASES) - {"reading images"} <= set(killed)
    if target := os.environ.get("SELFMARK_COUNTS"):
        counts = {"kills": killed.total(), "by_phase": dict(killed), "made_on": made_on()}
        Path(target).write_text(json.dumps(counts, indent=1) + "\n")
