"""Values that are printed beside those of an experiment, so that each number can be judged.

Every backward error stands beside the error of guessing the mean shape, and that of Stage 1 also beside the
backward error over found landmarks only. Errors of 68 facial points that are divided by the inter-ocular
distance are repeated with the definition of the authors' program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from selfmark.paper.reproduction.experiment import Column, Experiment, Row
from selfmark.paper.reproduction.table_metrics import Results, Value
from selfmark.paper.reproduction.table_writers import Values

View = Callable[
    [Results], Results | None
]  # makes other results from those of a measurement, if there are any
ReadCell = Callable[[Row, Column, str, View], Value]  # reads a cell with a metric and a view

AUTHORS_EYES = "by points 41 and 46"  # names the rows of the authors' inter-ocular distance
GUESSING = "guessing"

# By metric: the labels and metrics of the values beside it.
_BESIDE: dict[str, dict[str, str]] = {
    "backward": {GUESSING: "backward_guessing"},
    "stage1_backward": {
        GUESSING: "stage1_backward_guessing",
        "found only": "stage1_backward_found",
        "found only, guessing": "stage1_backward_found_guessing",
    },
    "forward_curve": {GUESSING: "forward_curve_guessing"},
    "backward_curve": {GUESSING: "backward_curve_guessing"},
}
_ERRORS = (
    "forward",
    "backward",
    "stage1_forward",
    "stage1_backward",
    "forward_curve",
    "backward_curve",
    "forward_by_round",
)


def as_measured(results: Results) -> Results:
    """Return the results of a measurement as they are."""
    return results


def with_authors_eyes(results: Results) -> Results | None:
    """Return the results with errors divided by the inter-ocular distance of the authors' program.

    None if the errors are divided by something else, or if the faces do not have 68 points.
    """
    if "rounds" in results:
        rounds = [with_authors_eyes(entry) for entry in results["rounds"]]
        return None if None in rounds else results | {"rounds": rounds}
    other = results.get("inter_ocular", {}).get("points_41_46")
    return results | other if other and results["normaliser"] == "inter_ocular" else None


@dataclass(frozen=True)
class _Derived:
    """A row or column made from one of the experiment: with a label of `_BESIDE`, or with another view."""

    name: str
    source: str
    label: str = ""
    view: View = as_measured


def add_references(experiment: Experiment, read: ReadCell) -> tuple[Experiment, Values]:
    """Return the experiment with rows and columns for the values beside its own, and all values.

    A table gets columns for guessing, and a figure gets lines. In both, the inter-ocular distance of the
    authors' program gets rows of its own.

    Args:
        experiment: the experiment.
        read: returns a value of a cell.
    """
    columns = [entry for column in experiment.columns for entry in _derive_columns(experiment, column)]
    sources = {column.name: column for column in experiment.columns}
    rows, values = [], dict[tuple[str, str], Value]()
    for row in experiment.rows:
        for derived in _derive_rows(experiment, row):
            cells = {
                entry.name: _read_derived(experiment, row, sources[entry.source], derived, entry, read)
                for entry in columns
                if not row.is_quoted
            }
            if derived.name == row.name or any(isinstance(value, (float, list)) for value in cells.values()):
                paper = dict(zip(sources, row.paper, strict=True)) if row.paper and not derived.label else {}
                numbers = tuple(None if entry.label else paper.get(entry.source) for entry in columns)
                rows.append(replace(row, name=derived.name, paper=numbers if paper else ()))
                values |= {(derived.name, name): value for name, value in cells.items()}
    all_columns = tuple(Column(entry.name, sources[entry.source].spec) for entry in columns)
    return replace(experiment, columns=all_columns, rows=tuple(rows)), values


def _derive_columns(experiment: Experiment, column: Column) -> list[_Derived]:
    """Return a column, and in a table those for the values beside it."""
    metrics = [experiment.cell_spec(row, column).metric or "" for row in experiment.own_rows]
    labels = dict.fromkeys(label for metric in metrics for label in _BESIDE.get(metric, {}))
    shown = labels if experiment.kind == "table" else {}
    return [
        _Derived(column.name, column.name),
        *(_Derived(f"{column.name}, {label}", column.name, label) for label in shown),
    ]


def _derive_rows(experiment: Experiment, row: Row) -> list[_Derived]:
    """Return a row, the row of the authors' inter-ocular distance, and in a figure those of guessing."""
    if row.is_quoted or experiment.kind not in ("table", "curves"):
        return [_Derived(row.name, row.name)]
    both = [
        _Derived(row.name, row.name),
        _Derived(f"{row.name}, {AUTHORS_EYES}", row.name, view=with_authors_eyes),
    ]
    if experiment.kind == "table":
        return both
    return [
        entry
        for line in both
        for entry in (line, replace(line, name=f"{line.name}, {GUESSING}", label=GUESSING))
    ]


def _read_derived(
    experiment: Experiment, row: Row, column: Column, line: _Derived, entry: _Derived, read: ReadCell
) -> Value:
    """Return a value; None if there is none in this row and column."""
    metric = experiment.cell_spec(row, column).metric or ""
    if line.view is not as_measured and metric not in _ERRORS:
        return None
    label = line.label or entry.label
    beside = _BESIDE.get(metric, {}).get(label) if label else metric
    return None if beside is None else read(row, column, beside, line.view)
