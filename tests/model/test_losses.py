"""Compare every loss with a Python loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from selfmark.config import Loss
from selfmark.model import losses
from selfmark.run.processes import ProcessGroup

B, P, D = 3, 6, 5  # images, points per image, length of a descriptor


def _make_views(seed: int) -> dict[str, torch.Tensor]:
    """Return random descriptors, labels and validity of points in two views, `a` and `b`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": normalize(torch.randn(B, P, D, generator=generator), dim=-1),
        "b": normalize(torch.randn(B, P, D, generator=generator), dim=-1),
        "label_a": torch.randint(-1, 4, (B, P), generator=generator),
        "label_b": torch.randint(-1, 4, (B, P), generator=generator),
        "valid_a": torch.rand(B, P, generator=generator) < 0.8,
        "valid_b": torch.rand(B, P, generator=generator) < 0.8,
    }


def _compute_squared_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return sum((x - y) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True))


def _compute_contrastive_loss(
    positive_squared: torch.Tensor,
    positive: torch.Tensor,
    negative_squared: torch.Tensor,
    negative: torch.Tensor,
    settings: Loss,
) -> torch.Tensor:
    weights = losses.pair_weights(positive, negative, settings)
    return losses.contrastive_loss(positive_squared, weights[0], negative_squared, weights[1], settings)


def _list_positive_distances(views: dict[str, torch.Tensor]) -> list[float]:
    """Return the squared distances of all valid pairs of points with the same label."""
    return [
        _compute_squared_distance(views["a"][image, i], views["b"][image, j])
        for image in range(B)
        for i in range(P)
        for j in range(P)
        if views["valid_a"][image, i]
        and views["valid_b"][image, j]
        and views["label_a"][image, i] >= 0
        and views["label_a"][image, i] == views["label_b"][image, j]
    ]


@pytest.mark.parametrize("average", ["together", "apart"])
@pytest.mark.parametrize("seed", range(5))
def test_contrastive_loss_with_same_image_negatives_matches_a_loop(seed: int, average: str) -> None:
    views = _make_views(seed)
    generator = torch.Generator().manual_seed(seed + 100)
    cells = torch.rand(B, P, 2, generator=generator) * 12
    random_cells = torch.rand(B, 9, 2, generator=generator) * 12
    random_descriptors = normalize(torch.randn(B, 9, D, generator=generator), dim=-1)
    settings = Loss(average=average, negative_weight=3.0, margin=0.8)  # type: ignore[arg-type]

    positives = _list_positive_distances(views)
    hinges = [
        max(0.0, 0.8 - _compute_squared_distance(views["a"][image, i], random_descriptors[image, q]))
        for image in range(B)
        for i in range(P)
        for q in range(9)
        if views["valid_a"][image, i]
        and math.dist(cells[image, i].tolist(), random_cells[image, q].tolist()) > 5.7
    ] + [
        max(0.0, 0.8 - _compute_squared_distance(views["a"][image, i], views["a"][image, j]))
        for image in range(B)
        for i in range(P)
        for j in range(i + 1, P)
        if views["valid_a"][image, i]
        and views["valid_a"][image, j]
        and math.dist(cells[image, i].tolist(), cells[image, j].tolist()) > 5.7
    ]
    if average == "together":
        expected = (sum(positives) + 3 * sum(hinges)) / (len(positives) + len(hinges))
    else:
        expected = sum(positives) / len(positives) + 3 * sum(hinges) / len(hinges)

    ours = _compute_contrastive_loss(
        losses.squared_distances(views["a"], views["b"]),
        losses.positive_pairs(views["label_a"], views["label_b"], views["valid_a"], views["valid_b"]),
        losses.squared_distances(views["a"], torch.cat([views["a"], random_descriptors], dim=1)),
        losses.negatives_same_image(cells, views["valid_a"], random_cells, 5.7),
        settings,
    )
    assert ours.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_contrastive_loss_with_different_cluster_negatives_matches_a_loop(seed: int) -> None:
    views = _make_views(seed)
    hinges = [
        max(0.0, 0.8 - _compute_squared_distance(views["a"][image, i], views["b"][image, j]))
        for image in range(B)
        for i in range(P)
        for j in range(P)
        if views["valid_a"][image, i]
        and views["valid_b"][image, j]
        and views["label_a"][image, i] >= 0
        and views["label_b"][image, j] >= 0
        and views["label_a"][image, i] != views["label_b"][image, j]
    ]
    positive_distances = _list_positive_distances(views)
    arguments = (views["label_a"], views["label_b"], views["valid_a"], views["valid_b"])
    squared_distance = losses.squared_distances(views["a"], views["b"])
    positive, negative = losses.positive_pairs(*arguments), losses.negatives_different_cluster(*arguments)
    ours = _compute_contrastive_loss(squared_distance, positive, squared_distance, negative, Loss())
    expected = (sum(positive_distances) + sum(hinges)) / (len(positive_distances) + len(hinges))
    assert ours.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_hinge_on_distances_of_vectors_of_any_length_matches_a_loop(seed: int) -> None:
    """Compare with a loop over max(0, m - d)^2, the hinge of the authors' program."""
    generator = torch.Generator().manual_seed(seed)
    a, b = 0.2 * torch.randn(B, P, D, generator=generator), 0.2 * torch.randn(B, P, D, generator=generator)
    settings = Loss(hinge="distance", margin=0.8)
    pairs = torch.rand(B, P, P, generator=generator) < 0.5
    hinges = [
        max(0.0, 0.8 - math.dist(a[image, i].tolist(), b[image, j].tolist())) ** 2
        for image in range(B)
        for i in range(P)
        for j in range(P)
        if pairs[image, i, j]
    ]
    assert 0 < sum(value > 0 for value in hinges) < len(hinges)
    squared = losses.squared_distances(a, b)
    torch.testing.assert_close(squared, torch.cdist(a, b).square(), rtol=1e-4, atol=1e-5)
    no_pairs = torch.zeros_like(pairs)
    ours = _compute_contrastive_loss(squared, no_pairs, squared, pairs, settings)
    assert ours.item() == pytest.approx(sum(hinges) / len(hinges), abs=1e-5)


def test_the_gradient_of_a_hinge_on_equal_descriptors_is_finite() -> None:
    a = torch.ones(1, 1, 4, requires_grad=True)
    squared, is_positive = losses.squared_distances(a, a.detach()), torch.ones(1, 1, 1)
    losses.contrastive_loss(squared, 0 * is_positive, squared, is_positive, Loss(hinge="distance")).backward()
    assert a.grad is not None
    assert a.grad.isfinite().all()


def test_the_loss_without_pairs_is_zero() -> None:
    distances, no_pairs = torch.ones(1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.bool)
    for average in ("together", "apart"):
        settings = Loss(average=average)  # type: ignore[arg-type]
        assert _compute_contrastive_loss(distances, no_pairs, distances, no_pairs, settings).item() == 0


class _OneOfTwo(ProcessGroup):
    """One of two processes; `all_sum` adds the counts of the other process."""

    other: dict[str, torch.Tensor]

    def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + self.other["counts"]


@pytest.mark.parametrize("average", ["together", "apart"])
def test_the_mean_over_processes_is_the_loss_of_a_single_process(average: str) -> None:
    views = _make_views(3)
    settings = Loss(average=average, negative_weight=3.0)  # type: ignore[arg-type]
    squared_distance = losses.squared_distances(views["a"], views["b"])
    arguments = (views["label_a"], views["label_b"], views["valid_a"], views["valid_b"])
    positive, negative = losses.positive_pairs(*arguments), losses.negatives_different_cluster(*arguments)
    whole_loss = _compute_contrastive_loss(squared_distance, positive, squared_distance, negative, settings)
    parts = []
    for rows, others in ((slice(0, 1), slice(1, B)), (slice(1, B), slice(0, 1))):
        group = _OneOfTwo(0, 2)
        counts = torch.stack([positive[others].sum(), negative[others].sum()]).float()
        object.__setattr__(group, "other", {"counts": counts})
        weights = losses.pair_weights(positive[rows], negative[rows], settings, group)
        parts.append(
            losses.contrastive_loss(
                squared_distance[rows], weights[0], squared_distance[rows], weights[1], settings
            )
        )
    assert torch.stack(parts).mean().item() == pytest.approx(whole_loss.item(), abs=1e-6)


def test_detector_loss_is_the_mean_squared_error() -> None:
    confidence, target = torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4)
    expected = _compute_squared_distance(confidence.flatten(), target.flatten())
    assert losses.detector_loss(confidence, target).item() == pytest.approx(expected / 32, abs=1e-6)


def test_stage2_error_counts_only_detected_landmarks() -> None:
    """Compare with Eq. 4 of the paper: the mean over images of the mean over their detected landmarks."""
    generator = torch.Generator().manual_seed(1)
    maps, target = (torch.rand(3, 4, 5, 5, generator=generator) for _ in range(2))
    present = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    per_image = []
    for image in (0, 2):
        detected = [k for k in range(4) if present[image, k]]
        errors = [((maps[image, k] - target[image, k]) ** 2).mean().item() for k in detected]
        per_image.append(sum(errors) / len(detected))
    ours = losses.masked_regression_loss(maps, target, present)
    assert ours.item() == pytest.approx(sum(per_image) / 2, abs=1e-6)
    # The authors' program divides by K = 4. Image 0 has two of the four landmarks, image 2 has all.
    over_all = losses.masked_regression_loss(maps, target, present, "all")
    assert over_all.item() == pytest.approx((per_image[0] * 2 / 4 + per_image[1]) / 2, abs=1e-6)


def test_missed_landmarks_get_no_gradient() -> None:
    maps = torch.rand(2, 3, 4, 4, requires_grad=True)
    present = torch.tensor([[True, False, True], [False, False, True]])
    losses.masked_regression_loss(maps, torch.zeros(2, 3, 4, 4), present).backward()
    assert maps.grad is not None
    has_gradient = maps.grad.abs().sum(dim=(2, 3)) > 0
    assert torch.equal(has_gradient, present)
