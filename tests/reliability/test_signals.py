"""Test Ctrl-C and SIGTERM: the run finishes the current step, saves its state, and can be resumed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from selfmark.discovery import discover
from selfmark.run.folder import Event, Run
from selfmark.run.interrupts import defer_interrupts
from tests.conftest import QUICK, selfmark
from tests.reliability.runs import assert_same_result

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.mark.parametrize(
    ("number", "stage"),
    [(signal.SIGINT, "round"), (signal.SIGTERM, "stage 2")],
)
def test_the_state_is_saved_after_the_current_step(
    number: signal.Signals, stage: str, photos: Path, quick_run: Path, tmp_path: Path
) -> None:
    def listener(event: Event) -> None:
        if event["event"] == "train" and event["stage"] == stage:
            os.kill(os.getpid(), number)

    settings = QUICK | {"runtime.checkpoint_every": 1000}
    handled = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in handled]
    with pytest.raises(KeyboardInterrupt):
        discover(photos, output=tmp_path, preset="tiny", settings=settings, device="cpu", listener=listener)
    assert handlers == [signal.getsignal(number) for number in handled]
    events = Run.open(tmp_path).events()
    last = [event for event in events if event["event"] == "train"][-1]
    assert events[-1]["event"] == "checkpoint"
    assert events[-1]["iteration"] == last["iteration"] < last["stop"]
    discover(output=tmp_path, resume=True, device="cpu")
    assert_same_result(quick_run, tmp_path)


def test_the_command_line_exits_with_130_and_says_how_to_resume(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = QUICK | {"warmup.iterations": 3000, "runtime.checkpoint_every": 10_000}
    output, log = tmp_path / "run", tmp_path / "run" / "log.jsonl"

    def terminate() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (log.exists() and '"train"' in log.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    options = [f"--set={name}={value}" for name, value in settings.items()]
    assert selfmark("discover", photos, "-o", output, "--preset=tiny", "--device=cpu", *options) == 130
    thread.join()
    assert f"selfmark discover -o {output} --resume" in capsys.readouterr().err.replace("\n", "")
    assert Run.open(output).events()[-1]["event"] == "checkpoint"


def test_a_second_signal_interrupts_the_context() -> None:
    reached = []

    def send_twice() -> None:
        with defer_interrupts() as stop_requested:
            os.kill(os.getpid(), signal.SIGINT)
            reached.append(stop_requested())
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("too far")

    with pytest.raises(KeyboardInterrupt):
        send_twice()
    assert reached == [True]


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with defer_interrupts() as stop_requested:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stop_requested()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_defer_nothing() -> None:
    answers = []

    def work() -> None:
        with defer_interrupts() as stop_requested:
            answers.append(stop_requested())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
