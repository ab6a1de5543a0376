"""Which images go into which batch, known ahead of time: it follows from seed, stage and iteration alone.

So images can be fetched while earlier steps still run, a resumed run goes on with the very batches it would
have had, and every process of a job knows its part without asking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from selfmark.errors import InputError
from selfmark.run.processes import ProcessGroup

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchSlice:
    """The rows of a batch that are this process's: `start` to `stop` of `whole`.

    Every process draws the random numbers of the whole batch and takes its part of them, so that their
    generators stay alike and a job of any size sees the same batches. Pixel noise is most of it: 0.8 MB for
    each picture of the batch at 256 pixels.
    """

    start: int
    stop: int
    whole: int

    @classmethod
    def of_group(cls, whole: int, group: ProcessGroup, setting: str) -> BatchSlice:
        """An equal part for each process; `setting` names where `whole` was set."""
        if whole % group.size:
            raise InputError(f"{setting} is {whole}, which {group.size} processes cannot share equally")
        rows = group.shard(whole)
        return cls(rows.start, rows.stop, whole)

    @property
    def count(self) -> int:
        return self.stop - self.start

    def of(self, values: Tensor) -> Tensor:
        """This process's rows of values for one or more whole batches, one after the other.

        >>> import torch
        >>> Part(1, 2, 3).of(torch.tensor([10, 11, 12, 20, 21, 22])).tolist()
        [11, 21]
        """
        batches = values.view(len(values) // self.whole, self.whole, *values.shape[1:])
        return batches[:, self.start : self.stop].flatten(0, 1)


@dataclass(frozen=True)
class PlannedPairs:
    """The images of one batch of Stage 1: pair b is of `one[b]` and `other[b]`.

    one:   [B] int64, image numbers
    other: [B] int64; the same image again, another one, or a nearby frame
    slot:  [B] int64, which of its nearby frames `other` is; -1 where it is not chosen as one
    """

    one: IntArray
    other: IntArray
    slot: IntArray

    @property
    def images(self) -> IntArray:
        """[2B], first sides then second sides, in the order of the batch's views."""
        return np.concatenate([self.one, self.other])

    def of(self, part: BatchSlice) -> PlannedPairs:
        """The pairs of one process."""
        rows = slice(part.start, part.stop)
        return PlannedPairs(self.one[rows], self.other[rows], self.slot[rows])


def iteration_rng(seed: int, iteration: int) -> np.random.Generator:
    """The random numbers of one iteration; any iteration's are to be had at once, in any order.

    >>> draws(7, 100).integers(10) == draws(7, 100).integers(10)
    True
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, iteration]))


def plan_pairs(
    usable: IntArray,
    pairs: int,
    same_image: float,
    neighbor: IntArray | None,
    temporal: float,
    seed: int,
) -> Callable[[int], PlannedPairs]:
    """Plans of Stage 1 by iteration.

    Args:
        usable: [U] images to choose from.
        pairs: pairs in a batch.
        same_image: share of pairs made of one image twice.
        neighbor: [N, T] nearby frames of each image, -1 for none; None without video.
        temporal: of the pairs of different images, how many are nearby frames.
        seed: of this stage.
    """

    def plan(iteration: int) -> PlannedPairs:
        rng = iteration_rng(seed, iteration)
        one = usable[rng.integers(len(usable), size=pairs)]
        another = usable[rng.integers(len(usable), size=pairs)]
        other = np.where(rng.random(pairs) < same_image, one, another)
        slot = np.full(pairs, -1, dtype=np.int64)
        if neighbor is not None:
            drawn = rng.integers(neighbor.shape[1], size=pairs)
            near = neighbor[one, drawn]
            chosen = (other != one) & (rng.random(pairs) < temporal) & (near >= 0)
            other, slot = np.where(chosen, near, other), np.where(chosen, drawn, slot)
        return PlannedPairs(one, other, slot)

    return plan


def plan_images(usable: IntArray, count: int, seed: int) -> Callable[[int], IntArray]:
    """Plans of Stage 2 by iteration: [count] images of the `usable` ones."""
    return lambda iteration: usable[iteration_rng(seed, iteration).integers(len(usable), size=count)]
