"""Compare peaks of score maps, and the descriptors at them, with a naive loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from selfmark.keypoints.peaks import BORDER, find_strongest_peaks
from selfmark.model.heatmaps import local_maxima, sample_descriptors


def find_naive_maxima(score, radius, threshold):
    """Mark each cell that is the maximum of its window, unless an earlier maximum is within the radius.

    An earlier maximum suppresses the cell even if a still earlier one suppresses that maximum.
    """

    def cut_window(values, y, x):
        return values[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]

    maxima = np.zeros(score.shape, bool)
    for y, x in np.ndindex(score.shape):
        maxima[y, x] = score[y, x] > threshold and score[y, x] == cut_window(score, y, x).max()
    result = np.zeros(score.shape, bool)
    for y, x in np.ndindex(score.shape):
        earlier = [
            (other_y, other_x)
            for other_y, other_x in zip(*np.nonzero(maxima), strict=True)
            if abs(other_y - y) <= radius and abs(other_x - x) <= radius and (other_y, other_x) < (y, x)
        ]
        result[y, x] = maxima[y, x] and not earlier
    return result


small_maps = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=9),
    elements=st.sampled_from([0.0, 0.25, 0.5, 1.0]),  # few values: many ties
)


@settings(deadline=None)
@given(small_maps, st.integers(0, 3), st.sampled_from([-math.inf, 0.0, 0.3]))
def test_local_maxima_match_the_definition_with_ties(score, radius, threshold):
    maxima = local_maxima(torch.from_numpy(score), radius, threshold).numpy()
    for image, result in zip(score, maxima, strict=True):
        np.testing.assert_array_equal(result, find_naive_maxima(image, radius, threshold))
        positions = np.argwhere(result)
        distance = np.abs(positions[:, None] - positions[None]).max(axis=-1)
        assert (distance[~np.eye(len(positions), dtype=bool)] > radius).all()


def test_distinct_values_are_peaks_if_they_are_the_window_maximum():
    score = np.random.default_rng(0).permutation(40 * 30).reshape(40, 30).astype(np.float32)
    maxima = local_maxima(torch.from_numpy(score)[None], 4, 100.0)[0].numpy()
    for y, x in np.ndindex(score.shape):
        largest = score[max(0, y - 4) : y + 5, max(0, x - 4) : x + 5].max()
        assert maxima[y, x] == (score[y, x] == largest and score[y, x] > 100)


def test_a_constant_map_has_one_peak():
    assert local_maxima(torch.ones(1, 20, 20), 3, 0.5).nonzero().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("stride", [1, 4, 8])
def test_descriptors_are_sampled_relative_to_cell_centers(stride):
    # The two channels of the map are the image coordinates of its cells, so samples are coordinates.
    rows, columns = 6, 5
    x = (torch.arange(columns) + 0.5) * stride - 0.5
    y = (torch.arange(rows) + 0.5) * stride - 0.5
    maps = torch.stack((x.expand(rows, columns), y[:, None].expand(rows, columns)))[None]
    xy = torch.tensor([[[1.5, 2.25], [2.0, 3.0], [3.0, 1.0]]]) * stride
    expected = xy / xy.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(sample_descriptors(maps, (xy + 0.5) / stride - 0.5), expected)


def test_strongest_peaks_are_sorted_and_exclude_the_border():
    score = torch.zeros(3, 40, 40)
    score[0, 10, 12], score[0, 30, 20], score[0, 20, 35] = 0.3, 0.9, 0.6
    score[0, 32, 20] = 0.8  # within the radius of the best peak
    score[0, BORDER - 1, 20] = 1.0  # in the border
    score[1, 5, 6] = 0.05  # below the threshold
    # A peak in the border must not suppress its neighbor.
    score[2, BORDER + 1, 20], score[2, BORDER - 1, 20] = 0.4, 0.7
    maps = torch.rand(3, 7, 5, 5) + 0.1
    points = find_strongest_peaks(score, maps, stride=8, radius=3, threshold=0.1, count=2)
    assert points.xy.tolist() == [[20, 30], [35, 20], [20, BORDER + 1]]
    assert points.image_index.tolist() == [0, 0, 2]
    torch.testing.assert_close(points.score, torch.tensor([0.9, 0.6, 0.4]))
    assert points.descriptor is not None
    torch.testing.assert_close(
        points.descriptor[2], sample_descriptors(maps[2:], (points.xy[None, 2:] + 0.5) / 8 - 0.5)[0, 0]
    )
    torch.testing.assert_close(points.descriptor.norm(dim=1), torch.ones(3))


def test_without_a_threshold_the_best_peaks_are_selected_regardless_of_score():
    score = torch.rand(1, 30, 30, generator=torch.Generator().manual_seed(0)) * 1e-6
    points = find_strongest_peaks(score, torch.ones(1, 2, 30, 30), 1, 2, -math.inf, 5)
    assert len(points) == 5
    inner = score[0, BORDER:-BORDER, BORDER:-BORDER]
    assert points.score[0] == inner.max()
    assert (points.score.diff() <= 0).all()
