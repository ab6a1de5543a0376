"""Test several processes with the same jobs: each job runs once, and unfinished jobs are continued."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from selfmark.paper.reproduction.job_queue import run_jobs

_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Job:
    key: str


JOBS = [Job(f"job-{number}") for number in range(6)]


def _run_all(folder: Path, seconds: float) -> None:
    """Run all jobs. Each start of a job writes a line, so a job that runs twice has two lines."""

    def run(job: Job) -> None:
        with open(folder / "started.txt", "a") as handle:
            handle.write(f"{job.key} {os.getpid()}\n")
        time.sleep(seconds)
        (folder / job.key).touch()

    run_jobs(JOBS, folder / "locks", lambda job: (folder / job.key).exists(), run, poll_seconds=0.02)


def test_two_processes_share_the_jobs(tmp_path: Path) -> None:
    seconds = 0.4  # A job takes longer than an attempt to acquire a lock.
    workers = [_CONTEXT.Process(target=_run_all, args=(tmp_path, seconds)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    lines = [line.split() for line in (tmp_path / "started.txt").read_text().splitlines()]
    assert sorted(key for key, _ in lines) == [job.key for job in JOBS]
    assert len({process for _, process in lines}) == 2


def test_the_job_of_a_killed_process_is_run_by_another_process(tmp_path: Path) -> None:
    first = _CONTEXT.Process(target=_run_all, args=(tmp_path, 60))
    first.start()
    while not (tmp_path / "started.txt").exists():
        time.sleep(0.01)
    second = _CONTEXT.Process(target=_run_all, args=(tmp_path, 0))
    second.start()
    while len(list(tmp_path.glob("job-*"))) < len(JOBS) - 1:  # Wait for all jobs but the locked one.
        time.sleep(0.01)
    assert second.is_alive()  # The second process waits for the lock.
    os.kill(first.pid or 0, signal.SIGKILL)
    second.join(30)
    assert second.exitcode == 0
    assert len(list(tmp_path.glob("job-*"))) == len(JOBS)
    first.join()
