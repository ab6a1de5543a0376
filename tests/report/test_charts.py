from __future__ import annotations

import math
import re

import pytest

from selfmark.report.charts import BOTTOM, LEFT, RIGHT, TOP, Chart, loss_charts


def places(chart: Chart) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", chart.path)]


def test_a_line_by_hand() -> None:
    (chart,) = loss_charts(
        [{"stage": "stage 2", "iteration": i, "loss": v} for i, v in ((0, 2.0), (50, 1.0), (100, 0.0))]
    )
    middle = (LEFT + RIGHT) / 2
    assert places(chart) == [(LEFT, TOP), (middle, pytest.approx((TOP + BOTTOM) / 2)), (RIGHT, BOTTOM)]
    assert [label for _, label in chart.heights] == ["0", "1", "2"]
    assert [label for _, label in chart.places] == ["0", "100"]
    assert chart.last == "0"


def test_an_iteration_run_again_counts_as_the_last_time() -> None:
    events = [
        {"stage": "warm-up", "iteration": i, "loss": {"total": v}}
        for i, v in ((1, 4.0), (2, 4.0), (2, 2.0), (3, 1.0))
    ]
    (chart,) = loss_charts(events)
    assert len(places(chart)) == 3
    assert places(chart)[1][1] == pytest.approx((TOP + BOTTOM) / 2, abs=0.1)


def test_rounds_are_marked_where_they_start() -> None:
    events = [{"stage": "warm-up", "iteration": i, "loss": 1.0} for i in (0, 100)]
    events += [
        {"stage": "round", "round": r, "start": 100 * r, "iteration": 100 * r + 50, "loss": 1.0}
        for r in (1, 2, 3)
    ]
    events += [{"stage": "round", "round": 3, "start": 300, "iteration": 400, "loss": 1.0}]
    (chart,) = loss_charts(events)
    assert [number for _, number in chart.rounds] == ["1", "2", "3"]
    expected = [LEFT + (RIGHT - LEFT) * share for share in (0.25, 0.5, 0.75)]
    assert [x for x, _ in chart.rounds] == pytest.approx(expected)


def test_long_histories_are_averaged() -> None:
    events = [{"stage": "s", "iteration": i, "loss": float(i % 2)} for i in range(4000)]
    (chart,) = loss_charts(events)
    heights = [y for _, y in places(chart)]
    assert 100 < len(heights) <= 300
    assert heights == pytest.approx([(TOP + BOTTOM) / 2] * len(heights), abs=5)


def test_events_without_a_usable_loss_are_passed_over() -> None:
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
    assert loss_charts(events) == ()
    (chart,) = loss_charts([*events, {"iteration": 3, "loss": 0}])
    assert chart.title == "training: loss"
    assert places(chart) == [(LEFT, BOTTOM)]


@pytest.mark.parametrize("largest", [1e-7, 0.0021, 0.9999, 1.0, 7.3, 12345.0])
def test_the_axis_ends_on_a_round_figure_just_above_the_curve(largest: float) -> None:
    (chart,) = loss_charts([{"iteration": 0, "loss": largest}, {"iteration": 1, "loss": largest / 2}])
    top = float(chart.heights[-1][1])
    assert largest <= top * (1 + 1e-9) <= 2 * largest
    assert len(f"{top:.6e}".split("e")[0].rstrip("0").replace(".", "")) <= 2
