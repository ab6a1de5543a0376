"""Lay out line charts for inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfmark.points import FloatArray
from selfmark.report.sections import ReportCurves
from selfmark.sampling import evenly_spaced

WIDTH, HEIGHT = 360, 216  # size of a chart, SVG units
LEFT, TOP, RIGHT, BOTTOM = 46, 22, 350, 174  # edges of the plotting area inside the chart, SVG units
# Maximum number of points of a line. Longer loss curves are averaged in groups; other lines are sampled.
_MAX_POINTS = 300
_NUM_SYMBOLS = 6  # symbols on a long line; with up to 2 * _NUM_SYMBOLS points, every point has a symbol
_MAX_INTERVALS = 5  # intervals between the labels of an axis

# Four dash patterns (in the style sheet) and five symbols distinguish twenty lines without color.
_SYMBOLS = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",  # disc
    "m-2.7-2.7h5.4v5.4h-5.4z",  # square
    "m0-3.8l3.5 6h-7z",  # triangle
    "m0-3.9l3.9 3.9-3.9 3.9-3.9-3.9z",  # diamond
    "m0 3.8l3.5-6h-7z",  # triangle, point down
)

# The warm-up and the rounds of Stage 1 number their iterations consecutively, so they share a chart.
_CHART_OF_STAGE = {"warm-up": "Stage 1", "round": "Stage 1", "stage 2": "Stage 2"}


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart.

    Attributes:
        name: Name in the legend.
        path: SVG path of the line.
        marks: SVG path of the symbols on the line; empty if it has none.
        symbol: SVG path of the symbol in the legend.
        style: Number of the line, from which the style sheet chooses color and dashes.
    """

    name: str
    path: str
    marks: str
    symbol: str
    style: int


@dataclass(frozen=True)
class Chart:
    """A chart with its positions in SVG units.

    Attributes:
        title: Title.
        note: Explanation below the title.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        lines: The lines.
        y_ticks: (position, label) of each labeled value of the y axis.
        x_ticks: (position, label) of each labeled value of the x axis.
        round_starts: (position on the x axis, number) of each round.
    """

    title: str
    note: str
    x_label: str
    y_label: str
    lines: tuple[ChartLine, ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    round_starts: tuple[tuple[float, str], ...]


def build_line_charts(sections: Iterable[ReportCurves]) -> tuple[Chart, ...]:
    """Return a chart for each set of curves; a set without any finite point is left out."""
    charts = (_build_chart(curves, {}) for curves in sections)
    return tuple(chart for chart in charts if chart.lines)


def build_loss_charts(history: Iterable[dict[str, Any]]) -> tuple[Chart, ...]:
    """Return a chart for each stage and each term of its loss.

    If an iteration was repeated after an interruption, only the last attempt counts.

    Args:
        history: Events of a run; those with an iteration and a loss are used.
    """
    losses: dict[tuple[str, str], dict[int, float]] = {}
    starts: dict[str, dict[str, int]] = {}
    for event in history:
        iteration, stage = event.get("iteration"), str(event.get("stage", "training"))
        if isinstance(iteration, bool) or not isinstance(iteration, int):
            continue
        chart = _CHART_OF_STAGE.get(stage, stage)
        for term, value in _list_terms(event.get("loss")):
            losses.setdefault((chart, term), {})[iteration] = value
        if stage == "round" and event.get("round"):
            start = event.get("start", iteration)
            starts.setdefault(chart, {}).setdefault(str(event["round"]), int(start))
    return tuple(
        _build_loss_chart(
            f"{chart}: {'loss' if term == 'total' else term + ' loss'}", curve, starts.get(chart, {})
        )
        for (chart, term), curve in losses.items()
    )


def _list_terms(loss: Any) -> list[tuple[str, float]]:
    """Return name and value of the finite terms of a loss, which is one number or several named numbers."""
    named = loss if isinstance(loss, dict) else {"total": loss}
    return [
        (str(name), float(value))
        for name, value in named.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]


def _build_loss_chart(title: str, curve: dict[int, float], round_starts: dict[str, int]) -> Chart:
    points = np.array(sorted(curve.items()), dtype=float)  # iteration and loss
    group_size = math.ceil(len(points) / _MAX_POINTS)
    starts = range(0, len(points), group_size)
    means = np.stack([points[start : start + group_size].mean(axis=0) for start in starts])
    note = f"{points[-1, 1]:.4g} at the end"
    chart_curves = ReportCurves(title, note, "iteration", "", (("loss", means[:, 0], means[:, 1]),))
    return _build_chart(chart_curves, round_starts)


def _build_chart(curves: ReportCurves, round_starts: dict[str, int]) -> Chart:
    lines = [(name, *_select_finite_points(x, y)) for name, x, y in curves.lines]
    lines = [line for line in lines if len(line[1])]
    all_x = np.concatenate([x for _, x, _ in lines]) if lines else np.zeros(1)
    all_y = np.concatenate([y for _, _, y in lines]) if lines else np.zeros(1)
    first, last = float(all_x.min()), float(all_x.max())
    top, lowest = _round_up(float(all_y.max())), min(float(all_y.min()), 0.0)
    bottom = -_round_up(-lowest) if lowest < 0 else 0.0

    def to_svg_x(x: float) -> float:
        return LEFT + (RIGHT - LEFT) * (x - first) / (last - first or 1.0)

    def to_svg_y(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (y - bottom) / (top - bottom)

    # Rounds and iterations are whole numbers, so their axis must not be labeled with fractions.
    has_integer_x = bool((all_x == np.round(all_x)).all())
    return Chart(
        title=curves.title,
        note=curves.note,
        x_label=curves.x_label,
        y_label=curves.y_label,
        lines=tuple(
            _build_line(
                name,
                [(to_svg_x(a), to_svg_y(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)],
                style,
                len(lines) > 1,
            )
            for style, (name, x, y) in enumerate(lines)
        ),
        y_ticks=tuple(
            (to_svg_y(value), _format_tick(value)) for value in _choose_ticks(bottom, top, min_step=0.0)
        ),
        x_ticks=tuple(
            (to_svg_x(value), _format_tick(value))
            for value in _choose_ticks(first, last, min_step=1.0 if has_integer_x else 0.0)
        ),
        round_starts=tuple(
            (to_svg_x(start), number) for number, start in round_starts.items() if first <= start <= last
        ),
    )


def _select_finite_points(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the finite points of a line; for a long line, only evenly spaced points with both ends."""
    kept = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if len(kept) > _MAX_POINTS:
        kept = kept[evenly_spaced(len(kept), _MAX_POINTS)]
    return x[kept], y[kept]


def _build_line(name: str, points: list[tuple[float, float]], style: int, has_symbols: bool) -> ChartLine:
    symbol = _SYMBOLS[style % len(_SYMBOLS)]
    count = len(points)
    if count <= 2 * _NUM_SYMBOLS:
        marked = range(count)
    else:
        step = count // _NUM_SYMBOLS
        # The first symbol of each line is at a different point, so that coinciding lines stay visible.
        first = (style * 2 + 1) * count // (5 * _NUM_SYMBOLS) % step
        marked = range(first, count, step)
    marks = " ".join(f"M{points[i][0]:.1f} {points[i][1]:.1f}{symbol}" for i in marked)
    return ChartLine(
        name=name,
        path="M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points),
        marks=marks if has_symbols else "",
        symbol=f"M20 6{symbol}",
        style=style,
    )


def _choose_ticks(low: float, high: float, min_step: float) -> list[float]:
    """Return the labeled values of an axis: multiples of a step that is 1, 2 or 5 times a power of ten.

    >>> _choose_ticks(0.0, 1.5, 0.0), _choose_ticks(1.0, 3.0, 1.0), _choose_ticks(4.0, 4.0, 0.0)
    ([0.0, 0.5, 1.0, 1.5], [1.0, 2.0, 3.0], [4.0])
    """
    if high <= low:
        return [low]
    smallest_interval = (high - low) / _MAX_INTERVALS
    power = 10.0 ** math.floor(math.log10(smallest_interval))
    steps = (factor * power for factor in (1.0, 2.0, 5.0, 10.0))
    step = max(next(step for step in steps if step >= smallest_interval * (1 - 1e-9)), min_step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _format_tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _round_up(value: float) -> float:
    """Round a value up to a number at which an axis can end; return 1 if the value is not positive."""
    if value <= 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        factor * power
        for factor in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
        if value <= factor * power * (1 + 1e-9)
    )
