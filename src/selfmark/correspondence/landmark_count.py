"""How many landmarks? Try several K on the same descriptors and keep what a second look finds again.

For each K the images are split into halves a few times, and each half is clustered on its own, the way
correspondence recovery does it. Both sets of clusters then label all images. In an image a landmark *holds*
if

- it is found there (detection),
- the point does not lie on the border with another cluster (separation), and
- both halves find it on that same point (agreement); a landmark on which they agree less than half of the
  time is dissolved and holds nowhere.

With n keypoints and h landmarks that hold per image, the score of K is 2h / (K + n): the harmonic mean of the
share of landmarks that hold and the share of keypoints held by one. With too few clusters each swallows
several points of an image, of which one stays; with too many a landmark is torn apart, and each piece is
found now and then.

This is stability under resampling (Ben-Hur et al. 2002, Lange et al. 2004), counted cluster by cluster
(Hennig 2008) and less what chance would give (Cohen 1960); docs/landmark-count.md says more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from selfmark.config import AutoK, Correspondence
from selfmark.correspondence.assignment import cheapest_of_group
from selfmark.correspondence.kmeans import centroid_margins
from selfmark.correspondence.recovery import DescribedPoints, fit_centroids
from selfmark.points import Keypoints
from selfmark.run.processes import ProcessGroup


@dataclass(frozen=True)
class CountTrial:
    """What became of one K; all but K are shares, means over the splits. score = 2 K d s a / (K + n).

    detection:  d, of the images, in how many a landmark is found
    separation: s, of the points found, how many are clear
    agreement:  a, of those, how many both halves gave to the same landmark, less chance and dissolved ones
    score:      see the module's text
    error:      standard error of the score over the splits
    """

    K: int
    detection: float
    separation: float
    agreement: float
    score: float
    error: float


@dataclass(frozen=True)
class LandmarkCount:
    """The K chosen, and the trials it was chosen from, K ascending; `points` is n."""

    K: int
    images: int
    points: float
    trials: tuple[CountTrial, ...]


def count_landmarks(
    described: DescribedPoints,
    images: int,
    settings: AutoK,
    correspondence: Correspondence,
    generator: torch.Generator,
    on_progress: Callable[[int, int], None] | None = None,
) -> LandmarkCount:
    """Try the candidates and choose.

    Args:
        described: points of the images, on the generator's device; `image_index` counts them.
        images: how many there are, those without points included.
        settings: candidates and splits.
        correspondence: how K-means is run.
        generator: of splits and clusters.
        on_progress: called with the trials done and their number.
    """
    counts = described.points.counts(images)
    candidates = feasible_counts(settings.candidates, int(counts.max()), len(described.points))
    halves = [_half(images, settings.blocks, generator) for _ in range(settings.splits)]
    points = len(described.points) / images
    trials = []
    for K in candidates:
        shares = torch.stack(
            [_compare(described, half, images, K, settings, correspondence, generator) for half in halves]
        )
        trials.append(_trial(K, shares, points))
        if on_progress is not None:
            on_progress(len(trials), len(candidates))
    return LandmarkCount(choose_count(trials), images, points, tuple(trials))


def feasible_counts(candidates: Sequence[int], most: int, points: int) -> tuple[int, ...]:
    """The candidates, ascending, up to twice the most points of an image; always the least one.

    Beyond that nothing can hold, and up to there the curve is seen to fall. A half of all the points must
    also have some for each cluster.

    >>> possible((10, 4, 30), most=12, points=500)
    (4, 10)
    """
    order = sorted(set(candidates))
    limit = max(min(2 * most, points // 4), order[0])
    return tuple(K for K in order if limit >= K)


def choose_count(trials: Sequence[CountTrial]) -> int:
    """The least K whose score is within one standard error of the highest (Breiman et al. 1984)."""
    return min(find_plateau(trials))


def find_plateau(trials: Sequence[CountTrial]) -> tuple[int, ...]:
    """Every K that cannot be told from the best: its score is within one standard error of the best score."""
    best = max(trial.score for trial in trials)
    return tuple(trial.K for trial in trials if trial.score >= best - score_uncertainty(trials))


def score_uncertainty(trials: Sequence[CountTrial]) -> float:
    """Standard error of the best score; the median of all if that is larger, as few splits tell it badly."""
    best = max(trials, key=lambda trial: trial.score)
    return max(best.error, statistics.median(trial.error for trial in trials))


def sample_images(
    described: DescribedPoints, images: int, most: int, device: torch.device, group: ProcessGroup
) -> tuple[DescribedPoints, int]:
    """The points of at most so many evenly spaced images, numbered anew, and how many images these are.

    In a group each process brings the points of its own images and gets those of all.
    """
    taken = torch.linspace(0, images - 1, min(images, most)).round().long()
    number = torch.full((images,), -1)
    number[taken] = torch.arange(len(taken))
    index = number.to(described.points.xy.device)[described.points.image_index]
    chosen = described.select(index >= 0)

    def everywhere(rows: Tensor) -> Tensor:
        return group.gather_rows(rows.to(device).contiguous())

    points, mirrored = chosen.points, chosen.mirrored
    gathered = Keypoints(
        everywhere(points.xy),
        everywhere(index[index >= 0]),
        everywhere(points.score),
        None if points.descriptor is None else everywhere(points.descriptor),
    )
    return DescribedPoints(gathered, None if mirrored is None else everywhere(mirrored)), len(taken)


def explain_count(count: LandmarkCount, settings: AutoK) -> str:
    """Why this K, in words."""
    trials, alike = count.trials, find_plateau(count.trials)
    own = next(trial for trial in trials if trial.K == count.K)
    best = max(trials, key=lambda trial: trial.score)
    at = "which is the highest" if own == best else f"and the highest is {best.score:.2f} at {best.K}"
    words = [
        f"{count.K} landmarks: of {trials[0].K} to {trials[-1].K} tried on {count.images:,} images with "
        f"{count.points:.1f} keypoints each, its score is {own.score:.2f} ± {score_uncertainty(trials):.2f}, {at}.",
        f"A landmark is found in {own.detection:.0%} of the images, and halves of the images, clustered on "
        f"their own, agree on {own.agreement:.0%} of the points that lie clearly in a cluster.",
    ]
    if len(alike) > 1:
        others = ", ".join(map(str, alike[:-1]))
        words.append(
            f"{others} and {alike[-1]} cannot be told apart; the least is taken, pick what you need."
        )
    if own.score < settings.weak_score:
        words.append("All scores are low: the images say little about the number, so this is a guess.")
    if own == trials[-1]:
        words.append("It is the largest number tried; there may be more.")
    return " ".join(words)


# --- one split -----------------------------------------------------------------------------------------


def _half(images: int, blocks: int, generator: torch.Generator) -> Tensor:
    """Half of the images at random, [images] bool; neighbors stay together.

    Neighbors are often frames of one video: in both halves, they would make them agree for no good reason.
    """
    blocks = min(blocks, images)
    drawn = torch.rand(blocks, generator=generator, device=generator.device).argsort() < blocks // 2
    return drawn[torch.arange(images, device=drawn.device) * blocks // images]


def _compare(
    described: DescribedPoints,
    half: Tensor,
    images: int,
    K: int,
    settings: AutoK,
    correspondence: Correspondence,
    generator: torch.Generator,
) -> Tensor:
    """Detection, separation and agreement [3] of K clusters of this half and of the other."""
    index = described.points.image_index
    found: list[Tensor] = []
    labels: list[Tensor] = []
    for chosen in (half, ~half):
        centroids = fit_centroids(described.select(chosen[index]), K, correspondence, generator)
        label, margin = _label(described.points, centroids)
        found.append(label >= 0)
        labels.append(torch.where(margin >= settings.clear_margin, label, -1))
    everyone = torch.stack(found).double().sum()
    kept = (torch.stack(labels) >= 0).double().sum()
    detection, separation = everyone / (2 * K * images), kept / everyone.clamp_min(1)
    return torch.stack(
        [
            detection,
            separation,
            labeling_agreement(labels[0], labels[1], K, settings.dissolved_agreement).to(kept),
        ]
    )


def _label(points: Keypoints, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Landmark of each point [P], each once per image and -1 for those left over; and its margin [P]."""
    if points.descriptor is None:
        raise ValueError("these keypoints have no descriptors")
    placed = centroid_margins(points.descriptor, centroids)
    group = points.image_index * len(centroids) + placed.cluster
    label = torch.where(cheapest_of_group(group, placed.distance), placed.cluster, -1)
    return label, placed.margin


def labeling_agreement(one: Tensor, other: Tensor, K: int, dissolved: float) -> Tensor:
    """How far two labelings [P] of the same points agree, whatever their landmarks are called.

    1 is fully, 0 as much as by chance. Labels below 0 belong to no landmark. Landmarks are paired so that
    they share the most points; then for each pair the points shared less those shared by chance, over the
    same of a perfect match (Cohen's kappa of this landmark against the rest), weighted with their sizes.
    Pairs of up to `dissolved` count as 0.

    >>> agreement(torch.tensor([0, 0, 1, 1, -1]), torch.tensor([1, 1, 0, 0, -1]), 2, 0.5).item()
    1.0
    """
    both = (one >= 0) & (other >= 0)
    shared = torch.bincount((one * K + other)[both], minlength=K * K).reshape(K, K).double()
    sizes = [torch.bincount(label[label >= 0], minlength=K).double() for label in (one, other)]
    pairs = linear_sum_assignment(shared.cpu().numpy(), maximize=True)
    row, column = (torch.from_numpy(part) for part in pairs)
    same, first, second = shared[row, column], sizes[0][row], sizes[1][column]
    chance, mean = first * second / len(one), (first + second) / 2
    kappa = (same - chance) / (mean - chance).clamp_min(torch.finfo(mean.dtype).tiny)
    kept = torch.where(kappa > dissolved, kappa, 0)
    return (kept * mean).sum() / mean.sum().clamp_min(1)


def _trial(K: int, shares: Tensor, points: float) -> CountTrial:
    """Means over the splits of [splits, 3] shares, and their score."""
    scores = 2 * K * shares.prod(dim=1) / (K + points)
    error = float(scores.std()) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
    detection, separation, agreed = shares.mean(dim=0).tolist()
    return CountTrial(K, detection, separation, agreed, float(scores.mean()), error)
