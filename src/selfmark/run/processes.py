"""Coordinate the processes that work on one run together, started by torchrun.

Each process (rank) runs the same program on its shard of the images, and sums are reduced over all ranks. A
single process is a group of size one, whose methods do not communicate. Callers therefore need not
distinguish the two cases.

>>> SINGLE_PROCESS.shard(10), SINGLE_PROCESS.is_leader
(slice(0, 10, None), True)
>>> ProcessGroup(rank=1, size=3).shard(10)
slice(3, 6, None)

If every process needs the results of all images, `compute_shared` lets each process compute a part of them.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from selfmark.errors import InputError, TrainingError
from selfmark.run.torchrun_environment import read_count, require_connection

# Long enough for rank 0 to read images and write reports while the others wait. A dead process is detected
# immediately, regardless of the timeout.
_TIMEOUT = timedelta(hours=2)

Result = TypeVar("Result")


@dataclass(frozen=True)
class ProcessGroup:
    """A group of `size` processes, as seen by the process with this `rank`.

    Tensors passed to its methods must be contiguous and on the group's device.
    """

    rank: int
    size: int

    @classmethod
    def from_environment(cls, device: torch.device) -> ProcessGroup:
        """Join the group that torchrun's environment variables describe.

        On CUDA, each process makes the GPU of its local rank the current one.

        Returns:
            The group; `SINGLE_PROCESS` without torchrun.

        Raises:
            InputError: if a variable is missing or not a number, or if there are fewer GPUs than processes.
        """
        size, rank = read_count("WORLD_SIZE", 1), read_count("RANK", 0)
        if size <= 1:
            return SINGLE_PROCESS
        gpu = None
        if device.type == "cuda":
            local_rank, num_gpus = read_count("LOCAL_RANK", 0), torch.cuda.device_count()
            if local_rank >= num_gpus:
                raise InputError(f"--nproc-per-node must be at most {num_gpus}, the number of GPUs")
            gpu = torch.device("cuda", local_rank)
            torch.cuda.set_device(gpu)
        require_connection(size)
        with _report_lost_peers():
            backend = "gloo" if gpu is None else "nccl"
            dist.init_process_group(backend, timeout=_TIMEOUT, device_id=gpu)
        return cls(rank, size)

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0, the only process that writes results to files."""
        return self.rank == 0

    def shard(self, count: int, pass_size: int = 1) -> slice:
        """Return this process's contiguous part of `count` items, in whole passes of `pass_size` items.

        The rounding errors of a network depend on the size of the pass. In whole passes, each item is
        computed together with the same other items as in a single process. The numbers of passes of two
        processes differ by at most one.

        >>> [ProcessGroup(rank, 2).shard(10, pass_size=4) for rank in range(2)]
        [slice(0, 4, None), slice(4, 10, None)]
        """
        passes = -(-count // pass_size)
        start, stop = (passes * rank // self.size * pass_size for rank in (self.rank, self.rank + 1))
        return slice(min(start, count), min(stop, count))

    def all_sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        with _report_lost_peers():
            if self.size > 1:
                dist.all_reduce(tensor)
        return tensor

    def all_max(self, tensor: Tensor) -> Tensor:
        """Take the elementwise maximum over all processes, in place."""
        with _report_lost_peers():
            if self.size > 1:
                dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def any(self, condition: bool) -> bool:
        """Return True if the condition holds on any rank."""
        if self.size == 1:
            return condition
        return bool(self.all_max(torch.tensor([float(condition)], device=self.device)).item())

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Copy the tensor of rank `source` to all processes, in place."""
        with _report_lost_peers():
            if self.size > 1:
                dist.broadcast(tensor, source)
        return tensor

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """Concatenate the rows of all processes in rank order; processes may have different row counts."""
        if self.size == 1:
            return tensor
        lengths = self.gather_counts(len(tensor))
        # Backends only gather tensors of equal shape.
        padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in lengths]
        with _report_lost_peers():
            dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def gather_counts(self, count: int) -> list[int]:
        """Return the counts of all processes, in rank order."""
        if self.size == 1:
            return [count]
        counts = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        counts[self.rank] = count
        return [int(value) for value in self.all_sum(counts).tolist()]

    def barrier(self) -> None:
        """Wait until every process has called this."""
        if self.size > 1:
            with _report_lost_peers():
                dist.barrier()

    def run_on_leader(self, action: Callable[[], None]) -> None:
        """Run a function on the leader while the others wait; if the function fails, the others exit."""
        if self.size == 1:
            return action()
        has_failed = torch.zeros(1, device=self.device)
        try:
            if self.is_leader:
                action()
        except BaseException:
            self.broadcast(has_failed.fill_(1))
            raise
        if self.broadcast(has_failed).item():
            raise SystemExit(2)  # The leader reports the error.
        return None

    def run_on_all(self, action: Callable[[], Result]) -> Result:
        """Run a function on every process; if it fails on one process, all exit, and one reports the error.

        The function must not communicate. An interrupt is raised immediately: torchrun sends it to all
        processes.
        """
        if self.size == 1:
            return action()
        has_failed = torch.zeros(self.size, device=self.device)
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
            has_failed[self.rank] = 1
        failed_ranks = torch.nonzero(self.all_sum(has_failed)).flatten().tolist()
        if not failed_ranks:
            return result
        if failure is not None and failed_ranks[0] == self.rank:
            raise failure
        raise SystemExit(2)  # The first process that failed reports the error.

    def compute_shared(
        self, count: int, pass_size: int, compute: Callable[[slice], Sequence[Tensor]]
    ) -> tuple[Tensor, ...]:
        """Compute a part of the items on each process, and gather the results of all items in order.

        Args:
            count: number of items, for example images.
            pass_size: number of items that `compute` processes at a time. It may differ between GPUs with
                different free memory; parts then consist of passes of the smallest size.
            compute: called with a slice of the items; returns tensors whose rows belong to these items, in
                order, with any number of rows per item. It must not communicate.

        Returns:
            The tensors that `compute` returns for all items in a single process.
        """
        if self.size == 1:
            return tuple(compute(slice(0, count)))
        smallest_pass = -int(self.all_max(torch.tensor([-pass_size], device=self.device)).item())
        own_items = self.shard(count, smallest_pass)
        # If there are fewer passes than processes, some processes have no items. They compute a pass and keep
        # no row of it, because all processes have to gather tensors of the same types and shapes.
        computed = own_items if own_items.start < own_items.stop else slice(0, min(smallest_pass, count))
        tensors = self.run_on_all(lambda: compute(computed))
        kept = tensors if computed == own_items else [tensor[:0] for tensor in tensors]
        return tuple(self.gather_rows(tensor.to(self.device)).to(tensor.device) for tensor in kept)

    @property
    def device(self) -> torch.device:
        """Device of the tensors that the group exchanges."""
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


SINGLE_PROCESS = ProcessGroup(rank=0, size=1)


def is_restarted() -> bool:
    """Return True if torchrun restarted this process because a process of the job had failed."""
    return read_count("TORCHELASTIC_RESTART_COUNT", 0) > 0


@contextmanager
def _report_lost_peers() -> Iterator[None]:
    """Convert errors of a broken connection to a TrainingError that says how to continue."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise TrainingError(
            "another process of this job has ended; the run is saved, continue it with --resume"
        ) from error


def measure_peak_memory() -> int:
    """Return the largest memory that this process has used so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB.
