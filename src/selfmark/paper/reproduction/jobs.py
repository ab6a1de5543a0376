"""Several processes that work through the same jobs, none of them twice.

A process claims a job by locking a folder of its name. The system gives the lock up when the process ends, so
what one left unfinished another takes up; a job that is done is known by its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from selfmark.errors import InputError
from selfmark.run.locks import lock_folder


class KeyedJob(Protocol):
    @property
    def key(self) -> str: ...


Job = TypeVar("Job", bound=KeyedJob)


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    is_done: Callable[[Job], bool],
    do: Callable[[Job], None],
    wait: float = 2.0,
) -> None:
    """Do what no other process is doing until all is done, by whomever.

    Args:
        jobs: by their keys.
        folder: of the claims, the same for all processes.
        is_done: whether a job's result is there.
        do: makes it, going on with what an earlier attempt left.
        wait: seconds between two looks at what others are doing.
    """
    pending = list(jobs)
    while pending:
        before = len(pending)
        for job in list(pending):
            if is_done(job) or _claimed(job, folder, is_done, do):
                pending.remove(job)
        if len(pending) == before:
            time.sleep(wait)


@contextmanager
def wait_for_lock(folder: Path, wait: float = 0.1) -> Iterator[None]:
    """A folder to oneself, once whoever has it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            lock = lock_folder(folder)
            break
        except InputError:  # another process has it
            time.sleep(wait)
    with lock:
        yield


def _claimed(job: Job, folder: Path, is_done: Callable[[Job], bool], do: Callable[[Job], None]) -> bool:
    """Do a job unless another process is at it; whether it was done."""
    claim = folder / job.key
    claim.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_folder(claim)
    except InputError:  # another process has it
        return False
    with lock:
        if not is_done(job):  # another may have finished it between the question and the claim
            do(job)
    return True
