"""Figures of quality.json as text: means over seeds, tables, and sentences on how rows rank."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import spearmanr

RIDGE = 0.01  # of figures that name none
NONE = "—"  # not run yet

Quality = Mapping[str, Any]  # what quality.json holds
Values = dict[str, float | None]  # a figure by what it is of; None: not run


def values(quality: Quality, name: str, field: str, stage: int = 2, ridge: float = RIDGE) -> list[float]:
    """A figure of a row for every seed that has been run."""
    found = [
        row[field]
        for row in quality["rows"]
        if (row["name"], row["stage"], row["ridge"]) == (name, stage, ridge) and field in row
    ]
    return [float(value) for value in found]


def mean(numbers: Sequence[float]) -> float | None:
    return statistics.fmean(numbers) if numbers else None


def spread(numbers: Sequence[float]) -> float | None:
    """Sample standard deviation, of two seeds or more."""
    return statistics.stdev(numbers) if len(numbers) > 1 else None


def shown(numbers: Sequence[float], digits: int = 2) -> str:
    """Mean and spread over seeds.

    >>> shown([2.0, 3.0, 4.0]), shown([2.5]), shown([])
    ('3.00 ± 1.00', '2.50', '—')
    """
    middle, deviation = mean(numbers), spread(numbers)
    if middle is None:
        return NONE
    return f"{middle:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def change(before: Sequence[float], after: Sequence[float], digits: int = 2) -> str:
    """From the mean over seeds of one row to that of another, and whether seeds alone differ as much.

    >>> change([4.0], [3.0])
    'falls from 4.00 to 3.00 (one seed)'
    >>> change([4.0, 6.0], [5.5, 5.9])
    'rises from 5.00 to 5.70, less than seeds differ by (1.41)'
    """
    first, second = statistics.fmean(before), statistics.fmean(after)
    word = "falls" if second < first else "rises" if second > first else "stays"
    words = f"{word} from {first:.{digits}f} to {second:.{digits}f}"
    if len(before) < 2 or len(after) < 2:
        return words + " (one seed)"
    seeds = max(statistics.stdev(before), statistics.stdev(after))
    less = "less" if abs(second - first) < seeds else "more"
    return f"{words}, {less} than seeds differ by ({seeds:.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is text, the others numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- our order and the paper's ---------------------------------------------------------------------------


def agreement(ours: Values, theirs: Mapping[str, float], what: str, seeds: float | None = None) -> str:
    """Sentences on whether errors rank alike here and in the paper, over what both have.

    `seeds` is how much the error differs from seed to seed: rows that are nearer to the best one than that
    are named, for their order says nothing.

    >>> agreement({"a": 1.0, "b": 2.0, "c": 9.0}, {"a": 5.0, "b": 6.0, "d": 1.0}, "forward error")
    'By forward error, from best to worst: a, b; in the paper: a, b. The same order.'
    >>> agreement({"a": 1.0, "b": 1.1}, {"a": 5.0, "b": 6.0}, "error", 0.2).partition("order. ")[2]
    'No farther from the best than seeds differ by (0.20): all others.'
    >>> agreement({"a": 1.0, "b": 1.1, "c": 0.9}, {"a": 5.0, "b": 6.0}, "error").partition("order. ")[2]
    'Not in the paper, and no worse than the best of these: c.'
    """
    known = {name: value for name, value in ours.items() if value is not None}
    both = {name: value for name, value in known.items() if name in theirs}
    if len(both) < 2:
        return f"By {what}: too few rows have been run to compare the order with the paper's."
    here, there = sorted(both, key=lambda name: both[name]), sorted(both, key=lambda name: theirs[name])
    sentences = [f"By {what}, from best to worst: {', '.join(here)}; in the paper: {', '.join(there)}."]
    if here == there:
        sentences.append("The same order.")
    else:
        rank = spearmanr(list(both.values()), [theirs[name] for name in both]).statistic
        best = "The same row is best" if here[0] == there[0] else "Another row is best"
        sentences.append(f"{best}; Spearman's rank correlation is {rank:.2f}.")
    near = [name for name in here[1:] if seeds is not None and both[name] - both[here[0]] <= seeds]
    if near:
        all_others = "all others" if len(near) == len(here) - 1 else ", ".join(near)
        sentences.append(f"No farther from the best than seeds differ by ({seeds:.2f}): {all_others}.")
    better = [name for name, value in known.items() if name not in theirs and value <= both[here[0]]]
    if better:
        sentences.append(f"Not in the paper, and no worse than the best of these: {', '.join(better)}.")
    return " ".join(sentences)


def column(quality: Quality, names: Mapping[str, str], field: str = "forward", stage: int = 1) -> Values:
    """By label, the mean of a figure over seeds; `names` gives the row behind each label."""
    return {label: mean(values(quality, name, field, stage)) for label, name in names.items()}
