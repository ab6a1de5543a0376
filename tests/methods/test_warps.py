"""Compare thin-plate splines with scipy, and warped images with their points."""

from __future__ import annotations

import numpy as np
import torch
from scipy.interpolate import RBFInterpolator

from selfmark.config import Methods
from selfmark.methods.warps import cell_positions, fit_warps, random_warps
from selfmark.train.batch_plan import BatchSlice


def _make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_splines_match_scipy() -> None:
    rng = np.random.default_rng(0)
    control, targets, positions = rng.normal(size=(9, 2)), rng.normal(size=(1, 9, 2)), rng.normal(size=(5, 2))
    expected = RBFInterpolator(control, targets[0], kernel="thin_plate_spline", degree=1)(positions)
    warps = fit_warps(torch.tensor(control), torch.tensor(targets))
    np.testing.assert_allclose(warps(torch.tensor(positions)[None])[0].numpy(), expected, atol=1e-8)


def test_pixels_of_a_warped_image_come_from_the_warped_positions() -> None:
    # The image's two channels are its own coordinates, so a warped image must contain the warped coordinates.
    size = 64
    coordinates = cell_positions(size, size, torch.device("cpu"))
    image = coordinates.T.reshape(1, 2, size, size)
    mild = Methods(warp_shift=0.02, warp_scale=0.02)
    warps = random_warps(mild, BatchSlice(0, 1, 1), _make_generator())
    warped = warps.apply(image)[0].flatten(1).T
    expected = warps(coordinates[None])[0]
    is_inside = (expected.abs() < 0.9).all(dim=1)
    assert int(is_inside.sum()) > 2_000
    torch.testing.assert_close(warped[is_inside], expected[is_inside], atol=1e-3, rtol=0)


def test_processes_take_their_part_of_the_same_warps() -> None:
    all_warps = random_warps(Methods(), BatchSlice(0, 6, 6), _make_generator())
    part = random_warps(Methods(), BatchSlice(2, 5, 6), _make_generator())
    assert torch.equal(part.weight, all_warps.weight[2:5])


def test_the_shift_setting_is_a_standard_deviation() -> None:
    only_shift = Methods(warp_rotation=0, warp_scale=1e-9, warp_shift=0.2, warp_all=1e-9, warp_some=1e-9)
    warps = random_warps(only_shift, BatchSlice(0, 4_000, 4_000), _make_generator())
    moved = warps(torch.zeros(4_000, 1, 2))[:, 0]
    assert abs(float(moved.std()) - 0.2) < 0.01
    assert abs(float(moved.mean())) < 0.01
