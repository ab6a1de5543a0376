"""Start tiny runs in separate processes, which tests can kill at any moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from selfmark.discovery import discover
from selfmark.run.folder import Event, Run
from tests.conftest import QUICK, QUICK_FEATURES
from tests.processes import FORKSERVER
from tests.stored_results import assert_same_card

TINY: dict[str, Any] = QUICK | {"evaluation.num_samples": 6, "evaluation.deformations": 1}
TINY_FEATURES: dict[str, Any] = QUICK_FEATURES | {"features.max_unexplained_start": 1e9}
# Python raises these audit events before a file is changed.
_WRITES = ("open", "os.rename", "os.remove", "os.mkdir", "os.chmod")


@dataclass(frozen=True)
class Moment:
    """When to kill a process: some seconds into a phase, or right before the n-th change of a file.

    phase:   one of `PHASES`; "" to count changes of files instead
    seconds: seconds after the start of the phase
    change:  number of the change, counted from 1 at the start of the process; 0 to use phase and seconds
    """

    phase: str = ""
    seconds: float = 0.0
    change: int = 0


# A phase begins with the first event for which its function returns True. With the settings in QUICK, the
# warm-up ends at iteration 5, the rounds end at 9 and 13, and Stage 2 has 6 iterations.
PHASES: dict[str, Callable[[Event], bool]] = {
    "reading images": lambda event: event["event"] == "plan",
    "keypoints": lambda event: event["event"] == "images",
    "warm-up": lambda event: event["event"] == "keypoints",
    "recovery": lambda event: (
        event["event"] == "checkpoint" and event["stage"] == "stage1" and event["iteration"] in (5, 9, 13)
    ),
    "round": lambda event: event["event"] == "recovery" and event["round"] < 3,
    "stage 2": lambda event: event["event"] == "recovery" and event["round"] == 3,
    "saving": lambda event: event.get("stage") == "stage 2" and event.get("iteration") == 6,
}


def measure_phase_durations(run: Path) -> dict[str, float]:
    """Return the duration of each phase of a finished run, in seconds."""
    events = Run.open(run).events()
    starts = [next(event["time"] for event in events if begins(event)) for begins in PHASES.values()]
    ends = [*starts[1:], events[-1]["time"]]
    return {phase: end - start for phase, start, end in zip(PHASES, starts, ends, strict=True)}


def find_last_phase(run: Path) -> str:
    """Return the phase in which the log of an unfinished run ends; "start" if no phase has begun."""
    reached = "start"
    events = Run.open(run).events() if (run / "run.json").exists() else []
    for event in events:
        reached = next((phase for phase, begins in PHASES.items() if begins(event)), reached)
    return reached


def start_or_resume(
    photos: Path, output: Path, moment: Moment | None, settings: dict[str, Any] = TINY
) -> int:
    """Start or resume the run in a process; kill it at `moment`, if given; return the exit code."""
    process = FORKSERVER.Process(target=_run_in_child, args=(photos, output, moment, settings))
    process.start()
    process.join()
    code = process.exitcode
    assert code is not None
    return code


def count_changes(photos: Path, output: Path, settings: dict[str, Any] = TINY) -> int:
    """Do a run in a process, and return the number of file changes that `Moment.change` can count."""
    count = FORKSERVER.Value("i", 0)
    process = FORKSERVER.Process(target=_run_in_child, args=(photos, output, None, settings, count))
    process.start()
    process.join()
    assert process.exitcode == 0
    return int(count.value)


def kill_before_change(folder: Path, number: int) -> None:
    """Kill this process right before its n-th change of a file in a folder."""

    def kill(count: int) -> None:
        if count == number:
            _kill_self()

    _watch_changes(folder, kill)


def assert_same_result(first: Path, second: Path) -> None:
    """Fail unless two finished runs have the same card and equal weights, points and checkpoints."""
    assert_same_card(first, second)
    expected, actual = _read_tensor_files(first), _read_tensor_files(second)
    assert expected.keys() == actual.keys()
    for name, content in expected.items():
        assert content == actual[name], name
    assert not list(second.rglob("*.part"))


def _read_tensor_files(run: Path) -> dict[str, bytes]:
    files = [run / "model" / "weights.safetensors", *sorted((run / "points").iterdir())]
    files += sorted((run / "checkpoints").glob("st*[0-9].safetensors"))  # stage1, student-1, ...
    return {file.name: file.read_bytes() for file in files}


def _run_in_child(
    photos: Path, output: Path, moment: Moment | None, settings: dict[str, Any], count: Any = None
) -> None:
    """Do the run; store the number of file changes in `count`, which both processes share."""
    torch.set_num_threads(1)
    if moment is not None and moment.change:
        kill_before_change(output, moment.change)
    if count is not None:
        _watch_changes(output, partial(setattr, count, "value"))
    has_begun = False

    def listener(event: Event) -> None:
        nonlocal has_begun
        if moment is not None and moment.phase and not has_begun and PHASES[moment.phase](event):
            has_begun = True
            threading.Timer(moment.seconds, _kill_self).start()

    resume = (output / "run.json").exists()
    discover(
        [] if resume else [photos],
        output=output,
        preset="tiny",
        settings={} if resume else settings,
        resume=resume,
        device="cpu",
        listener=listener,
    )


def _watch_changes(folder: Path, on_change: Callable[[int], None]) -> None:
    """Before each change of a file in a folder, call `on_change` with the number of the change."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        # A name without a folder is relative to a folder that is open, such as a folder of the run.
        name = str(arguments[0]) if event in _WRITES else ""
        if name.startswith(str(folder)) or (name and "/" not in name):
            if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                return
            count += 1
            on_change(count)

    sys.addaudithook(hook)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
