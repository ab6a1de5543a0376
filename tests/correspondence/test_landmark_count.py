"""Test the choice of the number of landmarks: known numbers, agreement, explanation, sampling."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import cohen_kappa_score
from torch.nn.functional import normalize

from selfmark.config import AutoK, Correspondence
from selfmark.correspondence.landmark_count import (
    CountTrial,
    LandmarkCount,
    choose_count,
    count_landmarks,
    explain_count,
    find_plateau,
    labeling_agreement,
    sample_images,
)
from selfmark.correspondence.recovery import DescribedPoints
from selfmark.points import Keypoints
from selfmark.run.processes import SINGLE_PROCESS, ProcessGroup
from tests.processes import run_in_processes

CANDIDATES = (4, 6, 8, 10, 12, 14, 16, 20, 24)
SETTINGS = AutoK(candidates=CANDIDATES, splits=3)
QUICK = Correspondence(restarts=3, iterations=12)


def make_mixture(
    K: int, spread: float, clutter: int, seed: int = 0, images: int = 60, D: int = 24
) -> DescribedPoints:
    """Return points of K landmarks, each in 60 to 100 percent of the images, and clutter in every image."""
    generator = torch.Generator().manual_seed(seed)
    center = normalize(torch.randn(K, D, generator=generator), dim=1)
    is_visible = torch.rand(images, K, generator=generator) < 0.6 + 0.4 * torch.rand(K, generator=generator)
    image_index, landmark = torch.nonzero(is_visible, as_tuple=True)
    noise = torch.randn(len(image_index), D, generator=generator) / D**0.5
    vectors = [center[landmark] + spread * noise, torch.randn(images * clutter, D, generator=generator)]
    image_index = torch.cat([image_index, torch.arange(images).repeat_interleave(clutter)])
    order = torch.argsort(image_index, stable=True)
    vector = normalize(torch.cat(vectors)[order], dim=1)
    return DescribedPoints(
        Keypoints(torch.zeros(len(image_index), 2), image_index[order], torch.ones(len(image_index)), vector),
        None,
    )


def find_count(
    described: DescribedPoints, settings: AutoK = SETTINGS, seed: int = 0, images: int = 60
) -> LandmarkCount:
    return count_landmarks(described, images, settings, QUICK, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("K", [6, 12])
def test_a_known_count_is_found_within_two(K: int, seed: int) -> None:
    count = find_count(make_mixture(K, spread=1.0, clutter=3, seed=seed), seed=seed)
    assert count.trials[-1].K >= K + 4  # the true number is not at the end of the range
    assert abs(count.K - K) <= 2


@pytest.mark.parametrize("clutter", [5, 15])
@pytest.mark.parametrize("spread", [0.5, 1.5])
def test_clutter_adds_few_landmarks(spread: float, clutter: int) -> None:
    """Clutter forms clusters of its own, but far fewer than there are clutter points."""
    found_K = find_count(make_mixture(8, spread, clutter)).K
    assert found_K <= 8 + max(4, clutter / 3)


def test_points_without_structure_have_low_scores_and_the_explanation_says_so() -> None:
    noise = find_count(make_mixture(0, spread=1.0, clutter=12))
    structured = find_count(make_mixture(12, spread=1.0, clutter=3))
    assert max(trial.score for trial in noise.trials) < 0.3 < max(trial.score for trial in structured.trials)
    assert noise.K <= 8
    assert "this is a guess" in explain_count(noise, AutoK())
    assert "this is a guess" not in explain_count(structured, AutoK())


def test_the_score_is_the_product_of_its_parts() -> None:
    count = find_count(make_mixture(8, spread=1.0, clutter=3), replace(SETTINGS, splits=2))
    assert count.points == pytest.approx(len(make_mixture(8, 1.0, 3).points) / 60)
    for trial in count.trials:
        fractions = trial.detection, trial.separation, trial.agreement
        assert all(-0.05 < fraction <= 1 for fraction in fractions)
        # The score is 2 h / (K + n) for h stable landmarks among n keypoints per image. It is a mean over the
        # splits, and the mean of products is close to the product of means.
        expected = 2 * trial.K * np.prod(fractions) / (trial.K + count.points)
        assert trial.score == pytest.approx(expected, abs=0.02)


def test_the_count_is_reproducible_and_empty_images_lower_the_detection() -> None:
    described = make_mixture(6, 1.0, 2)
    few_splits = replace(SETTINGS, candidates=(4, 6, 8), splits=2)
    assert find_count(described, few_splits) == find_count(described, few_splits)
    with_empty = find_count(described, few_splits, images=120)
    assert with_empty.trials[1].detection < 0.55 * find_count(described, few_splits).trials[1].detection


# --- agreement ------------------------------------------------------------------------------------------


def _compute_naive_agreement(label_a: list[int], label_b: list[int], K: int, dissolved: float) -> float:
    """Compute the agreement by trying every pairing of landmarks, with scikit-learn's kappa of each pair.

    Pairs with a kappa of at most `dissolved` count as 0.
    """
    most_shared, value = -1, 0.0
    for partner in itertools.permutations(range(K)):
        shared = sum(a >= 0 and b == partner[a] for a, b in zip(label_a, label_b, strict=True))
        if shared <= most_shared:
            continue
        most_shared, total, weight = shared, 0.0, 0.0
        for k in range(K):
            kappa = cohen_kappa_score([a == k for a in label_a], [b == partner[k] for b in label_b])
            mean_size = (label_a.count(k) + label_b.count(partner[k])) / 2
            total += mean_size * kappa if kappa > dissolved else 0.0
            weight += mean_size
        value = total / weight
    return value


@pytest.mark.parametrize("dissolved", [-1.0, 0.5, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_agreement_matches_a_naive_loop(seed: int, dissolved: float) -> None:
    rng = np.random.default_rng(seed)
    label_a = rng.integers(-1, 4, 200)
    permuted = np.array([2, 0, 3, 1, -1])[label_a]
    label_b = np.where(rng.random(200) < 0.6, permuted, rng.integers(-1, 4, 200))
    ours = labeling_agreement(torch.from_numpy(label_a), torch.from_numpy(label_b), 4, dissolved).item()
    assert ours == pytest.approx(_compute_naive_agreement(label_a.tolist(), label_b.tolist(), 4, dissolved))


def test_agreement_of_equal_labelings_is_one_and_of_independent_ones_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(-1, 6, (20_000,), generator=generator)
    shifted = (label + 3).remainder(7) - 1  # unlabeled points (-1) become landmark 1
    assert labeling_agreement(label, shifted, 6, -1).item() < 1
    permuted = torch.where(label < 0, label, (label + 2) % 6)
    assert labeling_agreement(label, permuted, 6, -1).item() == pytest.approx(1)
    independent = torch.randint(-1, 6, (20_000,), generator=generator)
    assert abs(labeling_agreement(label, independent, 6, -1).item()) < 0.02
    assert labeling_agreement(label, independent, 6, 0.5).item() == 0
    unlabeled = torch.full_like(label, -1)
    assert labeling_agreement(unlabeled, unlabeled, 6, -1).item() == 0


# --- choice ---------------------------------------------------------------------------------------------


def make_trial(K: int, score: float, error: float = 0.02) -> CountTrial:
    return CountTrial(K, 0.8, 0.9, 0.7, score, error)


def test_the_smallest_count_within_one_standard_error_is_chosen_and_the_other_counts_are_listed() -> None:
    trials = tuple(
        make_trial(K, score) for K, score in ((4, 0.3), (8, 0.585), (10, 0.60), (12, 0.581), (16, 0.4))
    )
    assert find_plateau(trials) == (8, 10, 12)
    assert choose_count(trials) == 8
    text = explain_count(LandmarkCount(8, 100, 9.5, trials), AutoK())
    assert text.startswith("8 landmarks: 4 to 16 landmarks were tried on 100 images with 9.5 keypoints each.")
    assert "0.58 ± 0.02, while the highest is 0.60 for 10." in text
    assert "The scores of 8, 10 and 12 are equal within the error, so the smallest number is used." in text


def test_the_explanation_mentions_if_the_best_count_is_the_largest_candidate() -> None:
    peak = (make_trial(4, 0.3), make_trial(8, 0.60), make_trial(10, 0.5))
    text = explain_count(LandmarkCount(choose_count(peak), 100, 9.5, peak), AutoK())
    assert "within the error" not in text
    assert "there may be more" not in text
    rising = (make_trial(4, 0.3), make_trial(8, 0.5), make_trial(10, 0.6))
    text = explain_count(LandmarkCount(choose_count(rising), 100, 9.5, rising), AutoK())
    assert "there may be more" in text


def test_the_median_error_is_used_if_the_best_trial_has_none() -> None:
    trials = (make_trial(4, 0.5, 0.03), make_trial(8, 0.60, 0.0), make_trial(10, 0.58, 0.03))
    assert find_plateau(trials) == (8, 10)


def test_candidates_end_at_twice_the_points_of_an_image() -> None:
    count = find_count(make_mixture(4, 1.0, 1), replace(SETTINGS, candidates=(4, 6, 10, 40), splits=2))
    assert [trial.K for trial in count.trials] == [4, 6, 10]


# --- sampled images -------------------------------------------------------------------------------------


def _select_own(group: ProcessGroup, described: DescribedPoints, images: int) -> DescribedPoints:
    """Return the points of this process's part of the images."""
    rows = group.shard(images)
    index = described.points.image_index
    return described.select((index >= rows.start) & (index < rows.stop))


def _sample(group: ProcessGroup, described: DescribedPoints, max_images: int) -> dict[str, Any]:
    # The shards are those of 120 images, but there are only 60, so the last of three processes has no points.
    own = _select_own(group, described, 120)
    sampled, images = sample_images(own, 60, max_images, torch.device("cpu"), group)
    assert sampled.points.descriptor is not None
    assert sampled.mirrored is not None
    return {
        "images": images,
        "index": sampled.points.image_index.tolist(),
        "sum": sampled.points.descriptor.double().sum().item(),
        "mirrored": sampled.mirrored.double().sum().item(),
    }


def test_several_processes_sample_the_same_images_as_one() -> None:
    described = make_mixture(6, 1.0, 2)
    vectors = described.points.descriptor
    assert vectors is not None
    described = DescribedPoints(described.points, vectors.flip(1) * torch.arange(24))
    expected = _sample(SINGLE_PROCESS, described, 50)
    assert expected["images"] == 50
    assert sorted(set(expected["index"])) == list(range(50))
    assert run_in_processes(3, _sample, described, 50) == [expected] * 3


def test_all_images_are_used_if_there_are_few() -> None:
    described = make_mixture(6, 1.0, 2)
    sampled, images = sample_images(described, 60, 500, torch.device("cpu"), SINGLE_PROCESS)
    assert images == 60
    assert torch.equal(sampled.points.image_index, described.points.image_index)
    assert sampled.mirrored is None
