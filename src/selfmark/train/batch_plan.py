"""Plan which images are in which batch.

A batch depends only on the seed, the stage and the iteration. Images can therefore be fetched while earlier
steps are still running. A resumed run continues with exactly the batches of an uninterrupted run. Every
process can compute its part of a batch without communication.
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
    """Part of a batch that one process gets: rows `start` to `stop` - 1 of `total` rows.

    Every process draws the random numbers of the whole batch and uses only its part of them. So the
    generators stay in sync, and the batches do not depend on the number of processes. The unused numbers are
    mostly pixel noise: 0.8 MB per image of the batch at 256 pixels.
    """

    start: int
    stop: int
    total: int

    @classmethod
    def for_process(cls, total: int, group: ProcessGroup, setting: str) -> BatchSlice:
        """Return the part of this process; all parts are equally large.

        Args:
            total: rows in the batch.
            group: the processes that share the batch.
            setting: name of the setting that defines `total`, for the error message.

        Raises:
            InputError: if `total` is not a multiple of the number of processes.
        """
        if total % group.size:
            raise InputError(
                f"{setting} is {total}, which {group.size} processes cannot share equally; set it to a "
                f"multiple of {group.size}"
            )
        rows = group.shard(total)
        return cls(rows.start, rows.stop, total)

    @property
    def count(self) -> int:
        """Return the number of rows of this process."""
        return self.stop - self.start

    def take(self, values: Tensor) -> Tensor:
        """Return this process's rows of `values`, which contains one or more whole batches in sequence.

        >>> import torch
        >>> BatchSlice(1, 2, 3).take(torch.tensor([10, 11, 12, 20, 21, 22])).tolist()
        [11, 21]
        """
        batches = values.view(len(values) // self.total, self.total, *values.shape[1:])
        return batches[:, self.start : self.stop].flatten(0, 1)


@dataclass(frozen=True)
class PlannedPairs:
    """Images of one batch of Stage 1: pair b consists of `first[b]` and `second[b]`.

    first:  [B] int64, image indices
    second: [B] int64; the same image, another image, or a nearby frame
    slot:   [B] int64; if the second image is a nearby frame of the first, the column of that frame in
            `NearbyFrames.neighbor`, else -1
    """

    first: IntArray
    second: IntArray
    slot: IntArray

    @property
    def images(self) -> IntArray:
        """Return the image of each view, [2B]: the first images of all pairs, then the second images."""
        return np.concatenate([self.first, self.second])

    def take(self, part: BatchSlice) -> PlannedPairs:
        """Return the pairs of one process."""
        rows = slice(part.start, part.stop)
        return PlannedPairs(self.first[rows], self.second[rows], self.slot[rows])


def iteration_rng(seed: int, iteration: int) -> np.random.Generator:
    """Return the random generator of one iteration; it does not depend on earlier iterations.

    >>> bool(iteration_rng(7, 100).random() == iteration_rng(7, 100).random())
    True
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, iteration]))


@dataclass(frozen=True)
class NearbyFrames:
    """Nearby video frames of N images, for temporal pairs (Sec. 4.2 of the paper).

    neighbor: [N, T] image indices of up to T nearby frames of each image; -1 for none
    video:    [N] number of the video of each image, -1 for still images
    fraction: probability of a temporal pair (an image and one of its nearby frames); if the entry drawn from
              `neighbor` is -1, the pair is not temporal
    """

    neighbor: IntArray
    video: IntArray
    fraction: float


def plan_pairs(
    usable: IntArray, num_pairs: int, same_image_fraction: float, nearby: NearbyFrames | None, seed: int
) -> Callable[[int], PlannedPairs]:
    """Return a function that maps an iteration to the pairs of its batch.

    Args:
        usable: [U] images to choose from.
        num_pairs: pairs in a batch.
        same_image_fraction: among the pairs that are not temporal, the fraction in which both images are the
            same.
        nearby: nearby frames of each image; None for no temporal pairs. If given, all other pairs of two
            different images come from different videos, unless there is only one video (Sec. 4.2).
        seed: seed of this stage.
    """
    draw_other = (
        _draw_from_usable(usable) if nearby is None else _draw_from_other_videos(usable, nearby.video)
    )

    def plan(iteration: int) -> PlannedPairs:
        rng = iteration_rng(seed, iteration)
        position = rng.integers(len(usable), size=num_pairs)
        first, other_image = usable[position], draw_other(position, rng)
        second = np.where(rng.random(num_pairs) < same_image_fraction, first, other_image)
        slot = np.full(num_pairs, -1, dtype=np.int64)
        if nearby is not None:
            random_slot = rng.integers(nearby.neighbor.shape[1], size=num_pairs)
            nearby_image = nearby.neighbor[first, random_slot]
            is_temporal = (rng.random(num_pairs) < nearby.fraction) & (nearby_image >= 0)
            second, slot = (
                np.where(is_temporal, nearby_image, second),
                np.where(is_temporal, random_slot, slot),
            )
        return PlannedPairs(first, second, slot)

    return plan


# A function that draws the second images [B], given the position [B] of each first image in `usable`.
_DrawOther = Callable[[IntArray, np.random.Generator], IntArray]


def _draw_from_usable(usable: IntArray) -> _DrawOther:
    """Return a function that draws uniformly from all usable images."""
    return lambda position, rng: usable[rng.integers(len(usable), size=len(position))]


def _draw_from_other_videos(usable: IntArray, video: IntArray) -> _DrawOther:
    """Return a function that draws uniformly from the images of other videos.

    A still image counts as a video of its own.
    """
    # Sort the images by video. Each video is then one block of the list. The images of all other videos start
    # behind the block and continue at the beginning of the list.
    number = np.where(video[usable] < 0, -1 - usable, video[usable])
    order = np.argsort(number, kind="stable")
    _, start, group, size = np.unique(
        number[order], return_index=True, return_inverse=True, return_counts=True
    )
    if len(start) == 1:
        return _draw_from_usable(usable)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))

    def draw(position: IntArray, rng: np.random.Generator) -> IntArray:
        own_video = group[rank[position]]
        step = rng.integers(len(usable) - size[own_video])
        chosen: IntArray = usable[order[(start[own_video] + size[own_video] + step) % len(usable)]]
        return chosen

    return draw


def plan_images(usable: IntArray, count: int, seed: int) -> Callable[[int], IntArray]:
    """Return a function that maps an iteration to its batch, [count] indices drawn from `usable` [U]."""
    return lambda iteration: usable[iteration_rng(seed, iteration).integers(len(usable), size=count)]
