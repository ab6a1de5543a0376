"""Add reference values to an experiment, so that the reader of a table can judge its numbers.

The reference of every backward error and every cumulative curve is the error of guessing the mean shape. The
backward error of Stage 1 has another reference: the backward error over only those landmarks that were found.
Errors of 68 facial points that are divided by the inter-ocular distance are repeated with the distance that
the authors' program uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from selfmark.paper.reproduction.experiment import Column, Experiment, Row
from selfmark.paper.reproduction.table_metrics import Results, Value
from selfmark.paper.reproduction.table_writers import Values

# A view turns the results of a measurement into other results; None if this is not possible.
View = Callable[[Results], Results | None]
ReadCell = Callable[[Row, Column, str, View], Value]  # reads the value of a metric in a cell, through a view

AUTHORS_EYES = "by points 41 and 46"  # end of the names of rows that use the authors' inter-ocular distance
GUESSING = "guessing"

# Mapping from a metric to its reference values: from the label of each reference value to the metric that
# contains it.
_REFERENCES: dict[str, dict[str, str]] = {
    "backward": {GUESSING: "backward_guessing"},
    "stage1_backward": {
        GUESSING: "stage1_backward_guessing",
        "found only": "stage1_backward_found",
        "found only, guessing": "stage1_backward_found_guessing",
    },
    "forward_curve": {GUESSING: "forward_curve_guessing"},
    "backward_curve": {GUESSING: "backward_curve_guessing"},
}
# Metrics that are repeated with the inter-ocular distance of the authors' program.
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
    """Return the results of a measurement unchanged."""
    return results


def with_authors_eyes(results: Results) -> Results | None:
    """Return the results with errors divided by the inter-ocular distance of the authors' program.

    Return None if the errors are divided by another length, or if the faces do not have 68 points.
    """
    if "rounds" in results:
        rounds = [with_authors_eyes(entry) for entry in results["rounds"]]
        return None if None in rounds else results | {"rounds": rounds}
    converted = results.get("inter_ocular", {}).get("points_41_46")
    return results | converted if converted and results["normaliser"] == "inter_ocular" else None


@dataclass(frozen=True)
class _Derived:
    """A row or column of the extended table, derived from a row or column of the experiment.

    Attributes:
        name: Name of the derived row or column.
        source: Name of the row or column that it is derived from.
        label: Label in `_REFERENCES` of the reference values that the row or column shows; empty if it shows
            the experiment's own values.
        view: View that converts the results before they are read.
    """

    name: str
    source: str
    label: str = ""
    view: View = as_measured


def add_references(experiment: Experiment, read: ReadCell) -> tuple[Experiment, Values]:
    """Return the experiment with additional rows and columns for reference values, and all values.

    Reference values are additional columns in a table and additional rows in a figure of curves. In
    tables and figures, values with the inter-ocular distance of the authors' program are additional rows.

    Args:
        experiment: Experiment to extend.
        read: Returns the value of a cell.
    """
    derived_columns = [
        derived for column in experiment.columns for derived in _derive_columns(experiment, column)
    ]
    sources = {column.name: column for column in experiment.columns}
    rows, values = [], dict[tuple[str, str], Value]()
    for row in experiment.rows:
        for derived_row in _derive_rows(experiment, row):
            cells: dict[str, Value] = {}
            if not row.is_quoted:
                for derived in derived_columns:
                    source = sources[derived.source]
                    cells[derived.name] = _read_derived(experiment, row, source, derived_row, derived, read)
            has_values = any(isinstance(value, (float, list)) for value in cells.values())
            if derived_row.name != row.name and not has_values:
                continue
            paper: dict[str, float | None] = {}
            if row.paper and not derived_row.label:
                paper = dict(zip(sources, row.paper, strict=True))
            numbers = tuple(
                None if derived.label else paper.get(derived.source) for derived in derived_columns
            )
            rows.append(replace(row, name=derived_row.name, paper=numbers if paper else ()))
            values |= {(derived_row.name, name): value for name, value in cells.items()}
    columns = tuple(Column(derived.name, sources[derived.source].spec) for derived in derived_columns)
    return replace(experiment, columns=columns, rows=tuple(rows)), values


def _derive_columns(experiment: Experiment, column: Column) -> list[_Derived]:
    """Return a column; in a table, also the columns of its reference values."""
    metrics = [experiment.cell_spec(row, column).metric or "" for row in experiment.own_rows]
    labels = dict.fromkeys(label for metric in metrics for label in _REFERENCES.get(metric, {}))
    shown = labels if experiment.kind == "table" else {}
    return [
        _Derived(column.name, column.name),
        *(_Derived(f"{column.name}, {label}", column.name, label) for label in shown),
    ]


def _derive_rows(experiment: Experiment, row: Row) -> list[_Derived]:
    """Return a row and its copy with the authors' inter-ocular distance; for curves, also rows of guessing.

    Quoted rows, and rows of figures without curves, are returned alone.
    """
    if row.is_quoted or experiment.kind not in ("table", "curves"):
        return [_Derived(row.name, row.name)]
    derived_rows = [
        _Derived(row.name, row.name),
        _Derived(f"{row.name}, {AUTHORS_EYES}", row.name, view=with_authors_eyes),
    ]
    if experiment.kind == "table":
        return derived_rows
    with_guessing = []
    for derived in derived_rows:
        guessing = replace(derived, name=f"{derived.name}, {GUESSING}", label=GUESSING)
        with_guessing += [derived, guessing]
    return with_guessing


def _read_derived(
    experiment: Experiment,
    row: Row,
    column: Column,
    derived_row: _Derived,
    derived_column: _Derived,
    read: ReadCell,
) -> Value:
    """Return the value in a derived row and column; None if there is none.

    Args:
        experiment: Experiment of the row and column.
        row: Source of the derived row.
        column: Source of the derived column.
        derived_row: Row to read.
        derived_column: Column to read.
        read: Returns the value of a cell.
    """
    metric = experiment.cell_spec(row, column).metric or ""
    if derived_row.view is not as_measured and metric not in _ERRORS:
        return None
    label = derived_row.label or derived_column.label
    shown_metric = _REFERENCES.get(metric, {}).get(label) if label else metric
    return None if shown_metric is None else read(row, column, shown_metric, derived_row.view)
