"""Test that a killed and resumed run gives bitwise the same result as an uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from selfmark.run.folder import Run
from tests.fuzz.fuzzing import describe_machine
from tests.reliability.runs import (
    PHASES,
    TINY,
    TINY_FEATURES,
    Moment,
    assert_same_result,
    count_changes,
    find_last_phase,
    measure_phase_durations,
    start_or_resume,
)

KILLS = 36  # minimum number of kills in the slow test


@pytest.fixture(scope="module")
def uninterrupted(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert start_or_resume(photos, output, None) == 0
    return output


def draw_moments(runs: int, seconds: dict[str, float], changes: int, rng: random.Random) -> list[Moment]:
    """Draw two moments for each run: one by time, in every phase in turn, and one by file changes.

    The order of the two alternates from run to run, because fewer phases and changes are left after a kill.

    Args:
        runs: number of runs.
        seconds: duration of each phase.
        changes: number of file changes of an uninterrupted run.
        rng: random number generator.
    """
    phases = list(PHASES)
    drawn = []
    for number in range(runs):
        phase = phases[number % len(phases)]
        by_time = Moment(phase, seconds=rng.uniform(0, seconds[phase]))
        by_change = Moment(change=rng.randint(1, changes))
        drawn += [by_time, by_change] if number % 2 else [by_change, by_time]
    return drawn


def kill_and_resume(
    photos: Path, folder: Path, plan: list[Moment], kills_per_run: int, uninterrupted: Path
) -> Counter[str]:
    """Kill each run several times, let it finish, compare its result; return the number of kills by phase."""
    killed: Counter[str] = Counter()
    for start in range(0, len(plan), kills_per_run):
        output = folder / f"run-{start}"
        for moment in plan[start : start + kills_per_run]:
            code = start_or_resume(photos, output, moment)
            if code == 0:
                break  # The run finished before the moment.
            assert code == -signal.SIGKILL, moment
            killed[find_last_phase(output)] += 1
        assert start_or_resume(photos, output, None) == 0
        assert_same_result(uninterrupted, output)
    return killed


def test_killed_runs_give_the_same_result(photos: Path, uninterrupted: Path, tmp_path: Path) -> None:
    seconds = measure_phase_durations(uninterrupted)
    assert min(seconds.values()) >= 0
    plan = [Moment(change=3), Moment("recovery", seconds["recovery"] / 2), Moment(change=40)]
    killed = kill_and_resume(photos, tmp_path, plan, 3, uninterrupted)
    assert killed.total() >= 2


def test_a_killed_run_with_features_gives_the_same_result(photos: Path, tmp_path: Path) -> None:
    uninterrupted, output = tmp_path / "uninterrupted", tmp_path / "killed"
    assert start_or_resume(photos, uninterrupted, None, TINY_FEATURES) == 0
    for change in (14, 24, 40):
        moment = Moment(change=change)
        assert start_or_resume(photos, output, moment, TINY_FEATURES) == -signal.SIGKILL, change
    assert start_or_resume(photos, output, None, TINY_FEATURES) == 0
    assert_same_result(uninterrupted, output)
    assert not list(output.glob("*.f16"))


def test_a_killed_run_whose_landmarks_stand_still_gives_the_same_result(photos: Path, tmp_path: Path) -> None:
    settings = TINY | {
        "stage2.iterations": 12,
        "schedule.stop_when_still": True,
        "schedule.still_movement": 100,
        "schedule.measure_every": 0.1,
    }
    uninterrupted = tmp_path / "uninterrupted"
    changes = count_changes(photos, uninterrupted, settings)
    skipped = [event["skipped"] for event in Run.open(uninterrupted).events() if event["event"] == "movement"]
    assert skipped == [0, 6]
    # Kill the run in the checkpoint after the first measurement, between the second measurement and its
    # checkpoint, in this second checkpoint, and in the final part.
    for before_end in (88, 82, 76, 68):
        moment = Moment(change=changes - before_end)
        killed = tmp_path / f"killed-{before_end}"
        assert start_or_resume(photos, killed, moment, settings) == -signal.SIGKILL, before_end
        assert find_last_phase(killed) == "stage 2"
        assert start_or_resume(photos, killed, None, settings) == 0
        assert_same_result(uninterrupted, killed)


@pytest.mark.slow
def test_runs_killed_many_times_give_the_same_result(
    photos: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """If the environment variable SELFMARK_COUNTS names a file, write the number of kills by phase to it."""
    rng = random.Random(7)
    seconds = measure_phase_durations(uninterrupted)
    changes = count_changes(photos, tmp_path / "counted")
    killed: Counter[str] = Counter()
    attempt = 0
    while killed.total() < KILLS:
        plan = draw_moments(len(PHASES), seconds, changes, rng)
        killed += kill_and_resume(photos, tmp_path / str(attempt), plan, 2, uninterrupted)
        attempt += 1
    assert set(PHASES) - {"reading images"} <= set(killed)
    if target := os.environ.get("SELFMARK_COUNTS"):
        counts = {"kills": killed.total(), "by_phase": dict(killed), "made_on": describe_machine("")}
        Path(target).write_text(json.dumps(counts, indent=1) + "\n")
