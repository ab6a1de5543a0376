"""Test the line charts of losses and results."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from selfmark.report import ReportCurves
from selfmark.report.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Chart,
    ChartLine,
    build_line_charts,
    build_loss_charts,
)


def _read_points(line: ChartLine) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", line.path)]


def _read_points_of_single_line(chart: Chart) -> list[tuple[float, float]]:
    (line,) = chart.lines
    return _read_points(line)


def _make_curves(*lines: tuple[str, list[float], list[float]]) -> ReportCurves:
    return ReportCurves("t", "n", "x", "y", tuple((name, np.array(x), np.array(y)) for name, x, y in lines))


def test_a_line_has_the_expected_coordinates() -> None:
    (chart,) = build_loss_charts(
        [{"stage": "stage 2", "iteration": i, "loss": v} for i, v in ((0, 2.0), (50, 1.0), (100, 0.0))]
    )
    middle = (LEFT + RIGHT) / 2
    assert _read_points_of_single_line(chart) == [
        (LEFT, TOP),
        (middle, pytest.approx((TOP + BOTTOM) / 2)),
        (RIGHT, BOTTOM),
    ]
    assert [label for _, label in chart.y_ticks] == ["0", "0.5", "1", "1.5", "2"]
    assert [label for _, label in chart.x_ticks] == ["0", "20", "40", "60", "80", "100"]
    assert [x for x, _ in chart.x_ticks] == pytest.approx([LEFT + i * (RIGHT - LEFT) / 5 for i in range(6)])
    assert chart.note == "0 at the end"
    assert chart.lines[0].marks == ""  # A single line has no symbols.


def test_the_last_loss_of_a_repeated_iteration_is_shown() -> None:
    events = [
        {"stage": "warm-up", "iteration": i, "loss": {"total": v}}
        for i, v in ((1, 4.0), (2, 4.0), (2, 2.0), (3, 1.0))
    ]
    (chart,) = build_loss_charts(events)
    assert len(_read_points_of_single_line(chart)) == 3
    assert _read_points_of_single_line(chart)[1][1] == pytest.approx((TOP + BOTTOM) / 2, abs=0.1)


def test_rounds_are_marked_where_they_start() -> None:
    events = [{"stage": "warm-up", "iteration": i, "loss": 1.0} for i in (0, 100)]
    events += [
        {"stage": "round", "round": r, "start": 100 * r, "iteration": 100 * r + 50, "loss": 1.0}
        for r in (1, 2, 3)
    ]
    events += [{"stage": "round", "round": 3, "start": 300, "iteration": 400, "loss": 1.0}]
    (chart,) = build_loss_charts(events)
    assert [number for _, number in chart.round_starts] == ["1", "2", "3"]
    expected = [LEFT + (RIGHT - LEFT) * fraction for fraction in (0.25, 0.5, 0.75)]
    assert [x for x, _ in chart.round_starts] == pytest.approx(expected)


def test_long_histories_are_averaged() -> None:
    events = [{"stage": "s", "iteration": i, "loss": float(i % 2)} for i in range(4000)]
    (chart,) = build_loss_charts(events)
    heights = [y for _, y in _read_points_of_single_line(chart)]
    assert 100 < len(heights) <= 300
    assert [label for _, label in chart.y_ticks][
        -1
    ] == "0.6"  # The axis fits the means of 0.5, not the noise.
    assert heights == pytest.approx([BOTTOM - (BOTTOM - TOP) * 0.5 / 0.6] * len(heights), abs=0.1)


def test_events_without_a_finite_loss_are_ignored() -> None:
    events = [
        {},
        {"iteration": 5},
        {"loss": 1.0},
        {"iteration": None, "loss": 1.0},
        {"iteration": 3, "loss": None},
        {"iteration": 3, "loss": math.nan},
        {"iteration": 3, "loss": {"total": "text", "other": math.inf}},
        {"iteration": 3, "loss": {}},
    ]
    assert build_loss_charts(events) == ()
    (chart,) = build_loss_charts([*events, {"iteration": 3, "loss": 0}])
    assert chart.title == "training: loss"
    assert _read_points_of_single_line(chart) == [(LEFT, BOTTOM)]


@pytest.mark.parametrize("largest", [1e-7, 0.0021, 0.9999, 1.0, 7.3, 12345.0])
def test_the_axis_ends_on_a_round_number_above_the_curve(largest: float) -> None:
    (chart,) = build_loss_charts([{"iteration": 0, "loss": largest}, {"iteration": 1, "loss": largest / 2}])
    top = float(chart.y_ticks[-1][1].replace(",", ""))
    assert largest <= top * (1 + 1e-9) <= 2 * largest
    significant_digits = f"{top:.6e}".split("e")[0].rstrip("0").replace(".", "")
    assert len(significant_digits) <= 2


def test_lines_have_common_axes() -> None:
    (chart,) = build_line_charts(
        [_make_curves(("low", [0.0, 10.0], [0.0, 5.0]), ("high", [5.0, 20.0], [10.0, 10.0]))]
    )
    low, high = chart.lines
    assert _read_points(low) == [(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2)]
    assert _read_points(high) == [(LEFT + (RIGHT - LEFT) / 4, TOP), (RIGHT, TOP)]
    assert (chart.title, chart.note, chart.x_label, chart.y_label) == ("t", "n", "x", "y")


def test_twenty_lines_differ_in_dashes_or_symbol() -> None:
    (chart,) = build_line_charts([_make_curves(*((str(i), [0.0, 1.0], [0.0, float(i)]) for i in range(20)))])
    styles = {(line.style % 4, line.symbol) for line in chart.lines}  # There are four dash patterns.
    assert len(styles) == 20
    for line in chart.lines:
        symbols = [(float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)", line.marks)]
        assert symbols == _read_points(line)


def test_long_lines_keep_their_ends_and_a_few_symbols() -> None:
    x = np.arange(5000.0)
    (chart,) = build_line_charts([ReportCurves("t", "", "x", "y", (("a", x, x), ("b", x, x)))])
    a, b = chart.lines
    assert 100 < len(_read_points(a)) <= 300
    assert _read_points(a)[0] == (LEFT, BOTTOM)
    assert _read_points(a)[-1][0] == RIGHT
    marks = [set(re.findall(r"M([\d.]+) ", line.marks)) for line in (a, b)]
    assert all(4 <= len(mark) <= 8 for mark in marks)
    assert not marks[0] & marks[1]  # Symbols do not overlap where the lines coincide.


def test_points_that_are_not_finite_are_left_out() -> None:
    (chart,) = build_line_charts(
        [
            _make_curves(
                ("gap", [0.0, 1.0, math.nan, 2.0], [1.0, math.inf, 1.0, 1.0]), ("none", [0.0], [math.nan])
            ),
            _make_curves(("nothing", [], [])),
        ]
    )
    (line,) = chart.lines
    assert _read_points(line) == [(LEFT, TOP), (RIGHT, TOP)]


def test_the_axis_extends_below_zero() -> None:
    (chart,) = build_line_charts([_make_curves(("a", [0.0, 1.0], [-1.0, 1.0]))])
    assert _read_points_of_single_line(chart) == [(LEFT, BOTTOM), (RIGHT, TOP)]


def test_whole_numbers_have_whole_ticks() -> None:
    (rounds,) = build_line_charts([_make_curves(("a", [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]))])
    assert [label for _, label in rounds.x_ticks] == ["1", "2", "3"]
    (fractions,) = build_line_charts([_make_curves(("a", [0.0, 0.5, 1.0], [1.0, 1.0, 1.0]))])
    assert [label for _, label in fractions.x_ticks] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
