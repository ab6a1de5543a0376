"""K-means on the device the vectors are on: k-means++ seeding, restarts, empty-cluster repair.

The vectors may be spread over the processes of a group. Each works on its own rows and only sums are joined,
so no process ever holds them all. Random numbers are drawn alike everywhere and located among the rows of all
processes, in rank order, so the clusters do not depend on how the rows are spread (up to rounding).

Deterministic under a seed: sums are matrix products, never atomic additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

# Runs whose costs differ by less have found the same clusters in another order; the first of them counts,
# because which is cheaper by a rounding error depends on how the vectors are spread over processes.
_SAME_COST = 1 + 1e-6
_LOOK_EVERY = 4  # Lloyd iterations between two looks at the result, each of which waits for the device


class NearestCentroids(NamedTuple):
    """For each vector its nearest centroid: `cluster` [P] int64 and squared `distance` [P]."""

    cluster: Tensor
    distance: Tensor


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products in float32 even where training allows TF32, whose rounding moves vectors between clusters."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@_full_precision()
def nearest_centroid(vectors: Tensor, centroids: Tensor) -> NearestCentroids:
    """The nearest of [C, D] centroids for each of [P, D] vectors, by squared Euclidean distance.

    The result is where the centroids are, and so is the work; the vectors may be in host memory.
    """
    target = _Target.of(centroids)
    clusters, distances = [], []
    for block in iterate_blocks(vectors, centroids.device):
        scores = target.compare(block)
        clusters.append(_least(scores))
        partial = scores.gather(1, clusters[-1][:, None])[:, 0]
        distances.append((partial + torch.linalg.vecdot(block, block)).clamp_min(0))
    return NearestCentroids(torch.cat(clusters), torch.cat(distances))


class CentroidMargins(NamedTuple):
    """For each vector its nearest centroid, the squared distance to it, and how deep in its cluster it lies.

    margin [P] is measured along the line to that other centroid whose border is nearest: 0 on the border, 1
    level with the vector's own centroid. Unlike a ratio of distances it does not shrink with the number of
    dimensions.
    """

    cluster: Tensor
    distance: Tensor
    margin: Tensor


@_full_precision()
def centroid_margins(vectors: Tensor, centroids: Tensor) -> CentroidMargins:
    """The nearest of [C, D] centroids, C at least 2, for each of [P, D] vectors, and its margin.

    >>> placed = place(torch.tensor([[0.0], [4.0], [6.0]]), torch.tensor([[0.0], [10.0]]))
    >>> [round(margin, 1) for margin in placed.margin.tolist()]
    [1.0, 0.2, 0.2]
    """
    target = _Target.of(centroids)
    between = torch.cdist(centroids, centroids).square_()
    between.fill_diagonal_(1).clamp_min_(
        torch.finfo(between.dtype).tiny
    )  # equal centroids: all are on the border
    parts = []
    for block in iterate_blocks(vectors, centroids.device):
        scores = target.compare(block)
        cluster = _least(scores)
        partial = scores.gather(1, cluster[:, None])
        distance = (partial[:, 0] + torch.linalg.vecdot(block, block)).clamp_min(0)
        inside = (scores - partial) / between[cluster]
        margin = inside.scatter_(1, cluster[:, None], torch.inf).amin(dim=1)
        parts.append((cluster, distance, margin))
    return CentroidMargins(*(torch.cat(part) for part in zip(*parts, strict=True)))


def iterate_blocks(vectors: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Vectors [P, D] a block [B, D] at a time, on a device that need not have room for all of them.

    Blocks are the same wherever the vectors are, so what is computed from them is too, bit by bit.
    """
    for block in torch.split(vectors, _block(device)):
        if block.device.type == device.type:
            yield block
        else:
            # Pinned, so that the device works on this block while the host gets the next one ready.
            yield block.pin_memory().to(device, non_blocking=True)


def sample_rows(
    rows: int, most: int, generator: torch.Generator, group: ProcessGroup = SINGLE_PROCESS
) -> Tensor:
    """Which of this process's rows to take so that all processes together take at most `most`: [S] int64.

    The rows of all processes are cut into `most` stretches of equal length and one is taken of each. The
    first cut falls at random, so every row is as likely to be taken as any other.

    >>> sample_rows(10, 20, torch.Generator()).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> len(sample_rows(1_000_000, 1000, torch.Generator()))
    1000
    """
    device = generator.device
    counts = group.gather_counts(rows)
    before, count = sum(counts[: group.rank]), sum(counts)
    if count <= most:
        return torch.arange(rows, device=device)
    draws = torch.rand(most + 1, generator=generator, device=device, dtype=torch.float64)
    cuts = ((torch.arange(most, device=device) + draws[0]) * (count / most)).long()
    lengths = torch.diff(cuts, append=cuts[:1] + count)
    # The last stretch goes on at the front, up to the first cut.
    chosen = (cuts + (draws[1:] * lengths).long()) % count - before
    return chosen[(chosen >= 0) & (chosen < rows)].sort().values


@_full_precision()
def kmeans(
    vectors: Tensor,
    clusters: int,
    iterations: int,
    restarts: int,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Centroids [clusters, D] of vectors [P, D]: the best of several runs by within-cluster distance.

    Args:
        vectors: [P, D] float32, those of this process; in all processes together at least `clusters`.
        clusters: number of centroids.
        iterations: most Lloyd iterations per run; a run ends early once it stands still.
        restarts: independent runs.
        generator: on the vectors' device, in the same state in every process.
        group: the processes that hold the vectors.
    """
    count = sum(group.gather_counts(len(vectors)))
    if count < clusters:
        raise ValueError(f"{count} vectors cannot form {clusters} clusters")
    draws = torch.rand(restarts, clusters, generator=generator, device=vectors.device, dtype=torch.float64)
    runs = torch.stack([_lloyd(vectors, seeds, iterations, group) for seeds in _seed(vectors, draws, group)])
    costs = torch.stack([nearest_centroid(vectors, run).distance.double().sum() for run in runs])
    costs = group.all_sum(costs)
    best = costs <= costs.min() * _SAME_COST
    return runs[best.int().argmax()]


# --- seeding ---------------------------------------------------------------------------------------


def _seed(vectors: Tensor, draws: Tensor, group: ProcessGroup) -> Tensor:
    """k-means++: each next seed is drawn in proportion to its squared distance from those before.

    All R runs at once, so that the vectors are read C times, not R x C times. In float64, because a draw
    falls between neighboring rows, and which of them it hits must not depend on how a product is rounded.

    Args:
        vectors: [P, D].
        draws: [R, C] uniform random numbers.
        group: the processes that hold the vectors.

    Returns:
        [R, C, D].
    """
    restarts, clusters = draws.shape
    seeds = vectors.new_empty(restarts, clusters, vectors.shape[1])
    exact = vectors.double()
    # A block at a time: the product behind it is as large as what it is taken of.
    norms = torch.cat([torch.linalg.vecdot(b, b) for b in torch.split(exact, _block(exact.device))])
    weight = draws.new_ones(restarts, len(vectors))
    for index in range(clusters):
        seeds[:, index] = _draw(vectors, weight, draws[:, index], group)
        seed = seeds[:, index].double()
        distance = torch.addmm(norms, -2 * seed, exact.T) + torch.linalg.vecdot(seed, seed)[:, None]
        weight = torch.minimum(weight, distance.clamp_min_(0)) if index else distance.clamp_min_(0)
    return seeds


def _draw(vectors: Tensor, weight: Tensor, draws: Tensor, group: ProcessGroup) -> Tensor:
    """One row for each run, [R, D], drawn by weight [R, P] among the rows of all processes."""
    cumulative = weight.cumsum(dim=1)
    totals = weight.new_zeros(group.size, len(weight))
    if len(vectors):
        totals[group.rank] = cumulative[:, -1]
    ends = group.all_sum(totals).cumsum(dim=0)
    target = draws * ends[-1] * (1 - 1e-15)  # never quite the end
    start = ends[group.rank - 1] if group.rank else torch.zeros_like(target)
    mine = (start <= target) & (target < ends[group.rank])
    drawn = vectors.new_zeros(len(weight), vectors.shape[1])
    if len(vectors):
        row = torch.searchsorted(cumulative, (target - start)[:, None], right=True)[:, 0]
        drawn = torch.where(mine[:, None], vectors[row.clamp_max(len(vectors) - 1)], drawn)
    return group.all_sum(drawn)


# --- Lloyd's iterations ---------------------------------------------------------------------------


class _Target(NamedTuple):
    """Centroids made ready to be compared with many vectors."""

    norms: Tensor  # [C]
    weights: Tensor  # [D, C]

    @classmethod
    def of(cls, centroids: Tensor) -> _Target:
        return cls(torch.linalg.vecdot(centroids, centroids), -2 * centroids.T)

    def compare(self, block: Tensor) -> Tensor:
        """Squared distances [B, C] of vectors [B, D], less the vectors' own squared lengths."""
        return torch.addmm(self.norms, block, self.weights)


def _least(scores: Tensor) -> Tensor:
    """Column [B] of the least of each row of [B, C]; of equals the first."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmin(axis=1))  # three times as fast as torch's
    return scores.argmin(dim=1)


def _lloyd(vectors: Tensor, centroids: Tensor, iterations: int, group: ProcessGroup) -> Tensor:
    for iteration in range(1, iterations + 1):
        before = centroids
        total, count = _sums(vectors, centroids, group)
        means = (total / count.clamp_min(1)[:, None]).to(centroids.dtype)
        centroids = torch.where(count[:, None] > 0, means, before)
        if iteration % _LOOK_EVERY and iteration < iterations:
            continue
        empty = torch.nonzero(count == 0).flatten()
        if len(empty):
            centroids[empty] = _farthest(vectors, centroids, len(empty), group)
        if torch.equal(centroids, before):
            break
    return centroids


def _sums(vectors: Tensor, centroids: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Sum [C, D] and count [C] of the vectors nearest to each centroid, float64, over all processes."""
    target = _Target.of(centroids)
    joined = torch.zeros(len(centroids), vectors.shape[1] + 1, device=centroids.device, dtype=torch.float64)
    for block in iterate_blocks(vectors, centroids.device):
        total, count = _add_up(block, _least(target.compare(block)), len(centroids))
        joined[:, :-1] += total
        joined[:, -1] += count
    group.all_sum(joined)
    return joined[:, :-1], joined[:, -1]


def _add_up(block: Tensor, cluster: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Sum [C, D] and count [C] of the vectors [B, D] of each cluster."""
    if block.device.type == "cpu":
        total = block.new_zeros(clusters, block.shape[1]).index_add_(0, cluster, block)
        return total, torch.bincount(cluster, minlength=clusters)
    # CUDA adds by index in no fixed order; a product with zeros and ones always adds in the same.
    member = block.new_zeros(len(block), clusters).scatter_(1, cluster[:, None], 1)
    return member.T @ block, member.sum(dim=0)


def _farthest(vectors: Tensor, centroids: Tensor, wanted: int, group: ProcessGroup) -> Tensor:
    """The vectors [wanted, D] farthest from their centroids, in all processes; of equals the earlier row."""
    distance = nearest_centroid(vectors, centroids).distance
    own = distance.argsort(descending=True, stable=True)[:wanted]
    distances, candidates = group.gather_rows(distance[own]), group.gather_rows(vectors[own])
    return candidates[distances.argsort(descending=True, stable=True)[:wanted]]


def _block(device: torch.device) -> int:
    """Vectors to work on at a time: enough to keep all threads busy, few enough for a matrix of distances."""
    return 32_768 if device.type == "cpu" else 262_144
