"""Cluster vectors by K-means on CPU or GPU: k-means++ seeding, restarts, repair of empty clusters.

The vectors may be distributed over the processes of a group. Each process works on its own vectors, and the
processes exchange only sums and a few vectors, so no process ever needs all vectors. All processes draw the
same random numbers and apply them to the vectors of all processes in rank order. The clusters therefore do
not depend on the number of processes, up to rounding.

The result is deterministic for a given seed: no sum uses atomic additions, whose order varies on CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup

# If the costs of two runs differ by less than this factor, both count as having found the same clusters. The
# first run is then used, because rounding, and so the number of processes, decides which run is cheaper.
_SAME_COST = 1 + 1e-6
_CHECK_EVERY = 4  # Lloyd iterations between convergence checks, each of which waits for the device


class NearestCentroids(NamedTuple):
    """Nearest centroid of each vector: `cluster` [P] int64 and squared `distance` [P]."""

    cluster: Tensor
    distance: Tensor


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply matrices in float32 even if training allows TF32, which would change some clusters."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@_full_precision()
def nearest_centroid(vectors: Tensor, centroids: Tensor) -> NearestCentroids:
    """Find the nearest of the centroids [C, D] for each vector [P, D], by squared Euclidean distance.

    The computation runs on the centroids' device; the vectors may be in host memory.
    """
    prepared = _PreparedCentroids.prepare(centroids)
    clusters, distances = [], []
    for block in iterate_blocks(vectors, centroids.device):
        scores = prepared.compare(block)
        clusters.append(_argmin(scores))
        lowest_score = scores.gather(1, clusters[-1][:, None])[:, 0]
        distances.append((lowest_score + torch.linalg.vecdot(block, block)).clamp_min(0))
    return NearestCentroids(torch.cat(clusters), torch.cat(distances))


class CentroidMargins(NamedTuple):
    """Nearest centroid of each vector, the squared distance to it, and the margin to other clusters.

    cluster:  [P] int64
    distance: [P], squared
    margin:   [P], 1 if the vector is at its centroid and 0 on the border with the closest other cluster,
              measured along the line between the two centroids. Unlike a ratio of distances, the margin does
              not shrink with the number of dimensions.
    """

    cluster: Tensor
    distance: Tensor
    margin: Tensor


@_full_precision()
def centroid_margins(vectors: Tensor, centroids: Tensor) -> CentroidMargins:
    """Find the nearest of at least two centroids [C, D] for each vector [P, D], and the vector's margin.

    >>> margins = centroid_margins(torch.tensor([[0.0], [4.0], [6.0]]), torch.tensor([[0.0], [10.0]]))
    >>> [round(margin, 1) for margin in margins.margin.tolist()]
    [1.0, 0.2, 0.2]
    """
    prepared = _PreparedCentroids.prepare(centroids)
    squared_distances = torch.cdist(centroids, centroids).square_()
    # The lower limit avoids 0 / 0 for equal centroids: their vectors lie on the border, with margin 0.
    squared_distances.fill_diagonal_(1).clamp_min_(torch.finfo(squared_distances.dtype).tiny)
    parts = []
    for block in iterate_blocks(vectors, centroids.device):
        scores = prepared.compare(block)
        cluster = _argmin(scores)
        lowest_score = scores.gather(1, cluster[:, None])
        distance = (lowest_score[:, 0] + torch.linalg.vecdot(block, block)).clamp_min(0)
        margins = (scores - lowest_score) / squared_distances[cluster]
        margin = margins.scatter_(1, cluster[:, None], torch.inf).amin(dim=1)
        parts.append((cluster, distance, margin))
    return CentroidMargins(*(torch.cat(part) for part in zip(*parts, strict=True)))


def iterate_blocks(vectors: Tensor, device: torch.device) -> Iterator[Tensor]:
    """Yield vectors [P, D] in blocks [B, D] on a device that may be too small for all of them.

    The blocks are the same for vectors in host and in device memory, and so are the results.
    """
    for block in torch.split(vectors, _block_size(device)):
        if block.device.type == device.type:
            yield block
        else:
            # Pinned memory lets the device work on this block while the host prepares the next one.
            yield block.pin_memory().to(device, non_blocking=True)


def sample_rows(
    num_rows: int, max_rows: int, generator: torch.Generator, group: ProcessGroup = SINGLE_PROCESS
) -> Tensor:
    """Sample rows of all processes; return the indices of those of this process, [S] int64 ascending.

    The rows of all processes, in rank order, are divided into `max_rows` intervals of equal length. One row
    is drawn from each interval. The first boundary is random, so all rows are equally likely.

    Args:
        num_rows: number of rows of this process.
        max_rows: number of rows to sample over all processes; if there are fewer, all are returned.
        generator: random generator in the same state in every process; the result is on its device.
        group: the processes that the rows are distributed over.

    >>> sample_rows(10, 20, torch.Generator()).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> len(sample_rows(1_000_000, 1000, torch.Generator()))
    1000
    """
    device = generator.device
    counts = group.gather_counts(num_rows)
    offset, total = sum(counts[: group.rank]), sum(counts)
    if total <= max_rows:
        return torch.arange(num_rows, device=device)
    draws = torch.rand(max_rows + 1, generator=generator, device=device, dtype=torch.float64)
    starts = ((torch.arange(max_rows, device=device) + draws[0]) * (total / max_rows)).long()
    lengths = torch.diff(starts, append=starts[:1] + total)
    # The last interval wraps around to the first boundary.
    chosen = (starts + (draws[1:] * lengths).long()) % total - offset
    return chosen[(chosen >= 0) & (chosen < num_rows)].sort().values


@_full_precision()
def kmeans(
    vectors: Tensor,
    clusters: int,
    iterations: int,
    restarts: int,
    generator: torch.Generator,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Tensor:
    """Run K-means several times and return the centroids [clusters, D] with the lowest cost.

    Args:
        vectors: [P, D] float32, the vectors of this process; all processes together need at least `clusters`.
        clusters: number of centroids.
        iterations: maximum number of Lloyd iterations per run; a run ends early when it has converged.
        restarts: number of independent runs.
        generator: random generator on the vectors' device, in the same state in every process.
        group: the processes that the vectors are distributed over.
    """
    count = sum(group.gather_counts(len(vectors)))
    if count < clusters:
        raise ValueError(f"{count} vectors cannot form {clusters} clusters")
    draws = torch.rand(restarts, clusters, generator=generator, device=vectors.device, dtype=torch.float64)
    runs = torch.stack([_lloyd(vectors, seeds, iterations, group) for seeds in _seed(vectors, draws, group)])
    costs = torch.stack([nearest_centroid(vectors, run).distance.double().sum() for run in runs])
    costs = group.all_sum(costs)
    is_best = costs <= costs.min() * _SAME_COST
    return runs[is_best.int().argmax()]  # the first of the best runs


# --- seeding ---------------------------------------------------------------------------------------


def _seed(vectors: Tensor, draws: Tensor, group: ProcessGroup) -> Tensor:
    """Choose seeds by k-means++.

    Each seed is a vector, drawn with a probability proportional to its squared distance from the nearest
    earlier seed. All R runs are seeded at once, so that the vectors are read C times, not R x C times.
    Weights are float64, because the vector that a draw selects must not depend on rounding.

    Args:
        vectors: [P, D] vectors of this process.
        draws: [R, C] uniform random numbers.
        group: the processes that the vectors are distributed over.

    Returns:
        [R, C, D] seeds of each run.
    """
    restarts, clusters = draws.shape
    seeds = vectors.new_empty(restarts, clusters, vectors.shape[1])
    vectors64 = vectors.double()
    # Blocks save memory, because `vecdot` allocates a product as large as its input.
    blocks = torch.split(vectors64, _block_size(vectors.device))
    norms = torch.cat([torch.linalg.vecdot(block, block) for block in blocks])
    weight = draws.new_ones(restarts, len(vectors))
    for index in range(clusters):
        seeds[:, index] = _draw_rows(vectors, weight, draws[:, index], group)
        seed = seeds[:, index].double()
        distance = torch.addmm(norms, -2 * seed, vectors64.T) + torch.linalg.vecdot(seed, seed)[:, None]
        weight = torch.minimum(weight, distance.clamp_min_(0)) if index else distance.clamp_min_(0)
    return seeds


def _draw_rows(vectors: Tensor, weight: Tensor, draws: Tensor, group: ProcessGroup) -> Tensor:
    """Draw one vector per run from the vectors of all processes, [R, D].

    Args:
        vectors: [P, D], the vectors of this process.
        weight: [R, P], proportional to the probabilities.
        draws: [R] uniform random numbers, the same in every process.
        group: the processes that the vectors are distributed over.
    """
    # A draw is a position on the line of all weights, one process after the other in rank order. The process
    # whose interval contains the position contributes the vector; all others contribute zeros to the sum.
    cumulative = weight.cumsum(dim=1)
    totals = weight.new_zeros(group.size, len(weight))
    if len(vectors):
        totals[group.rank] = cumulative[:, -1]
    ends = group.all_sum(totals).cumsum(dim=0)
    target = draws * ends[-1] * (1 - 1e-15)  # strictly below the end of the line
    start = ends[group.rank - 1] if group.rank else torch.zeros_like(target)
    is_here = (start <= target) & (target < ends[group.rank])
    drawn = vectors.new_zeros(len(weight), vectors.shape[1])
    if len(vectors):
        row = torch.searchsorted(cumulative, (target - start)[:, None], right=True)[:, 0]
        drawn = torch.where(is_here[:, None], vectors[row.clamp_max(len(vectors) - 1)], drawn)
    return group.all_sum(drawn)


# --- Lloyd's iterations ---------------------------------------------------------------------------


class _PreparedCentroids(NamedTuple):
    """Centroids prepared for the comparison with many vectors."""

    norms: Tensor  # [C] squared norms
    weights: Tensor  # [D, C] transposed centroids times -2

    @classmethod
    def prepare(cls, centroids: Tensor) -> _PreparedCentroids:
        return cls(torch.linalg.vecdot(centroids, centroids), -2 * centroids.T)

    def compare(self, block: Tensor) -> Tensor:
        """Return squared distances [B, C] of vectors [B, D], minus the squared norms of the vectors."""
        return torch.addmm(self.norms, block, self.weights)


def _argmin(scores: Tensor) -> Tensor:
    """Return the column [B] of the minimum of each row of [B, C]; the first if tied."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmin(axis=1))  # three times as fast as torch's
    return scores.argmin(dim=1)


def _lloyd(vectors: Tensor, centroids: Tensor, iterations: int, group: ProcessGroup) -> Tensor:
    """Improve centroids [C, D] until they no longer change, by at most `iterations` Lloyd iterations.

    At each convergence check, empty clusters move to the vectors that are farthest from their nearest
    centroids.
    """
    for iteration in range(1, iterations + 1):
        before = centroids
        total, count = _sum_by_cluster(vectors, centroids, group)
        means = (total / count.clamp_min(1)[:, None]).to(centroids.dtype)
        centroids = torch.where(count[:, None] > 0, means, before)
        if iteration % _CHECK_EVERY and iteration < iterations:
            continue
        empty = torch.nonzero(count == 0).flatten()
        if len(empty):
            centroids[empty] = _find_farthest(vectors, centroids, len(empty), group)
        if torch.equal(centroids, before):
            break
    return centroids


def _sum_by_cluster(vectors: Tensor, centroids: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
    """Return the sum [C, D] and count [C] of the vectors nearest to each centroid over all processes."""
    prepared = _PreparedCentroids.prepare(centroids)
    # Sums and counts share one tensor, so that one exchange is enough; the last column is the count.
    sums = torch.zeros(len(centroids), vectors.shape[1] + 1, device=centroids.device, dtype=torch.float64)
    for block in iterate_blocks(vectors, centroids.device):
        total, count = _sum_block(block, _argmin(prepared.compare(block)), len(centroids))
        sums[:, :-1] += total
        sums[:, -1] += count
    group.all_sum(sums)
    return sums[:, :-1], sums[:, -1]


def _sum_block(block: Tensor, cluster: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Return the sum [C, D] and count [C] of the vectors [B, D] of each cluster."""
    if block.device.type == "cpu":
        total = block.new_zeros(clusters, block.shape[1]).index_add_(0, cluster, block)
        return total, torch.bincount(cluster, minlength=clusters)
    # On CUDA, the order of additions in `index_add_` varies; a product with zeros and ones is deterministic.
    member = block.new_zeros(len(block), clusters).scatter_(1, cluster[:, None], 1)
    return member.T @ block, member.sum(dim=0)


def _find_farthest(vectors: Tensor, centroids: Tensor, count: int, group: ProcessGroup) -> Tensor:
    """Return the vectors [count, D] of all processes that are farthest from their nearest centroids.

    If distances are equal, the first vectors are returned.
    """
    distance = nearest_centroid(vectors, centroids).distance
    farthest = distance.argsort(descending=True, stable=True)[:count]
    all_distances, candidates = group.gather_rows(distance[farthest]), group.gather_rows(vectors[farthest])
    return candidates[all_distances.argsort(descending=True, stable=True)[:count]]


def _block_size(device: torch.device) -> int:
    """Return the number of vectors per block: large for speed, but their distances must fit in memory."""
    return 32_768 if device.type == "cpu" else 262_144
