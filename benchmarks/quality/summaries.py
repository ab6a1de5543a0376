"""Turn the numbers of result files into text: means over seeds, tables, and sentences on rankings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import spearmanr

RIDGE = 0.01  # ridge of the numbers that are shown by default
NONE = "—"  # shown where there is no number: not run yet, failed, or not in the paper

Quality = Mapping[str, Any]  # content of quality.json
Values = dict[str, float | None]  # one number per label; None if not run


def collect_values(
    quality: Quality, name: str, field: str, stage: int = 2, ridge: float = RIDGE
) -> list[float]:
    """Return the value of `field` in the row `name` for every seed that has been run."""
    values = [
        row[field]
        for row in quality["rows"]
        if (row["name"], row["stage"], row["ridge"]) == (name, stage, ridge) and field in row
    ]
    return [float(value) for value in values]


def compute_mean(numbers: Sequence[float]) -> float | None:
    """Return the mean; None if there are no numbers."""
    return statistics.fmean(numbers) if numbers else None


def compute_spread(numbers: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None if there are fewer than two numbers."""
    return statistics.stdev(numbers) if len(numbers) > 1 else None


def format_mean(numbers: Sequence[float], digits: int = 2) -> str:
    """Format the mean and the spread over seeds.

    >>> format_mean([2.0, 3.0, 4.0]), format_mean([2.5]), format_mean([])
    ('3.00 ± 1.00', '2.50', '—')
    """
    middle, deviation = compute_mean(numbers), compute_spread(numbers)
    if middle is None:
        return NONE
    return f"{middle:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def describe_change(before: Sequence[float], after: Sequence[float], digits: int = 2) -> str:
    """Describe how the mean over seeds changes between two rows, relative to the spread over seeds.

    >>> describe_change([4.0], [3.0])
    'falls from 4.00 to 3.00 (one seed)'
    >>> describe_change([4.0, 6.0], [5.5, 5.9])
    'rises from 5.00 to 5.70, less than the spread over seeds (1.41)'
    >>> describe_change([4.0, 6.0], [5.0, 5.0])
    'stays at 5.00'
    """
    first, second = statistics.fmean(before), statistics.fmean(after)
    if first == second:
        return f"stays at {first:.{digits}f}"
    words = f"{'falls' if second < first else 'rises'} from {first:.{digits}f} to {second:.{digits}f}"
    if len(before) < 2 or len(after) < 2:
        return words + " (one seed)"
    seed_spread = max(statistics.stdev(before), statistics.stdev(after))
    less = "less" if abs(second - first) < seed_spread else "more"
    return f"{words}, {less} than the spread over seeds ({seed_spread:.{digits}f})"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table whose first column is text and whose other columns are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- our ranking and the paper's -------------------------------------------------------------------------


def describe_ranking(
    ours: Values, theirs: Mapping[str, float], error_name: str, seed_spread: float | None = None
) -> str:
    """Describe whether our errors put the rows in the same order as the paper's errors do.

    Only rows with both an error of ours and an error of the paper are ordered.

    Args:
        ours: Mapping from labels to our errors.
        theirs: Mapping from labels to the paper's errors.
        error_name: Name of the error, for the text.
        seed_spread: Spread of the error over seeds. The text names the rows whose difference from the best
            row is at most this, because their order means nothing.

    >>> describe_ranking({"a": 1.0, "b": 2.0, "c": 9.0}, {"a": 5.0, "b": 6.0, "d": 1.0}, "forward error")
    'By forward error, from best to worst: a, b; in the paper: a, b. The same order.'
    >>> describe_ranking({"a": 1.0, "b": 1.1}, {"a": 5.0, "b": 6.0}, "error", 0.2).partition("order. ")[2]
    'These differ from the best by at most the spread over seeds (0.20): all others.'
    >>> describe_ranking({"a": 1.0, "b": 2.0, "c": 0.9}, {"a": 5, "b": 6}, "error").partition("order. ")[2]
    'Not in the paper, but at least as good as the best of these: c.'
    """
    known = {name: value for name, value in ours.items() if value is not None}
    shared_rows = {name: value for name, value in known.items() if name in theirs}
    if len(shared_rows) < 2:
        return f"By {error_name}: too few rows have been run to compare the order with the paper."
    our_order = sorted(shared_rows, key=lambda name: shared_rows[name])
    paper_order = sorted(shared_rows, key=lambda name: theirs[name])
    sentences = [f"By {error_name}, from best to worst: {', '.join(our_order)}; "]
    sentences[0] += f"in the paper: {', '.join(paper_order)}."
    if our_order == paper_order:
        sentences.append("The same order.")
    else:
        correlation = spearmanr(list(shared_rows.values()), [theirs[name] for name in shared_rows]).statistic
        best = "The same row is best" if our_order[0] == paper_order[0] else "A different row is best"
        sentences.append(f"{best}; Spearman's rank correlation is {correlation:.2f}.")
    near = [
        name
        for name in our_order[1:]
        if seed_spread is not None and shared_rows[name] - shared_rows[our_order[0]] <= seed_spread
    ]
    if near:
        names = "all others" if len(near) == len(our_order) - 1 else ", ".join(near)
        sentences.append(
            f"These differ from the best by at most the spread over seeds ({seed_spread:.2f}): {names}."
        )
    better = [
        name for name, value in known.items() if name not in theirs and value <= shared_rows[our_order[0]]
    ]
    if better:
        sentences.append(f"Not in the paper, but at least as good as the best of these: {', '.join(better)}.")
    return " ".join(sentences)


def compute_means_by_label(
    quality: Quality, names: Mapping[str, str], field: str = "forward", stage: int = 1
) -> Values:
    """Return the mean over seeds of one field for each label. `names` maps labels to names of rows."""
    return {label: compute_mean(collect_values(quality, name, field, stage)) for label, name in names.items()}
