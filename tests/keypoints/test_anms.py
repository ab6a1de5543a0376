"""Compare adaptive non-maximal suppression with a naive loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from selfmark.keypoints.anms import cover_with_squares, suppress_non_maxima


def make_clusters(seed, count=600, width=200, height=140):
    """Return points [N, 2], strongest first. Most lie around a few centers, as with a corner detector."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(0, [width, height], (6, 2))
    clustered = centers[rng.integers(0, 6, count)] + rng.normal(0, 6, (count, 2))
    points = np.where(rng.random((count, 1)) < 0.8, clustered, rng.uniform(0, [width, height], (count, 2)))
    return np.clip(points, 0, [width - 1, height - 1])


def cover_naively(xy, reach):
    """Keep each point, strongest first, if its cell is not close to the cell of a kept point.

    Cells are close if they are at most two rows and two columns apart.
    """
    survivors = []
    for index, point in enumerate(xy):
        cell = np.floor((point + 0.5) / (reach / 2))
        if all(np.abs(cell - np.floor((xy[other] + 0.5) / (reach / 2))).max() > 2 for other in survivors):
            survivors.append(index)
    return survivors


@pytest.mark.parametrize("reach", [1, 2, 5, 16, 33, 200])
def test_covering_with_squares_matches_a_naive_loop(reach):
    xy = make_clusters(reach)
    assert cover_with_squares(xy, reach, 200, 140, limit=10_000).tolist() == cover_naively(xy, reach)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 60))
def test_selected_points_are_farther_apart_than_the_reach_and_others_have_a_stronger_neighbor(seed, reach):
    xy = make_clusters(seed, count=120)
    survivors = cover_with_squares(xy, reach, 200, 140, limit=10_000)
    if len(survivors) > 1:
        assert pdist(xy[survivors], "chebyshev").min() > reach
    for index in set(range(len(xy))) - set(survivors.tolist()):
        stronger = survivors[survivors < index]
        assert np.abs(xy[stronger] - xy[index]).max(axis=1).min() < 1.5 * reach


def test_covering_with_squares_stops_at_the_limit():
    xy = make_clusters(3)
    assert cover_with_squares(xy, 4, 200, 140, limit=7).tolist() == cover_naively(xy, 4)[:7]


@pytest.mark.parametrize("count", [1, 5, 20, 40, 100])
@pytest.mark.parametrize("seed", range(4))
def test_the_requested_number_of_points_is_selected_and_spread(count, seed):
    xy = make_clusters(seed)
    chosen = suppress_non_maxima(xy, count, 200, 140)
    assert len(chosen) == count
    assert chosen[0] == 0
    assert (np.diff(chosen) > 0).all()
    if count > 1:
        strongest = xy[:count]
        # If few points are requested, the strongest points may be far apart by chance.
        gain = 2 if count >= 20 else 1
        assert pdist(xy[chosen]).min() > gain * pdist(strongest).min()


@pytest.mark.parametrize("count", [5, 10, 30, 60])
@pytest.mark.parametrize("seed", range(3))
def test_the_square_is_nearly_the_largest_that_selects_enough_points(count, seed):
    xy = make_clusters(seed, count=150)
    chosen = suppress_non_maxima(xy, count, 200, 140, tolerance=0.0)
    distance = pdist(xy[chosen], "chebyshev").min()
    largest = max(reach for reach in range(1, 140) if len(cover_naively(xy, reach)) >= count)
    # A smaller square does not always select more points, so bisection may miss the largest suitable square.
    assert distance > 0.75 * largest


def test_the_square_shrinks_to_a_pixel_if_necessary():
    lattice = np.stack(np.meshgrid(np.arange(0, 60, 2), np.arange(0, 40, 2)), axis=-1).reshape(-1, 2)
    assert len(suppress_non_maxima(lattice, len(lattice) - 1, 60, 40)) == len(lattice) - 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-0.5, 63.4), st.floats(-0.5, 31.4)), max_size=60),
    st.integers(1, 30),
)
def test_at_most_the_requested_number_is_selected_and_the_strongest_is_included(points, count):
    xy = np.array(points, dtype=np.float64).reshape(-1, 2)
    chosen = suppress_non_maxima(xy, count, 64, 32)
    assert len(chosen) <= count
    assert len(set(chosen.tolist())) == len(chosen)
    if len(xy):
        assert chosen[0] == 0


def test_equal_points_count_once():
    xy = np.tile([[10.0, 10.0]], (50, 1))
    assert suppress_non_maxima(xy, 5, 64, 64).tolist() == [0]
