"""Curves, worked out as lines for inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfmark.points import FloatArray
from selfmark.report.sections import ReportCurves
from selfmark.sampling import evenly_spaced

WIDTH, HEIGHT = 360, 216  # of a chart, SVG units
LEFT, TOP, RIGHT, BOTTOM = 46, 22, 350, 174  # of the plotting area inside it
_MOST_POINTS = 300  # of a line; longer histories are averaged in groups
_MARKS = 6  # symbols along a long line; each point of a line with up to twice as many has its own
_INTERVALS = 5  # between the figures along an axis, at most

# Four ways of dashing (style sheet) with five symbols tell twenty lines apart without any color.
_SYMBOLS = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",  # disc
    "m-2.7-2.7h5.4v5.4h-5.4z",  # square
    "m0-3.8l3.5 6h-7z",  # triangle
    "m0-3.9l3.9 3.9-3.9 3.9-3.9-3.9z",  # diamond
    "m0 3.8l3.5-6h-7z",  # triangle, point down
)

# Both parts of Stage 1 count their iterations through, so they share a chart.
_CHART_OF_STAGE = {"warm-up": "Stage 1", "round": "Stage 1", "stage 2": "Stage 2"}


@dataclass(frozen=True)
class ChartLine:
    """A line and the symbols on it as SVG paths, its symbol for the legend, and which style it has."""

    name: str
    path: str
    marks: str
    symbol: str
    style: int


@dataclass(frozen=True)
class Chart:
    """Lines, labeled heights, labeled places along the horizontal axis, starts of the rounds."""

    title: str
    note: str
    x_label: str
    y_label: str
    lines: tuple[ChartLine, ...]
    heights: tuple[tuple[float, str], ...]
    places: tuple[tuple[float, str], ...]
    rounds: tuple[tuple[float, str], ...]


def line_charts(parts: Iterable[ReportCurves]) -> tuple[Chart, ...]:
    """A chart for each set of curves that has a finite point at all."""
    charts = (_chart(part, {}) for part in parts)
    return tuple(chart for chart in charts if chart.lines)


def loss_charts(history: Iterable[dict[str, Any]]) -> tuple[Chart, ...]:
    """A chart for each stage and each term of its loss, from the events that have a loss and an iteration.

    Iterations that were run again after an interruption count as in the last attempt.
    """
    losses: dict[tuple[str, str], dict[int, float]] = {}
    starts: dict[str, dict[str, int]] = {}
    for event in history:
        iteration, stage = event.get("iteration"), str(event.get("stage", "training"))
        if isinstance(iteration, bool) or not isinstance(iteration, int):
            continue
        chart = _CHART_OF_STAGE.get(stage, stage)
        for term, value in _terms(event.get("loss")):
            losses.setdefault((chart, term), {})[iteration] = value
        if stage == "round" and event.get("round"):
            begin = event.get("start", iteration)
            starts.setdefault(chart, {}).setdefault(str(event["round"]), int(begin))
    return tuple(
        _loss_chart(f"{chart}: {'loss' if term == 'total' else term + ' loss'}", curve, starts.get(chart, {}))
        for (chart, term), curve in losses.items()
    )


def _terms(loss: Any) -> list[tuple[str, float]]:
    """The finite terms of an event's loss, which is a number or numbers by name."""
    named = loss if isinstance(loss, dict) else {"total": loss}
    return [
        (str(name), float(value))
        for name, value in named.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    ]


def _loss_chart(title: str, curve: dict[int, float], rounds: dict[str, int]) -> Chart:
    points = np.array(sorted(curve.items()), dtype=float)
    group = -(-len(points) // _MOST_POINTS)
    starts = range(0, len(points), group)
    means = np.stack([points[start : start + group].mean(axis=0) for start in starts])
    note = f"{points[-1, 1]:.4g} at the end"
    part = ReportCurves(title, note, "iteration", "", (("loss", means[:, 0], means[:, 1]),))
    return _chart(part, rounds)


def _chart(part: ReportCurves, rounds: dict[str, int]) -> Chart:
    lines = [(name, *_finite(x, y)) for name, x, y in part.lines]
    lines = [line for line in lines if len(line[1])]
    every_x = np.concatenate([x for _, x, _ in lines]) if lines else np.zeros(1)
    every_y = np.concatenate([y for _, _, y in lines]) if lines else np.zeros(1)
    first, last = float(every_x.min()), float(every_x.max())
    top, low = _round_up(float(every_y.max())), min(float(every_y.min()), 0.0)
    bottom = -_round_up(-low) if low < 0 else 0.0

    def across(x: float) -> float:
        return LEFT + (RIGHT - LEFT) * (x - first) / (last - first or 1.0)

    def up(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (y - bottom) / (top - bottom)

    whole = bool((every_x == np.round(every_x)).all())  # half a round or half an iteration is no place
    return Chart(
        title=part.title,
        note=part.note,
        x_label=part.x_label,
        y_label=part.y_label,
        lines=tuple(
            _line(
                name,
                [(across(a), up(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)],
                style,
                len(lines) > 1,
            )
            for style, (name, x, y) in enumerate(lines)
        ),
        heights=tuple((up(value), _figure(value)) for value in _ticks(bottom, top, smallest=0.0)),
        places=tuple(
            (across(value), _figure(value)) for value in _ticks(first, last, smallest=1.0 if whole else 0.0)
        ),
        rounds=tuple((across(start), number) for number, start in rounds.items() if first <= start <= last),
    )


def _finite(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The finite points of a line; of more than a screen can show, some, the ends among them."""
    kept = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if len(kept) > _MOST_POINTS:
        kept = kept[evenly_spaced(len(kept), _MOST_POINTS)]
    return x[kept], y[kept]


def _line(name: str, points: list[tuple[float, float]], style: int, marked: bool) -> ChartLine:
    symbol = _SYMBOLS[style % len(_SYMBOLS)]
    count = len(points)
    if count <= 2 * _MARKS:
        chosen = range(count)
    else:  # begin later on each line, so that lines on top of each other show all their symbols
        chosen = range((style * 2 + 1) * count // (5 * _MARKS) % (count // _MARKS), count, count // _MARKS)
    return ChartLine(
        name=name,
        path="M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points),
        marks=" ".join(f"M{points[i][0]:.1f} {points[i][1]:.1f}{symbol}" for i in chosen) if marked else "",
        symbol=f"M20 6{symbol}",
        style=style,
    )


def _ticks(low: float, high: float, smallest: float) -> list[float]:
    """Round figures from low to high, a step of 1, 2 or 5 times a power of ten apart.

    >>> _ticks(0.0, 1.5, 0.0), _ticks(1.0, 3.0, 1.0), _ticks(4.0, 4.0, 0.0)
    ([0.0, 0.5, 1.0, 1.5], [1.0, 2.0, 3.0], [4.0])
    """
    if high <= low:
        return [low]
    least = (high - low) / _INTERVALS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))
    step = max(step, smallest)
    begin, end = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(begin, end + 1)]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _round_up(value: float) -> float:
    """The next few-digit number, so that the axis ends on a round figure."""
    if value <= 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        factor * power
        for factor in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
        if value <= factor * power * (1 + 1e-9)
    )
