"""Several processes, the same jobs: each is done once, and what a dead one left is taken up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from selfmark.paper.reproduction.jobs import run_jobs

_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Job:
    key: str


JOBS = [Job(f"job-{number}") for number in range(6)]


def _work(folder: Path, seconds: float) -> None:
    """Writes a line for every job it does, so that a job done twice shows."""

    def do(job: Job) -> None:
        with open(folder / "done.txt", "a") as handle:
            handle.write(f"{job.key} {os.getpid()}\n")
        time.sleep(seconds)
        (folder / job.key).touch()

    run_jobs(JOBS, folder / "claims", lambda job: (folder / job.key).exists(), do, wait=0.02)


def test_two_processes_do_every_job_once_and_both_work(tmp_path: Path) -> None:
    workers = [_CONTEXT.Process(target=_work, args=(tmp_path, 0.15)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    lines = [line.split() for line in (tmp_path / "done.txt").read_text().splitlines()]
    assert sorted(key for key, _ in lines) == [job.key for job in JOBS]
    assert len({process for _, process in lines}) == 2


def test_what_a_killed_process_left_another_takes_up(tmp_path: Path) -> None:
    first = _CONTEXT.Process(target=_work, args=(tmp_path, 60))
    first.start()
    while not (tmp_path / "done.txt").exists():
        time.sleep(0.01)
    other = _CONTEXT.Process(target=_work, args=(tmp_path, 0))
    other.start()
    while len(list(tmp_path.glob("job-*"))) < len(JOBS) - 1:  # all but the one that is held
        time.sleep(0.01)
    assert other.is_alive()  # waits for it
    os.kill(first.pid or 0, signal.SIGKILL)
    other.join(30)
    assert other.exitcode == 0
    assert len(list(tmp_path.glob("job-*"))) == len(JOBS)
    first.join()
