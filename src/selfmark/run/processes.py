"""The processes that work on one run together, started by torchrun; one process alone is a group of one.

Every process ("rank") runs the same program on its share of the images and joins its sums with the others'.
For a group of one each method returns what it is given, so no caller asks how many processes there are.

>>> SINGLE_PROCESS.shard(10), SINGLE_PROCESS.is_leader
(slice(0, 10, None), True)
>>> ProcessGroup(rank=1, size=3).shard(10)
slice(3, 6, None)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from selfmark.errors import InputError, TrainingError

# Rank 0 reads images and writes reports while the others wait; a dead peer is noticed at once anyway.
_PATIENCE = timedelta(hours=2)


@dataclass(frozen=True)
class ProcessGroup:
    """Process `rank` of `size`. Tensors are contiguous and on the device the group was started for."""

    rank: int
    size: int

    @classmethod
    def from_environment(cls, device: torch.device) -> ProcessGroup:
        """The group torchrun's variables describe, joined; a group of one where there are none.

        On CUDA each process gets a GPU of its own, which is the current one from here on.
        """
        size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        if size == 1:
            return SINGLE_PROCESS
        gpu = None
        if device.type == "cuda":
            local, here = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
            if local >= here:
                raise InputError(f"this machine has {here} GPUs: --nproc-per-node must not be more")
            gpu = torch.device("cuda", local)
            torch.cuda.set_device(gpu)
        with _peers_needed():
            backend = "gloo" if gpu is None else "nccl"
            dist.init_process_group(backend, timeout=_PATIENCE, device_id=gpu)
        return cls(rank, size)

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_leader(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def shard(self, count: int) -> slice:
        """This process's part of `count` items: a stretch, as long as any other's give or take one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        with _peers_needed():
            if self.size > 1:
                dist.all_reduce(tensor)
        return tensor

    def all_max(self, tensor: Tensor) -> Tensor:
        """The largest over all processes, in place."""
        with _peers_needed():
            if self.size > 1:
                dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def any(self, own: bool) -> bool:
        """Whether it holds in one process at least, where it is `own` in this one."""
        if self.size == 1:
            return own
        return bool(self.all_max(torch.tensor([float(own)], device=self.device)).item())

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """What process `source` has, in place."""
        with _peers_needed():
            if self.size > 1:
                dist.broadcast(tensor, source)
        return tensor

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The rows of all processes, in rank order; each may have another number of rows, also none."""
        if self.size == 1:
            return tensor
        lengths = self.gather_counts(len(tensor))
        # Backends gather equal shapes only.
        padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in lengths]
        with _peers_needed():
            dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    def gather_counts(self, own: int) -> list[int]:
        """How many of something each process has, where this one has `own`."""
        if self.size == 1:
            return [own]
        table = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        table[self.rank] = own
        return [int(count) for count in self.all_sum(table).tolist()]

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            with _peers_needed():
                dist.barrier()

    def run_on_leader(self, action: Callable[[], None]) -> None:
        """Do something in the leading process alone; the others go on once it is done, or end if it fails."""
        if self.size == 1:
            return action()
        failed = torch.zeros(1, device=self.device)
        try:
            if self.is_leader:
                action()
        except BaseException:
            self.broadcast(failed.fill_(1))
            raise
        if self.broadcast(failed).item():
            raise SystemExit(2)  # the leading process says why
        return None

    @property
    def device(self) -> torch.device:
        """Where this group's tensors live."""
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


SINGLE_PROCESS = ProcessGroup(rank=0, size=1)


def is_restarted() -> bool:
    """Whether torchrun has started this process anew after one of the job's processes ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def _peers_needed() -> Iterator[None]:
    """A connection that breaks means that a peer has gone; say so instead of naming sockets."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise TrainingError(
            "another process of this job has ended; what was reached is kept, resume with --resume"
        ) from error
