"""Test Lorenz 2019: moments and bell-shaped maps against numpy and loops, equivariance, gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from selfmark.config import Config, preset
from selfmark.methods.contract import RandomChanges
from selfmark.methods.lorenz2019 import (
    Lorenz2019,
    bell_maps,
    covariance_roots,
    invert_covariances,
    mean_distance,
    part_moments,
    pixel_weights,
    unwarped_moments,
)
from selfmark.methods.lorenz2019_decoder import pool_appearance, spread_appearance
from selfmark.methods.warps import Warps, cell_positions, fit_warps
from selfmark.train.batch_plan import BatchSlice

_CPU = torch.device("cpu")


def _draw_distributions(seed: int, shape: tuple[int, ...]) -> Tensor:
    scores = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return scores.flatten(2).softmax(-1).view(shape)


def _draw_covariances(seed: int) -> Tensor:
    factor = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return factor @ factor.mT


def test_moments_equal_those_of_numpy() -> None:
    maps = _draw_distributions(0, (2, 3, 5, 7))
    means, covariances = part_moments(maps)
    cells = cell_positions(5, 7, _CPU).numpy().astype(np.float64)
    for image in range(2):
        for part in range(3):
            weights = maps[image, part].flatten().numpy().astype(np.float64)
            expected_mean = np.average(cells, axis=0, weights=weights)
            expected_covariance = np.cov(cells.T, aweights=weights, ddof=0)
            np.testing.assert_allclose(means[image, part].numpy(), expected_mean, atol=1e-5)
            np.testing.assert_allclose(covariances[image, part].numpy(), expected_covariance, atol=1e-5)


def test_bell_maps_equal_a_naive_loop() -> None:
    means, precision = torch.tensor([[[0.2, -0.4], [0.9, 0.1]]]), _draw_covariances(1)[:1, :2].float()
    maps = bell_maps(means, precision, 6)
    for part in range(2):
        for row in range(6):
            for column in range(6):
                x = np.array([column + 0.5, row + 0.5]) / 3 - 1
                offset = x - means[0, part].numpy()
                expected = 1 / (1 + offset @ precision[0, part].numpy() @ offset)
                assert float(maps[0, part, row, column]) == pytest.approx(expected, rel=1e-4)


def test_the_square_of_a_root_is_the_enlarged_covariance() -> None:
    covariances, enlarged = (
        _draw_covariances(2),
        _draw_covariances(2) + 0.01 * torch.eye(2, dtype=torch.float64),
    )
    roots = covariance_roots(covariances, 0.01)
    torch.testing.assert_close(roots @ roots, enlarged)
    torch.testing.assert_close(roots, roots.mT)
    torch.testing.assert_close(invert_covariances(covariances, 0.01), torch.linalg.inv(enlarged))


def test_parts_of_a_single_cell_have_finite_gradients() -> None:
    scores = torch.zeros(1, 1, 8, 8)
    scores[0, 0, 2, 3] = 1e4
    scores.requires_grad_()
    _, covariances = part_moments(scores.flatten(2).softmax(-1).view(1, 1, 8, 8))
    roots, inverses = covariance_roots(covariances, 1e-3), invert_covariances(covariances, 1e-3)
    (roots.sum() + inverses.sum() + mean_distance(roots, roots.detach())).backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())


def _draw_bumps(positions: Tensor, size: int) -> Tensor:
    """Return two fixed Gaussian parts, sampled at positions [B, P, 2], as maps [B, 2, size, size]."""
    centers = torch.tensor([[0.1, -0.2], [-0.25, 0.15]])
    precision = torch.tensor([[[90.0, 30.0], [30.0, 60.0]], [[60.0, -20.0], [-20.0, 120.0]]])
    offset = positions[:, None] - centers[:, None]
    distance = torch.einsum("bkpi,kij,bkpj->bkp", offset, precision, offset)
    return (-distance / 2).softmax(-1).view(len(positions), 2, size, size)


def _fit_affine_warp() -> Warps:
    side = torch.linspace(-1, 1, 3)
    control = torch.cartesian_prod(side, side)
    linear = torch.tensor([[0.9, 0.25], [-0.15, 1.2]])
    return fit_warps(control, (control @ linear + torch.tensor([0.1, -0.05]))[None])


def test_equivariance_losses_are_zero_for_parts_that_follow_an_affine_warp() -> None:
    size, warps = 64, _fit_affine_warp()
    cells = cell_positions(size, size, _CPU)[None]
    given, warped = _draw_bumps(cells, size), _draw_bumps(warps(cells), size)
    means, covariances = part_moments(given)
    moved_means, moved_covariances = unwarped_moments(warped, warps)
    assert float((means - moved_means).abs().max()) < 1e-4
    assert float(mean_distance(covariances, moved_covariances)) < 1e-4
    # Parts that do not follow the warp have large losses.
    still_means, still_covariances = unwarped_moments(given, warps)
    assert float((means - still_means).abs().max()) > 0.05
    assert float(mean_distance(covariances, still_covariances)) > 1e-3


def test_cells_are_weighted_by_their_area_in_the_given_image() -> None:
    # A part covers the whole image. After a warp that is not affine, its mean is still the center of the
    # image only if cells are weighted by area.
    size, side = 64, torch.linspace(-1, 1, 9)
    control = torch.cartesian_prod(side, side)
    targets = control + 0.15 * (1 - control.square()).prod(dim=1, keepdim=True)
    warps = fit_warps(control, targets[None])
    mean, _ = unwarped_moments(torch.full((1, 1, size, size), size**-2), warps)
    assert float(mean.abs().max()) < 0.01
    assert float(warps(cell_positions(size, size, _CPU)[None]).mean()) > 0.05


def test_appearance_is_pooled_and_spread_by_maps() -> None:
    maps, features = _draw_distributions(4, (1, 2, 3, 3)), torch.randn(1, 5, 3, 3)
    pooled = pool_appearance(features, maps)
    expected = (maps[0, 1] * features[0]).sum(dim=(1, 2))
    torch.testing.assert_close(pooled[0, 1], expected)
    bells = torch.tensor([1.0, 0.5]).view(1, 2, 1, 1).expand(1, 2, 3, 3)
    spread = spread_appearance(bells, pooled)
    torch.testing.assert_close(spread[0, :, 1, 2], (pooled[0, 0] + 0.5 * pooled[0, 1]) / 2.5)


def test_pixels_near_parts_have_the_largest_weights() -> None:
    weights = pixel_weights(torch.tensor([[[-0.5, 0.5]]]), 32, 0.1, 0.2)
    assert float(weights.sum()) == pytest.approx(1)
    row, column = divmod(int(weights.argmax()), 32)
    assert (row + 0.5, column + 0.5) == pytest.approx((24, 8), abs=0.5)
    assert float(weights[0, 8, 24]) == 0


def _make_config() -> Config:
    config = preset("tiny")
    return replace(
        config,
        method="lorenz2019",
        K=3,
        images=replace(config.images, size=64),
        network=replace(config.network, channels=16, norm_groups=2, depth=2),
    )


def _compute_losses(network: Lorenz2019, config: Config) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 64, 64, generator=generator)
    changes = RandomChanges(config, BatchSlice(0, 2, 2), generator)
    return dict(network.compute_losses(images, images, changes))


@pytest.mark.parametrize("compare_roots", [False, True])
def test_every_loss_reaches_the_landmark_network(compare_roots: bool) -> None:
    config = _make_config()
    config = replace(config, lorenz2019=replace(config.lorenz2019, compare_roots=compare_roots))
    torch.manual_seed(0)
    network = Lorenz2019(config)
    losses = _compute_losses(network, config)
    assert set(losses) == {"total", "pixels", "features", "means", "covariances"}
    for name, loss in losses.items():
        assert bool(loss.isfinite()), name
        weight = network.psi.head.last.weight
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
        assert float(gradient.abs().max()) > 0, name


def test_every_parameter_is_trained_and_the_perceptual_network_is_not_stored() -> None:
    torch.manual_seed(0)
    config = _make_config()
    network = Lorenz2019(config)
    names = set(network.state_dict())
    _compute_losses(network, config)["total"].backward()  # type: ignore[no-untyped-call]
    assert set(network.state_dict()) == names
    assert {name.split(".")[0] for name in names} == {"psi", "appearance", "decoder"}
    assert all(parameter.grad is not None for parameter in network.parameters())
