"""Test the scatter plot of the report, on which similar points are close together."""

from __future__ import annotations

import re

import numpy as np
import pytest

from selfmark.model.colors import palette
from selfmark.report.scatter import HEIGHT, WIDTH, Scatter, build_scatter


def _read_dots(scatter: Scatter) -> dict[int, np.ndarray]:
    """Return the positions of the dots, [P, 2], of each landmark."""
    return {
        group.index: np.array(re.findall(r"M(-?[\d.]+) (-?[\d.]+)h0", group.dots), float)
        for group in scatter.groups
    }


def test_dots_fill_the_plot_without_distortion() -> None:
    xy = np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.5], [0.0, -0.5]])
    positions = _read_dots(build_scatter(xy, np.zeros(4, int), palette(1)))[0]
    assert positions[1, 0] - positions[0, 0] == pytest.approx(2 * (positions[2, 1] - positions[3, 1]))
    assert positions.mean(axis=0) == pytest.approx([WIDTH / 2, HEIGHT / 2])
    assert positions.min() > 0
    assert positions[1, 0] > 0.9 * WIDTH


def test_each_landmark_has_its_color_and_its_number_at_the_median() -> None:
    rng = np.random.default_rng(0)
    xy, label = rng.normal(size=(300, 2)), rng.integers(-1, 4, 300)
    scatter = build_scatter(xy, label, palette(5))
    # No point has label 4; points without a landmark come first.
    assert [group.index for group in scatter.groups] == [-1, 0, 1, 2, 3]
    for group in scatter.groups[1:]:
        assert group.color == palette(5)[group.index]
        assert len(_read_dots(scatter)[group.index]) == (label == group.index).sum()
        assert group.center == pytest.approx(np.median(_read_dots(scatter)[group.index], axis=0), abs=0.11)
    assert scatter.groups[0].color not in palette(5)
    assert scatter.num_points == 300


def test_the_plot_has_at_most_a_thousand_dots_all_finite() -> None:
    xy = np.random.default_rng(0).normal(size=(2500, 2))
    label = np.zeros(2500, int)
    assert len(_read_dots(build_scatter(xy, label, palette(1)))[0]) == 1000
    xy[3:] = np.nan
    assert len(_read_dots(build_scatter(xy, label, palette(1)))[0]) == 3
    assert build_scatter(np.full((4, 2), np.inf), np.zeros(4, int), palette(1)).groups == ()
    all_equal = build_scatter(np.ones((4, 2)), np.zeros(4, int), palette(1))
    assert len(_read_dots(all_equal)[0]) == 4
