"""Test Zhang et al. 2018: losses against loops and by hand, the decoder, and which parts are trained."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from selfmark.config import Config, Methods, Network
from selfmark.methods.contract import RandomChanges
from selfmark.methods.method_registry import build_method
from selfmark.methods.warps import cell_positions, random_warps
from selfmark.methods.zhang2018 import (
    Zhang2018,
    concentration_loss,
    equivariance_loss,
    pool_features,
    reconstruction_loss,
    separation_loss,
    to_cell_distributions,
)
from selfmark.methods.zhang2018_decoder import LandmarkDecoder, SeparateLinear, assign_pixels, fill_maps
from selfmark.model.soft_argmax import mean_positions, to_distributions
from selfmark.train.batch_plan import BatchSlice

_CONFIG = Config(method="zhang2018", K=3, network=Network(channels=16, depth=2, norm_groups=2))
_TERMS = ("concentration", "separation", "equivariance", "reconstruction")


def _draw_random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _build_network(config: Config = _CONFIG) -> Zhang2018:
    torch.manual_seed(0)
    network = build_method(config)
    assert isinstance(network, Zhang2018)
    return network


def _compute_losses(network: Zhang2018, images: Tensor) -> dict[str, Tensor]:
    part = BatchSlice(0, len(images), len(images))
    changes = RandomChanges(network.config, part, torch.Generator().manual_seed(1))
    return dict(network.compute_losses(images, images, changes))


def test_cells_are_divided_among_landmarks_as_in_the_detector() -> None:
    scores = _draw_random(0, 2, 4, 8, 8)
    shared = to_cell_distributions(scores)
    torch.testing.assert_close(shared[:, :-1], to_distributions(scores, "channels"))
    torch.testing.assert_close(shared.sum(dim=(2, 3)), torch.ones(2, 4))


def test_a_landmark_without_any_share_still_has_a_distribution() -> None:
    scores = torch.zeros(1, 2, 4, 4)
    scores[:, 0] = -1e4  # its share of every cell is 0 in float32
    torch.testing.assert_close(to_cell_distributions(scores), torch.full((1, 2, 4, 4), 1 / 16))


def test_concentration_is_the_area_of_a_gaussian_with_the_variance_of_the_cells() -> None:
    distributions = _draw_random(0, 2, 3, 4, 6).flatten(2).softmax(-1).view(2, 3, 4, 6)
    total = 0.0
    for image in range(2):
        for landmark in range(3):
            p = distributions[image, landmark].tolist()
            cells = [((i + 0.5) / 4, (j + 0.5) / 6, p[i][j]) for i in range(4) for j in range(6)]
            y, x = (sum(cell[axis] * cell[2] for cell in cells) for axis in (0, 1))
            variances = sum(((cell[0] - y) ** 2 + (cell[1] - x) ** 2) * cell[2] for cell in cells)
            total += 2 * math.pi * math.e * variances / 2
    assert float(concentration_loss(distributions)) == pytest.approx(total / 2, rel=1e-5)


def test_concentration_does_not_depend_on_the_position() -> None:
    maps = torch.zeros(2, 1, 8, 8)
    maps[0, 0, 1, 1] = maps[0, 0, 2, 1] = maps[1, 0, 5, 6] = maps[1, 0, 6, 6] = 0.5
    first, second = (float(concentration_loss(distribution[None])) for distribution in maps)
    assert first == pytest.approx(second, rel=1e-4)
    # Two cells of 1/8 of the side: variance 1/256 along y and 0 along x.
    assert first == pytest.approx(2 * math.pi * math.e / 256 / 2, rel=1e-4)


def test_separation_sums_over_pairs_of_different_landmarks() -> None:
    positions = 0.1 * _draw_random(0, 2, 4, 2)
    total = 0.0
    for image in positions.tolist():
        for k, (x, y) in enumerate(image):
            for other, (other_x, other_y) in enumerate(image):
                # Positions range from -1 to 1, and distances are fractions of the image side.
                squared = ((x - other_x) / 2) ** 2 + ((y - other_y) / 2) ** 2
                total += math.exp(-squared / (2 * 0.08**2)) if k != other else 0
    assert float(separation_loss(positions, 0.08)) == pytest.approx(total / 2, rel=1e-5)


def test_separation_pushes_landmarks_apart() -> None:
    positions = torch.tensor([[[0.1, 0.0], [-0.1, 0.0]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(separation_loss(positions, 0.08), positions)
    assert float(gradient[0, 0, 0]) < 0 < float(gradient[0, 1, 0])


def test_equivariance_is_zero_for_landmarks_that_follow_the_warp() -> None:
    warps = random_warps(Methods(), BatchSlice(0, 2, 2), torch.Generator().manual_seed(0))
    warped = 0.3 * _draw_random(1, 2, 3, 2)
    given = warps(warped)
    assert float(equivariance_loss(given, warped, warps)) == pytest.approx(0, abs=1e-10)
    moved = given + torch.tensor([0.1, 0.2])  # 3 squared distances of 0.01 + 0.04
    assert float(equivariance_loss(moved, warped, warps)) == pytest.approx(0.15, rel=1e-4)


def test_features_are_pooled_with_the_distribution() -> None:
    features, distributions = _draw_random(0, 2, 5, 3, 3), to_cell_distributions(_draw_random(1, 2, 4, 3, 3))
    pooled = pool_features(features, distributions)
    for image in range(2):
        for landmark in range(4):
            weighted = features[image] * distributions[image, landmark]
            torch.testing.assert_close(pooled[image, landmark], weighted.sum(dim=(1, 2)))


def test_reconstruction_sums_over_pixels_and_averages_over_images() -> None:
    predicted = torch.full((2, 3, 16, 16), 0.5)
    images = torch.stack([torch.full((3, 64, 64), 0.5), torch.full((3, 64, 64), 0.7)])
    # The loss is half the sum of squares, averaged over two images, of which the first has no error.
    expected = 3 * 16 * 16 * 0.2**2 / 2 / 2
    assert float(reconstruction_loss(predicted, images)) == pytest.approx(expected, rel=1e-4)


def test_maps_are_densities_divided_by_their_sum() -> None:
    positions, sigmas = 0.5 * _draw_random(0, 1, 2, 2), [0.1, 0.2]
    maps = assign_pixels(positions, 8, sigmas)
    assert maps.shape == (1, 2, 3, 8, 8)
    centers = positions[0].double() / 2
    for level, sigma in enumerate(sigmas):
        gaussian = torch.distributions.MultivariateNormal(centers, sigma**2 * torch.eye(2).double())
        cells = cell_positions(8, 8, torch.device("cpu")).double() / 2
        density = gaussian.log_prob(cells[:, None]).exp()  # [cells, landmarks]
        expected = density / (density.sum(dim=1, keepdim=True) + 1)
        fractions = maps[0, level, :2].flatten(1).T
        torch.testing.assert_close(fractions, expected.float())
    torch.testing.assert_close(maps.sum(dim=2), torch.ones(1, 2, 8, 8))


def test_pixels_are_filled_with_the_descriptors_of_their_landmarks() -> None:
    maps = torch.zeros(1, 1, 2, 1, 2)
    maps[0, 0, :, 0, 0] = torch.tensor([1.0, 0.0])
    maps[0, 0, :, 0, 1] = torch.tensor([0.25, 0.75])
    filled = fill_maps(maps, torch.tensor([[[1.0, 2.0], [5.0, 6.0]]]))
    assert filled[0, 0, :, 0].T.tolist() == [[1, 2], [4, 5]]


def test_each_landmark_has_a_layer_of_its_own() -> None:
    layer = SeparateLinear(3, 4, 2)
    x = _draw_random(0, 5, 3, 4)
    for k in range(3):
        torch.testing.assert_close(layer(x)[:, k], x[:, k] @ layer.weight[k] + layer.bias[k])


@pytest.mark.parametrize("side", [17, 80])
def test_the_decoder_draws_images_of_the_given_side(side: int) -> None:
    decoder = LandmarkDecoder(replace(_CONFIG.zhang2018, side=side), 3, 16, 2)
    images = decoder(_draw_random(0, 2, 3, 2), 50 * _draw_random(1, 2, 4, 16)).detach()
    assert images.shape == (2, 3, side, side)
    assert 0 <= float(images.min()) < float(images.max()) <= 1


def test_the_descriptor_decides_how_the_surroundings_of_a_landmark_look() -> None:
    torch.manual_seed(0)
    decoder = LandmarkDecoder(_CONFIG.zhang2018, 3, 16, 2)
    positions, pooled = torch.zeros(1, 3, 2), _draw_random(1, 1, 4, 16)
    assert not torch.allclose(decoder(positions, pooled), decoder(positions, 2 * pooled))


@pytest.mark.parametrize("size", [32, 96])
def test_the_total_is_the_weighted_sum_of_the_terms(size: int) -> None:
    settings = _CONFIG.zhang2018
    terms = {
        name: term.detach()
        for name, term in _compute_losses(_build_network(), torch.rand(2, 3, size, size)).items()
    }
    assert set(terms) == {"total", *_TERMS}
    weighted = sum(getattr(settings, f"{name}_weight") * float(terms[name]) for name in _TERMS)
    assert float(terms["total"]) == pytest.approx(weighted, rel=1e-4)


@pytest.mark.parametrize("name", _TERMS)
def test_every_term_trains_the_landmarks(name: str) -> None:
    network = _build_network()
    _compute_losses(network, torch.rand(2, 3, 64, 64))[name].backward()  # type: ignore[no-untyped-call]
    first, last = network.psi.backbone.stem.weight.grad, network.psi.head.last.weight.grad
    assert first is not None
    assert last is not None
    assert float(first.abs().sum()) > 0
    assert float(last.abs().sum(dim=(1, 2, 3)).min()) > 0, "a landmark or the background has no gradient"
    trains_decoder = any(parameter.grad is not None for parameter in network.decoder.parameters())
    assert trains_decoder == (name == "reconstruction")


def test_every_parameter_is_trained() -> None:
    network = _build_network()
    _compute_losses(network, torch.rand(2, 3, 64, 64))["total"].backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_landmarks_match_those_of_the_detector() -> None:
    network, images = _build_network(), torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        features, distributions = network.describe(images)
        expected_features, maps = network.psi.compute_features_and_heatmaps(images)
    torch.testing.assert_close(features, expected_features)
    torch.testing.assert_close(
        mean_positions(distributions[:, :-1]), mean_positions(maps.square()), atol=1e-5, rtol=0
    )
