"""Compare heatmaps with naive loops, exact Gaussians and scipy's interpolation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates

from selfmark.model import heatmaps


@given(st.floats(-50, 500), st.floats(-50, 500))
def test_cells_and_pixels_round_trip(x: float, y: float) -> None:
    xy = torch.tensor([[x, y]])
    assert torch.allclose(heatmaps.to_pixels(heatmaps.to_cells(xy)), xy, atol=1e-3)


def test_cell_centers_are_block_centers() -> None:
    """Cell 0 covers pixels 0 to 3, whose center is 1.5."""
    assert heatmaps.to_pixels(torch.tensor([0.0, 1.0])).tolist() == [1.5, 5.5]


def test_drawing_matches_the_formula() -> None:
    cells = torch.tensor([[[2.3, 4.6], [0.0, 7.0]]])
    maps = heatmaps.draw_gaussians(cells, 8, 0.75)
    for point in range(2):
        for row in range(8):
            for column in range(8):
                x, y = cells[0, point].tolist()
                expected = math.exp(-((column - x) ** 2 + (row - y) ** 2) / (2 * 0.75**2))
                assert maps[0, point, row, column].item() == pytest.approx(expected, abs=1e-6)


def test_the_target_is_the_maximum_over_valid_points() -> None:
    cells = torch.tensor([[[1.0, 1.0], [2.0, 1.0], [6.0, 6.0]]])
    valid = torch.tensor([[True, True, False]])
    target = heatmaps.draw_target(cells, valid, 8, 1.0)
    separate = heatmaps.draw_gaussians(cells, 8, 1.0)
    assert torch.allclose(target[0, 0], torch.maximum(separate[0, 0], separate[0, 1]))
    assert target[0, 0, 6, 6] < 1e-4


def test_a_sigma_of_zero_sets_single_cells() -> None:
    cells, sigma = heatmaps.prepare_gaussians(torch.tensor([[[1.4, 2.6], [5.0, 0.4]]]), 0)
    expected = torch.zeros(8, 8)
    expected[3, 1] = expected[0, 5] = 1
    target = heatmaps.draw_target(cells, torch.ones(1, 2, dtype=torch.bool), 8, sigma)
    assert torch.equal(target[0, 0], expected)
    assert heatmaps.prepare_gaussians(cells, 0.75) == (cells, 0.75)


def _find_naive_peaks(heat: np.ndarray, threshold: float, radius: int) -> set[tuple[int, int]]:
    found = set()
    height, width = heat.shape
    for row in range(height):
        for column in range(width):
            window = heat[
                max(row - radius, 0) : row + radius + 1, max(column - radius, 0) : column + radius + 1
            ]
            if heat[row, column] > threshold and heat[row, column] >= window.max():
                found.add((column, row))
    return found


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 3), st.floats(0.0, 0.9))
def test_non_maximum_suppression_matches_brute_force(seed: int, radius: int, threshold: float) -> None:
    heat = np.random.default_rng(seed).random((2, 13, 17)).astype(np.float32)
    peaks = heatmaps.find_peaks(torch.from_numpy(heat), threshold, radius, 13 * 17, "quarter")
    for image in range(2):
        cells = peaks.cells[image][peaks.valid[image]]
        # A step of a quarter cell never leaves the cell, so rounding gives the cell.
        assert {(round(x), round(y)) for x, y in cells.tolist()} == _find_naive_peaks(
            heat[image], threshold, radius
        )
        kept = peaks.score[image][peaks.valid[image]]
        assert (kept[:-1] >= kept[1:]).all()


def test_the_highest_peaks_are_kept_when_there_are_too_many() -> None:
    heat = torch.zeros(1, 20, 20)
    heat[0, 3, 3], heat[0, 10, 10], heat[0, 17, 3] = 0.5, 0.9, 0.7
    peaks = heatmaps.find_peaks(heat, 0.1, 2, 2, "quarter")
    assert peaks.cells[0].tolist() == [[10, 10], [3, 17]]
    assert peaks.valid.all()


@settings(deadline=None, max_examples=60)
@given(st.floats(2, 12), st.floats(2, 12), st.floats(0.6, 1.5))
def test_the_parabola_finds_the_center_of_a_gaussian(x: float, y: float, sigma: float) -> None:
    maps = heatmaps.draw_gaussians(torch.tensor([[[x, y]]], dtype=torch.float64), 16, sigma)
    found = heatmaps.find_maxima(maps, "parabola").cells[0, 0]
    # Errors come only from float32 rounding and from small values, which are raised to a minimum before the
    # logarithm.
    assert torch.allclose(found.double(), torch.tensor([x, y], dtype=torch.float64), atol=0.02)


def test_the_highest_cell_can_be_read_without_a_subcell_position() -> None:
    maps = torch.rand(2, 3, 9, 11, generator=torch.Generator().manual_seed(5))
    for image, landmark in itertools.product(range(2), range(3)):
        row, column = divmod(int(maps[image, landmark].argmax()), 11)
        assert heatmaps.read_heatmaps(maps, "cell").cells[image, landmark].tolist() == [column, row]


def test_the_quarter_step_is_towards_the_higher_neighbor() -> None:
    maps = heatmaps.draw_gaussians(torch.tensor([[[5.3, 6.8]]]), 16, 0.75)
    assert heatmaps.find_maxima(maps, "quarter").cells[0, 0].tolist() == [5.25, 6.75]


def test_centroids_match_a_naive_loop() -> None:
    maps = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    centroids = heatmaps.read_heatmaps(maps, "centroid")
    for image, landmark in np.ndindex(2, 3):
        total, sum_x, sum_y, highest = 0.0, 0.0, 0.0, -np.inf
        for y, x in np.ndindex(5, 7):
            heat = float(maps[image, landmark, y, x])
            weight = max(heat, 0.0) ** 2
            total, highest = total + weight, max(highest, heat)
            sum_x, sum_y = sum_x + weight * x, sum_y + weight * y
        expected = [sum_x / total, sum_y / total]
        np.testing.assert_allclose(centroids.cells[image, landmark].numpy(), expected, rtol=1e-5)
        assert float(centroids.score[image, landmark]) == pytest.approx(highest)
    assert centroids.valid.all()


def test_the_centroid_lies_at_the_center_of_one_gaussian_and_between_two() -> None:
    single = heatmaps.draw_gaussians(torch.tensor([[[20.3, 31.8]]]), 64, 2.0)
    np.testing.assert_allclose(heatmaps.heat_centroids(single).cells[0, 0].numpy(), [20.3, 31.8], atol=1e-3)
    separate = heatmaps.draw_gaussians(torch.tensor([[[20.0, 30.0], [40.0, 30.0]]]), 64, 2.0)
    joined = separate.sum(dim=1, keepdim=True)
    np.testing.assert_allclose(heatmaps.heat_centroids(joined).cells[0, 0].numpy(), [30.0, 30.0], atol=1e-3)
    assert heatmaps.heat_centroids(-single).cells[0, 0].tolist() == pytest.approx([31.5, 31.5])


def test_peaks_at_the_border_stay_on_the_map() -> None:
    for corner in ((0, 0), (15, 0), (0, 15), (15, 15)):
        maps = torch.rand(1, 1, 16, 16) * 0.1
        maps[0, 0, corner[1], corner[0]] = 1.0
        for refine in ("quarter", "parabola"):
            cells = heatmaps.find_maxima(maps, refine).cells[0, 0]  # type: ignore[arg-type]
            assert ((cells >= 0) & (cells <= 15)).all()


def test_sampling_matches_scipy() -> None:
    rng = np.random.default_rng(0)
    maps = rng.random((2, 3, 9, 11)).astype(np.float32)
    cells = np.stack([rng.uniform(0, 10, (2, 20)), rng.uniform(0, 8, (2, 20))], axis=-1).astype(np.float32)
    ours = heatmaps.sample_maps(torch.from_numpy(maps), torch.from_numpy(cells)).numpy()
    for image in range(2):
        for channel in range(3):
            rows_and_columns = [cells[image, :, 1], cells[image, :, 0]]
            expected = map_coordinates(maps[image, channel], rows_and_columns, order=1)
            np.testing.assert_allclose(ours[image, :, channel], expected, atol=1e-5)


def test_descriptors_have_unit_length() -> None:
    found = heatmaps.sample_descriptors(torch.randn(2, 8, 6, 6), torch.rand(2, 5, 2) * 5)
    assert torch.allclose(found.norm(dim=-1), torch.ones(2, 5), atol=1e-5)
