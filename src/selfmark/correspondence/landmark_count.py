"""Choose K: the smallest number of clusters whose stability under resampling is close to the best.

For each candidate K, the images are split into random halves a few times, and each half is clustered
separately, as in correspondence recovery. Both sets of clusters then label all images. A landmark is *stable*
in an image if

- it is found there (detection),
- the point is not close to the border with another cluster (separation), and
- both halves find it at the same point (agreement).

The agreement of the halves on a landmark is corrected for chance. If it is at most
`auto_k.dissolved_agreement`, the landmark is *dissolved*: it is stable in no image.

With n keypoints and h stable landmarks per image, the score of K is 2h / (K + n). This is the harmonic mean
of h / K, the fraction of landmarks that are stable, and h / n, the fraction of keypoints that belong to a
stable landmark. If K is too small, a cluster covers several points of an image, but only one of them is kept.
If K is too large, a landmark is split into parts that are each found only sometimes.

The score measures stability under resampling (Ben-Hur et al. 2002, Lange et al. 2004) per cluster (Hennig
2008), corrected for chance (Cohen 1960); see docs/landmark-count.md.
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
from selfmark.correspondence.assignment import cheapest_per_group
from selfmark.correspondence.kmeans import centroid_margins
from selfmark.correspondence.recovery import DescribedPoints, fit_centroids
from selfmark.points import Keypoints
from selfmark.run.processes import ProcessGroup


@dataclass(frozen=True)
class CountTrial:
    """Result for one K: means over the splits, and the standard error of the score.

    detection:  d, the fraction of images in which a landmark is found
    separation: s, the fraction of the found points that are clearly in one cluster
    agreement:  a, the fraction of these clear points to which both halves gave the same landmark, corrected
                for chance; points of dissolved landmarks count as disagreement
    score:      2h / (K + n) with h = K d s a, see the module docstring
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
    """The chosen K, and the trials of all candidates.

    images: number of images used
    points: n, the mean number of keypoints per image
    trials: one per candidate, in ascending order of K
    """

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
    """Score the candidates and choose the number of landmarks.

    Args:
        described: points of the images, on the generator's device.
        images: number of images, including those without points.
        settings: candidates and splits.
        correspondence: settings of K-means.
        generator: source of the splits and of the seeds of K-means.
        on_progress: called with the number of trials done and the number of all trials.
    """
    max_points = int(described.points.counts(images).max())
    candidates = feasible_counts(settings.candidates, max_points, len(described.points))
    halves = [_draw_half(images, settings.blocks, generator) for _ in range(settings.splits)]
    points = len(described.points) / images
    trials = []
    for K in candidates:
        fractions = torch.stack(
            [
                _compare_halves(described, half, images, K, settings, correspondence, generator)
                for half in halves
            ]
        )
        trials.append(_summarize(K, fractions, points))
        if on_progress is not None:
            on_progress(len(trials), len(candidates))
    return LandmarkCount(choose_count(trials), images, points, tuple(trials))


def feasible_counts(candidates: Sequence[int], max_points: int, total_points: int) -> tuple[int, ...]:
    """Return the candidates that the points allow, ascending; the smallest is always included.

    The limit is twice the largest number of points in an image. An image cannot show more landmarks than
    it has points, but larger candidates confirm that the score falls. There must also be at least four points
    per cluster over all images, so about two in each half.

    Args:
        candidates: numbers of landmarks.
        max_points: points in the image with the most points.
        total_points: points in all images.

    >>> feasible_counts((10, 4, 30), max_points=12, total_points=500)
    (4, 10)
    """
    sorted_candidates = sorted(set(candidates))
    limit = max(min(2 * max_points, total_points // 4), sorted_candidates[0])
    return tuple(K for K in sorted_candidates if limit >= K)


def choose_count(trials: Sequence[CountTrial]) -> int:
    """Return the smallest K whose score is within one standard error of the best (Breiman et al. 1984)."""
    return min(find_plateau(trials))


def find_plateau(trials: Sequence[CountTrial]) -> tuple[int, ...]:
    """Return every K whose score is within one standard error of the best score."""
    best = max(trial.score for trial in trials)
    return tuple(trial.K for trial in trials if trial.score >= best - score_uncertainty(trials))


def score_uncertainty(trials: Sequence[CountTrial]) -> float:
    """Return the standard error of the best score, or the median of all standard errors if that is larger.

    A standard error from a few splits is itself uncertain. The median keeps the result from being too small.
    """
    best = max(trials, key=lambda trial: trial.score)
    return max(best.error, statistics.median(trial.error for trial in trials))


def sample_images(
    described: DescribedPoints, images: int, max_images: int, device: torch.device, group: ProcessGroup
) -> tuple[DescribedPoints, int]:
    """Return the points of evenly spaced images, with new image indices, and the number of these images.

    Args:
        described: the points of this process's images.
        images: number of images over all processes.
        max_images: largest number of images to sample.
        device: device of the result.
        group: the processes that share the images; each process gets the sampled points of all processes.
    """
    sampled_images = torch.linspace(0, images - 1, min(images, max_images)).round().long()
    new_index = torch.full((images,), -1)
    new_index[sampled_images] = torch.arange(len(sampled_images))
    index = new_index.to(described.points.xy.device)[described.points.image_index]
    chosen = described.select(index >= 0)

    def gather(rows: Tensor) -> Tensor:
        return group.gather_rows(rows.to(device).contiguous())

    points, mirrored = chosen.points, chosen.mirrored
    gathered = Keypoints(
        gather(points.xy),
        gather(index[index >= 0]),
        gather(points.score),
        None if points.descriptor is None else gather(points.descriptor),
    )
    return DescribedPoints(gathered, None if mirrored is None else gather(mirrored)), len(sampled_images)


def explain_count(count: LandmarkCount, settings: AutoK) -> str:
    """Explain the choice of K to the user."""
    trials, plateau = count.trials, find_plateau(count.trials)
    chosen = next(trial for trial in trials if trial.K == count.K)
    best = max(trials, key=lambda trial: trial.score)
    comparison = (
        "the highest score" if chosen == best else f"while the highest is {best.score:.2f} for {best.K}"
    )
    sentences = [
        f"{count.K} landmarks: {trials[0].K} to {trials[-1].K} landmarks were tried on {count.images:,} "
        f"images with {count.points:.1f} keypoints each. {count.K} landmarks have a score of "
        f"{chosen.score:.2f} ± {score_uncertainty(trials):.2f}, {comparison}.",
        f"On average, a landmark is found in {chosen.detection:.0%} of the images. When two halves of the "
        f"images are clustered separately, they agree on {chosen.agreement:.0%} of the points that clearly "
        "belong to one cluster.",
    ]
    if len(plateau) > 1:
        other_counts = ", ".join(map(str, plateau[:-1]))
        sentences.append(
            f"The scores of {other_counts} and {plateau[-1]} are equal within the error, so the smallest "
            "number is used. Choose another of these numbers if it suits you better."
        )
    if best.score < settings.weak_score:
        sentences.append("All scores are low, so the images hardly determine the number: this is a guess.")
    if chosen == trials[-1]:
        sentences.append("This is the largest number tried; there may be more landmarks.")
    return " ".join(sentences)


# --- one split -----------------------------------------------------------------------------------------


def _draw_half(images: int, blocks: int, generator: torch.Generator) -> Tensor:
    """Mark a random half of the images, in blocks of consecutive images; return a mask [images] bool.

    Consecutive images are often frames of one video. If each image were drawn separately, most videos would
    be in both halves, and the halves would agree too easily.
    """
    blocks = min(blocks, images)
    drawn = torch.rand(blocks, generator=generator, device=generator.device).argsort() < blocks // 2
    return drawn[torch.arange(images, device=drawn.device) * blocks // images]


def _compare_halves(
    described: DescribedPoints,
    half: Tensor,
    images: int,
    K: int,
    settings: AutoK,
    correspondence: Correspondence,
    generator: torch.Generator,
) -> Tensor:
    """Cluster each half into K clusters and return a tensor [3] with detection, separation and agreement."""
    index = described.points.image_index
    is_found: list[Tensor] = []
    clear_labels: list[Tensor] = []
    for chosen in (half, ~half):
        centroids = fit_centroids(described.select(chosen[index]), K, correspondence, generator)
        label, margin = _label_points(described.points, centroids)
        is_found.append(label >= 0)
        clear_labels.append(torch.where(margin >= settings.clear_margin, label, -1))
    num_found = torch.stack(is_found).double().sum()
    num_clear = (torch.stack(clear_labels) >= 0).double().sum()
    detection, separation = num_found / (2 * K * images), num_clear / num_found.clamp_min(1)
    agreement = labeling_agreement(clear_labels[0], clear_labels[1], K, settings.dissolved_agreement)
    return torch.stack([detection, separation, agreement.to(num_clear)])


def _label_points(points: Keypoints, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Assign each landmark at most once per image; return labels [P], -1 for none, and margins [P]."""
    if points.descriptor is None:
        raise ValueError("the keypoints have no descriptors")
    nearest = centroid_margins(points.descriptor, centroids)
    group = points.image_index * len(centroids) + nearest.cluster
    label = torch.where(cheapest_per_group(group, nearest.distance), nearest.cluster, -1)
    return label, nearest.margin


def labeling_agreement(label_a: Tensor, label_b: Tensor, K: int, dissolved: float) -> Tensor:
    """Measure how well two labelings of the same P points agree, up to a permutation of the landmarks.

    Landmarks of the two labelings are paired so that the pairs share as many points as possible. For each
    pair, Cohen's kappa measures how well the two labelings agree on which points have this landmark. The
    result is the mean kappa of the pairs, weighted by their numbers of points: 1 for perfect agreement, 0 for
    agreement by chance.

    Args:
        label_a: [P] landmark of each point; below 0 for none.
        label_b: [P] landmark of each point in the other labeling; below 0 for none.
        K: number of landmarks.
        dissolved: a kappa of at most this value counts as 0.

    >>> labeling_agreement(torch.tensor([0, 0, 1, 1, -1]), torch.tensor([1, 1, 0, 0, -1]), 2, 0.5).item()
    1.0
    """
    has_both_labels = (label_a >= 0) & (label_b >= 0)
    shared_counts = (
        torch.bincount((label_a * K + label_b)[has_both_labels], minlength=K * K).reshape(K, K).double()
    )
    sizes = [torch.bincount(label[label >= 0], minlength=K).double() for label in (label_a, label_b)]
    pairs = linear_sum_assignment(shared_counts.cpu().numpy(), maximize=True)
    row, column = (torch.from_numpy(part) for part in pairs)
    num_shared, first, second = shared_counts[row, column], sizes[0][row], sizes[1][column]
    chance, mean = first * second / len(label_a), (first + second) / 2
    kappa = (num_shared - chance) / (mean - chance).clamp_min(torch.finfo(mean.dtype).tiny)
    kept = torch.where(kappa > dissolved, kappa, 0)
    return (kept * mean).sum() / mean.sum().clamp_min(1)


def _summarize(K: int, fractions: Tensor, points: float) -> CountTrial:
    """Average the fractions [splits, 3] of `_compare_halves` over the splits and compute the score."""
    scores = 2 * K * fractions.prod(dim=1) / (K + points)
    error = float(scores.std()) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0
    detection, separation, agreement = fractions.mean(dim=0).tolist()
    return CountTrial(K, detection, separation, agreement, float(scores.mean()), error)
