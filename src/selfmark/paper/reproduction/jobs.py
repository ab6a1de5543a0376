"""Several processes that work through the same jobs, none of them twice.

A process claims a job by locking a folder of its name. The system gives the lock up when the process ends, so
what one left unfinished another takes up; a job that is done is known by its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeVar

from selfmark.run.locks import FolderLocked, exclusive


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


def _claimed(job: Job, folder: Path, is_done: Callable[[Job], bool], do: Callable[[Job], None]) -> bool:
    """Do a job unless another process is at it; whether it was done."""
    claim = folder / job.key
    claim.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(claim))
        except FolderLocked:
            return False
        if not is_done(job):  # another process may have finished it since the first check
            do(job)
    return True
