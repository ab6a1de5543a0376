"""Loss curves, worked out as lines for inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 320, 170  # of a chart, SVG units
LEFT, TOP, RIGHT, BOTTOM = 46, 8, 312, 142  # of the plotting area inside it
_MOST_POINTS = 300  # of a line; longer histories are averaged in groups

# Both parts of Stage 1 count their iterations through, so they share a chart.
_CHART_OF_STAGE = {"warm-up": "Stage 1", "round": "Stage 1", "stage 2": "Stage 2"}


@dataclass(frozen=True)
class Chart:
    """One curve: the line as an SVG path, labelled heights, labelled places along, starts of the rounds."""

    title: str
    path: str
    heights: tuple[tuple[float, str], ...]
    places: tuple[tuple[float, str], ...]
    rounds: tuple[tuple[float, str], ...]
    last: str


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
        _chart(f"{chart}: {'loss' if term == 'total' else term + ' loss'}", curve, starts.get(chart, {}))
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


def _chart(title: str, curve: dict[int, float], rounds: dict[str, int]) -> Chart:
    points = sorted(curve.items())
    first, last = points[0][0], points[-1][0]
    top = _round_up(max(max(curve.values()), 0.0))

    def across(iteration: float) -> float:
        return LEFT + (RIGHT - LEFT) * (iteration - first) / max(last - first, 1)

    def up(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * min(max(value / top, 0.0), 1.0)

    group = -(-len(points) // _MOST_POINTS)
    means = [
        tuple(sum(column) / len(column) for column in zip(*points[start : start + group], strict=True))
        for start in range(0, len(points), group)
    ]
    return Chart(
        title=title,
        path="M" + " L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in means),
        heights=tuple((up(share * top), f"{share * top:.3g}") for share in (0.0, 0.5, 1.0)),
        places=((across(first), f"{first:,}"), (across(last), f"{last:,}")),
        rounds=tuple((across(start), number) for number, start in rounds.items() if first <= start <= last),
        last=f"{points[-1][1]:.4g}",
    )


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
