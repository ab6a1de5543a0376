"""Test AutoLink: edge maps against a loop over pixels, random patches, and which parts are trained."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from selfmark.config import Config, override, preset
from selfmark.errors import InputError
from selfmark.methods import autolink
from selfmark.methods.autolink import (
    AutoLink,
    draw_edges,
    mirror_some,
    random_patches,
    squared_distance_to_segment,
)
from selfmark.methods.autolink_decoder import UNetDecoder
from selfmark.methods.contract import RandomChanges
from selfmark.train.batch_plan import BatchSlice

_WHOLE = BatchSlice(0, 2, 2)  # a batch of two images in one process


def _make_config(**settings: object) -> Config:
    small_settings = {
        "autolink.size": 32,
        "autolink.perceptual_size": 32,
        "network.channels": 16,
        "K": 4,
        "M": 4,
    }
    small_settings |= {"network.norm_groups": 2, "network.depth": 1, "images.size": 64}
    return override(preset("tiny"), {**small_settings, **settings})


def _make_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _list_pairs(landmarks: int) -> Tensor:
    return torch.triu_indices(landmarks, landmarks, 1)


def _compute_distance(x: float, y: float, start: list[float], end: list[float]) -> float:
    """Return the distance of (x, y) to a segment.

    If the point lies beyond an end, this is the distance to that end. Otherwise, it is the height of the
    triangle formed by the point and the segment.
    """
    (x1, y1), (x2, y2) = start, end
    if (x - x1) * (x2 - x1) + (y - y1) * (y2 - y1) <= 0:
        return math.hypot(x - x1, y - y1)
    if (x - x2) * (x1 - x2) + (y - y2) * (y1 - y2) <= 0:
        return math.hypot(x - x2, y - y2)
    twice_area = abs((x2 - x1) * (y1 - y) - (x1 - x) * (y2 - y1))
    return twice_area / math.hypot(x2 - x1, y2 - y1)


def _draw_naive_map(
    landmarks: list[list[float]], weights: list[float], thickness: float, side: int
) -> Tensor:
    """Draw the edges of one image with K landmarks, pixel by pixel and edge by edge."""
    result = torch.zeros(side, side)
    edges = list(itertools.combinations(landmarks, 2))
    for row, column in itertools.product(range(side), repeat=2):
        x, y = (column + 0.5) * 2 / side - 1, (row + 0.5) * 2 / side - 1
        result[row, column] = max(
            weight * math.exp(-(_compute_distance(x, y, *edge) ** 2) / thickness)
            for edge, weight in zip(edges, weights, strict=True)
        )
    return result


@pytest.mark.parametrize(
    "point", [(0.1, 0.3), (-0.9, 0.2), (0.9, -0.8), (0.5, -0.25)], ids=["beside", "before", "after", "on it"]
)
def test_distance_to_a_segment_is_the_distance_to_its_nearest_point(point: tuple[float, float]) -> None:
    start, end = [-0.5, 0.25], [0.5, -0.25]
    squared = squared_distance_to_segment(torch.tensor(point), torch.tensor(start), torch.tensor(end))
    assert float(squared) ** 0.5 == pytest.approx(_compute_distance(*point, start, end), abs=1e-6)


def test_distance_to_a_segment_without_length_is_the_distance_to_its_start() -> None:
    start = torch.tensor([0.2, -0.1])
    squared = squared_distance_to_segment(torch.tensor([0.5, 0.3]), start, start.clone())
    assert float(squared) == pytest.approx(0.25)


def test_distance_has_the_gradient_of_finite_differences() -> None:
    points = torch.rand((30, 2), generator=_make_generator(), dtype=torch.float64) * 2 - 1
    ends = torch.tensor([-0.4, 0.3, 0.5, -0.2], dtype=torch.float64, requires_grad=True)

    def sum_distances(ends: Tensor) -> Tensor:
        return squared_distance_to_segment(points, ends[:2], ends[2:]).sum()

    (gradient,) = torch.autograd.grad(sum_distances(ends), ends)
    for step, expected in zip(torch.eye(4, dtype=torch.float64) * 1e-5, gradient, strict=True):
        difference = (sum_distances(ends.detach() + step) - sum_distances(ends.detach() - step)) / 2e-5
        assert float(difference) == pytest.approx(float(expected), rel=1e-5)


def test_edge_maps_match_a_naive_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    landmarks = torch.rand((2, 4, 2), generator=_make_generator()) * 2 - 1
    weights = torch.rand(6, generator=_make_generator(1)) + 0.1
    maps = draw_edges(landmarks, _list_pairs(4), weights, 0.05, 8)
    assert maps.shape == (2, 1, 8, 8)
    for image in range(2):
        expected = _draw_naive_map(landmarks[image].tolist(), weights.tolist(), 0.05, 8)
        torch.testing.assert_close(maps[image, 0], expected, atol=1e-6, rtol=1e-4)
    monkeypatch.setattr(autolink, "_CPU_CHUNK", 1)  # one edge at a time
    assert torch.equal(draw_edges(landmarks, _list_pairs(4), weights, 0.05, 8), maps)


def test_edge_maps_have_the_gradient_of_the_maximum_over_all_edges() -> None:
    landmarks = (torch.rand((1, 4, 2), generator=_make_generator()) * 2 - 1).double().requires_grad_()
    weights = (torch.rand(6, generator=_make_generator(1)) + 0.1).double().requires_grad_()
    pairs, side = _list_pairs(4), 8
    pixels = autolink.cell_positions(side, side, torch.device("cpu")).double()
    start, end = landmarks[:, pairs[0], None], landmarks[:, pairs[1], None]
    all_maps = weights[:, None] * torch.exp(-squared_distance_to_segment(pixels, start, end) / 0.02)
    expected = torch.autograd.grad(all_maps.amax(dim=1).square().sum(), (landmarks, weights))
    drawn = draw_edges(landmarks, pairs, weights, 0.02, side)
    actual = torch.autograd.grad(drawn.square().sum(), (landmarks, weights))
    for gradient, expected_gradient in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-6, rtol=1e-5)


def test_an_edge_map_has_the_weight_of_the_edge_at_its_ends() -> None:
    side = 8
    ends = torch.tensor([[[-0.875, -0.625], [0.375, 0.125]]])  # centers of pixels (0, 1) and (5, 4)
    maps = draw_edges(ends, _list_pairs(2), torch.tensor([0.7]), 1e-3, side)[0, 0]
    assert float(maps[1, 0]) == pytest.approx(0.7)
    assert float(maps[4, 5]) == pytest.approx(0.7)
    assert float(maps[7, 7]) < 1e-6


def test_equal_landmarks_have_a_finite_map_and_gradient() -> None:
    landmarks = torch.zeros(1, 3, 2, requires_grad=True)
    weights = torch.ones(3, requires_grad=True)
    maps = draw_edges(landmarks, _list_pairs(3), weights, 2.5e-3, 16)
    maps.sum().backward()  # type: ignore[no-untyped-call]
    assert landmarks.grad is not None
    assert bool(maps.isfinite().all() and landmarks.grad.isfinite().all())
    squared_distance = 2 * (1 / 16) ** 2  # from the center of the image to the nearest pixel center
    assert float(maps.detach().max()) == pytest.approx(math.exp(-squared_distance / 2.5e-3), rel=1e-4)


@pytest.mark.parametrize(("landmarks", "edges"), [(2, 1), (10, 45), (30, 435)])
def test_every_pair_of_landmarks_has_one_edge(landmarks: int, edges: int) -> None:
    method = AutoLink(_make_config(K=landmarks, M=landmarks))
    assert method.edge_weights.shape == (edges,)
    assert len({tuple(pair) for pair in method.pairs.T.tolist()}) == edges
    assert bool((method.pairs[0] < method.pairs[1]).all())


@pytest.mark.parametrize("weight", [0.01815, 2.0])
def test_edges_start_at_the_weight_of_the_setting(weight: float) -> None:
    weights = AutoLink(_make_config(**{"K": 30, "M": 30, "autolink.edge_weight": weight})).edge_weights
    assert float(weights.detach().mean()) == pytest.approx(weight, rel=0.05)


def test_one_landmark_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2, not 1"):
        AutoLink(_make_config(K=1))


@pytest.mark.parametrize("masked", [0.0, 0.8, 1.0])
def test_patches_are_hidden_with_the_given_probability(masked: float) -> None:
    visible = random_patches(16, masked, BatchSlice(0, 64, 64), _make_generator())
    assert visible.shape == (64, 1, 16, 16)
    assert set(visible.unique().tolist()) <= {0.0, 1.0}
    assert 1 - float(visible.mean()) == pytest.approx(masked, abs=0.01)


def test_processes_take_their_part_of_the_same_patches() -> None:
    all_patches = random_patches(4, 0.5, BatchSlice(0, 6, 6), _make_generator())
    assert torch.equal(random_patches(4, 0.5, BatchSlice(2, 5, 6), _make_generator()), all_patches[2:5])


def test_some_images_are_mirrored() -> None:
    images = torch.rand((200, 3, 2, 2), generator=_make_generator())
    changed = mirror_some(images, 0.5, BatchSlice(0, 200, 200), _make_generator())
    is_mirrored = (changed == images.flip(-1)).flatten(1).all(1)
    is_same = (changed == images).flatten(1).all(1)
    assert bool((is_mirrored ^ is_same).all())
    assert 70 < int(is_mirrored.sum()) < 130


def test_hidden_pixels_do_not_reach_the_decoder() -> None:
    method = AutoLink(_make_config()).eval()
    visible, edges = torch.zeros(1, 1, 32, 32), torch.zeros(1, 1, 32, 32)
    visible[..., :16] = 1
    first, second = torch.rand((2, 1, 3, 32, 32), generator=_make_generator())
    second[..., :16] = first[..., :16]
    with torch.no_grad():
        assert torch.equal(method._complete(first, visible, edges), method._complete(second, visible, edges))


@pytest.mark.parametrize("side", [32, 50, 96])
def test_the_decoder_keeps_the_size(side: int) -> None:
    assert UNetDecoder(4, 3, 4, 2)(torch.zeros(1, 4, side, side)).shape == (1, 3, side, side)


def test_gradients_reach_all_parts_and_the_perceptual_network_is_not_stored() -> None:
    config = _make_config()
    method = AutoLink(config)
    images = torch.rand((2, 3, 64, 64), generator=_make_generator())
    method.compute_losses(images, images, RandomChanges(config, _WHOLE, _make_generator()))[
        "total"
    ].backward()  # type: ignore[no-untyped-call]
    without_gradient = [name for name, value in method.named_parameters() if value.grad is None]
    assert without_gradient == []
    for part in (method.psi.head.last.weight, method.psi.backbone.stem.weight, method.edges):
        assert part.grad is not None
        assert bool(part.grad.isfinite().all())
        assert float(part.grad.abs().max()) > 0
    prefixes = {name.split(".")[0] for name in method.state_dict()}
    assert prefixes == {"psi", "edges", "image_scale", "decoder"}
    assert all(not name.startswith("_perceptual") for name, _ in method.named_modules())


def test_images_of_any_size_have_a_finite_loss() -> None:
    # Images larger than `autolink.size` are reconstructed at that size.
    config = _make_config()
    method = AutoLink(config)
    for side in (32, 96):
        images = torch.rand((2, 3, side, side), generator=_make_generator())
        with torch.no_grad():
            losses = method.compute_losses(images, images, RandomChanges(config, _WHOLE, _make_generator()))
        assert bool(losses["total"].isfinite())
