"""Read crops of many images at the same time, in threads and, where that pays, in processes."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from selfmark.config import Images
from selfmark.images.read_crops import Outcome, read_crops
from selfmark.images.reading_process import CAPACITY, ReadingProcess, StillImage, can_start_processes
from selfmark.run.torchrun_environment import read_count

THREADS = min(8, os.cpu_count() or 1)
PREFETCH = 4 * THREADS  # images that are read before they are needed; video frames wait in full size
MAX_PROCESSES = 8
_MIN_CORES = 4  # on fewer cores, processes hardly read faster than threads
_TRIAL_IMAGES = 64  # images that are read in threads before processes are considered
_MIN_SECONDS = 2.5  # processes are started if the expected wait for the remaining images is at least this
_CHUNK = 8  # references that a process gets at a time


@dataclass(frozen=True)
class CropJob:
    """Some references, and how to get their crops.

    positions: indices of the references
    work:      a still image, or a function that returns the crops of the references (see `Outcome`)
    """

    positions: list[int]
    work: StillImage | Callable[[], list[Outcome]]


Results = tuple[list[int], list[Outcome]]


def run_crop_jobs(jobs: Iterable[CropJob], num_stills: int, images: Images) -> Iterator[Results]:
    """Run jobs, a limited number at a time, and yield their results in the order of the jobs.

    The first images are read in threads. The time that the caller waits for these images predicts the time
    that it would wait for the remaining images. If the predicted time is much longer than starting processes
    takes, the remaining still images are read in processes.

    Args:
        jobs: the jobs.
        num_stills: number of still images among the jobs.
        images: settings of the crops.
    """
    seconds_waited, num_done = 0.0, 0
    pending: deque[tuple[list[CropJob], Future[list[list[Outcome]]]]] = deque()
    chunk: list[CropJob] = []
    readers = _Readers(images)

    def finish_first() -> Iterator[Results]:
        nonlocal seconds_waited, num_done
        finished_jobs, future = pending.popleft()
        started = time.monotonic()
        outcomes = future.result()
        seconds_waited += time.monotonic() - started
        num_done += len(finished_jobs)
        for job, results in zip(finished_jobs, outcomes, strict=True):
            yield job.positions, results

    try:
        for number, job in enumerate(jobs):
            if number == _TRIAL_IMAGES and num_done > 0:
                readers.consider_processes(seconds_waited / num_done * (num_stills - number))
            is_chunked = readers.uses_processes and isinstance(job.work, StillImage)
            chunk.append(job)
            num_refs = sum(len(item.positions) for item in chunk)
            if not is_chunked or num_refs >= _CHUNK:
                pending.append((chunk, readers.submit(chunk)))
                chunk = []
            while len(pending) >= readers.max_pending:
                yield from finish_first()
        if chunk:
            pending.append((chunk, readers.submit(chunk)))
        while pending:
            yield from finish_first()
    finally:
        readers.close()


class _Readers:
    """Threads that read images.

    If `consider_processes` decides to use processes, a second pool of threads reads the remaining still
    images. Each of its threads starts a process of its own and waits for the crops that the process returns.
    """

    def __init__(self, images: Images) -> None:
        self._images = images
        self._pool = ThreadPoolExecutor(THREADS)
        self._process_pool: ThreadPoolExecutor | None = None
        self._thread_local = threading.local()  # each thread's process, and whether it has failed
        self._started: list[ReadingProcess] = []
        self.max_pending = PREFETCH

    @property
    def uses_processes(self) -> bool:
        return self._process_pool is not None

    def consider_processes(self, waiting_seconds: float) -> None:
        """Use processes from now on if that would save enough of the given waiting time."""
        count = min(MAX_PROCESSES, _count_cores())
        if count >= _MIN_CORES and waiting_seconds >= _MIN_SECONDS and can_start_processes():
            self._process_pool = ThreadPoolExecutor(count)
            self.max_pending = 2 * count

    def submit(self, jobs: list[CropJob]) -> Future[list[list[Outcome]]]:
        if self._process_pool is not None and all(isinstance(job.work, StillImage) for job in jobs):
            return self._process_pool.submit(self._read_in_process, jobs)
        return self._pool.submit(self._read_here, jobs)

    def _read_here(self, jobs: list[CropJob]) -> list[list[Outcome]]:
        return [
            read_crops(job.work.path, job.work.refs, self._images)
            if isinstance(job.work, StillImage)
            else job.work()
            for job in jobs
        ]

    def _read_in_process(self, jobs: list[CropJob]) -> list[list[Outcome]]:
        """Read in this thread's process; read in the thread if that is impossible."""
        stills = [job.work for job in jobs if isinstance(job.work, StillImage)]
        if sum(len(still.refs) for still in stills) > CAPACITY:  # The shared memory is too small.
            return self._read_here(jobs)
        try:
            return self._get_thread_process().read(stills)
        except (EOFError, OSError):  # For example, the system has too little memory for another process.
            self._thread_local.has_failed = True
            return self._read_here(jobs)

    def _get_thread_process(self) -> ReadingProcess:
        if getattr(self._thread_local, "has_failed", False):
            raise EOFError
        if not hasattr(self._thread_local, "process"):
            self._thread_local.process = ReadingProcess(self._images)
            self._started.append(self._thread_local.process)
        process: ReadingProcess = self._thread_local.process
        return process

    def close(self) -> None:
        for pool in (self._pool, self._process_pool):
            if pool is not None:
                pool.shutdown(cancel_futures=True)
        for process in self._started:
            process.close()


def _count_cores() -> int:
    """Return the number of cores that this process may use; torchrun's processes share the cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores // max(1, read_count("LOCAL_WORLD_SIZE", 1))
