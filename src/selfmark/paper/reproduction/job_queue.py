"""Run jobs in several processes, each job once.

A process claims a job by locking a folder that is named after the job. The operating system releases the lock
when the process ends. If the job is not finished by then, another process continues it. A job is finished
if its result exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeVar

from selfmark.run.guarded_files import make_folders
from selfmark.run.locks import FolderLocked, exclusive


class KeyedJob(Protocol):
    """A job with a unique key, which is also the name of the folder that is locked."""

    @property
    def key(self) -> str:
        """Unique key of the job."""


Job = TypeVar("Job", bound=KeyedJob)


def run_jobs(
    jobs: Sequence[Job],
    folder: Path,
    is_done: Callable[[Job], bool],
    run: Callable[[Job], None],
    poll_seconds: float = 2.0,
) -> None:
    """Run the jobs that no other process is running, until all jobs are done.

    Args:
        jobs: All jobs; they are the same in all processes.
        folder: Folder for the locks; it is the same for all processes.
        is_done: Returns True if a job's result exists.
        run: Runs a job; continues an earlier attempt.
        poll_seconds: Seconds between two checks while other processes run all remaining jobs.
    """
    pending_jobs = list(jobs)
    while pending_jobs:
        before = len(pending_jobs)
        for job in list(pending_jobs):
            if is_done(job) or _run_unless_locked(job, folder, is_done, run):
                pending_jobs.remove(job)
        if len(pending_jobs) == before:
            time.sleep(poll_seconds)


def _run_unless_locked(
    job: Job, folder: Path, is_done: Callable[[Job], bool], run: Callable[[Job], None]
) -> bool:
    """Run a job and return True; return False if another process is running it."""
    lock_folder = folder / job.key
    make_folders(lock_folder)
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(lock_folder))
        except FolderLocked:
            return False
        if not is_done(job):  # Another process may have finished the job since the first check.
            run(job)
    return True
