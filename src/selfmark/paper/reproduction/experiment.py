"""Parse experiments from the files in `tables/`: the rows and columns of one table or figure.

The specification of a cell combines three parts: the first belongs to the whole file, the second to the
cell's column, the third to the cell's row. Each part may have these keys:

    train:      data set in which landmarks are discovered
    test:       data set on which errors are measured; regressors are fitted on its training images; default:
                the same as `train`
    points:     number of annotated points that the data set must have (faces have 5 or 68)
    fit_images: number of randomly drawn images on which regressors are fitted; default: all. Errors of Stage
                2 are then means over `evaluation.draws` draws
    settings:   changes to the preset: dotted names and new values
    evaluation: changes to the settings of the evaluation: names without `evaluation.` and new values
    start:      annotated points that serve as first keypoints: `points` are their indices, and `jitter` is
                the largest random shift in pixels
    metric:     a name from `table_metrics.METRICS`, followed by its argument if it takes one

A row may also have `paper`, the paper's number for each column. `quoted: true` marks a row of another method,
whose numbers are quoted from the paper and not measured. An unknown key, setting or metric is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, get_args

import yaml

from selfmark.config import Config, override
from selfmark.errors import InputError, suggest
from selfmark.paper.reproduction.table_metrics import VALUE_KINDS, ExperimentKind, parse_metric

EVALUATION_PREFIX = "evaluation."  # dotted names of evaluation settings start with this
_SINGLE_VALUE_KEYS = ("train", "test", "points", "fit_images", "start", "metric")
_SETTINGS_KEYS = ("settings", "evaluation")
_SPEC_KEYS = (*_SINGLE_VALUE_KEYS, *_SETTINGS_KEYS)
_FILE_KEYS = ("title", "place", "label", "kind", "note", "digits", "x", "y", "columns", "rows", *_SPEC_KEYS)
# Names of experiments in selfmark 0.1, and their current names.
_RENAMED = {"generalisation": "generalization", "initialisation": "initialization"}


@dataclass(frozen=True)
class StartPoints:
    """Annotated points that serve as first keypoints.

    Attributes:
        points: Indices of the annotated points.
        jitter: Largest random shift of a point along each axis, in pixels of a 256 x 256 image.
    """

    points: tuple[int, ...]
    jitter: float

    @property
    def fingerprint(self) -> str:
        """Text that goes into digests. If it changes, results in existing output folders are not found."""
        return f"Start(points={self.points}, jitter={self.jitter})"


@dataclass(frozen=True)
class CellSpec:
    """A specification of cells, complete or partial; fields that are not specified are None or empty."""

    train: str | None = None
    test: str | None = None
    points: int | None = None
    fit_images: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    start: StartPoints | None = None
    metric: str | None = None

    def merge(self, other: CellSpec, where: str) -> CellSpec:
        """Combine two partial specifications.

        Raises:
            InputError: Both parts specify the same field or setting; the message begins with `where`.
        """
        merged: dict[str, Any] = {}
        for name in _SINGLE_VALUE_KEYS:
            own_value, other_value = getattr(self, name), getattr(other, name)
            if own_value is not None and other_value is not None:
                raise InputError(f"{where}: '{name}' is given twice")
            merged[name] = own_value if other_value is None else other_value
        for name in _SETTINGS_KEYS:
            own_settings, other_settings = getattr(self, name), getattr(other, name)
            duplicates = sorted(set(own_settings) & set(other_settings))
            if duplicates:
                raise InputError(f"{where}: the setting '{duplicates[0]}' is given twice")
            merged[name] = {**own_settings, **other_settings}
        return CellSpec(**merged)


@dataclass(frozen=True)
class Column:
    """A column of a table or figure: its name, and the part of the cell specifications that belongs to it."""

    name: str
    spec: CellSpec


@dataclass(frozen=True)
class Row:
    """A row of a table or figure.

    Attributes:
        name: Name as it is printed.
        spec: Part of the cell specifications that belongs to this row.
        paper: The paper's number for each column, None if there is none; empty if the row has no numbers.
        is_quoted: Whether the row belongs to another method and is quoted from the paper.
    """

    name: str
    spec: CellSpec
    paper: tuple[float | None, ...]
    is_quoted: bool


@dataclass(frozen=True)
class Experiment:
    """A table or figure, of the paper or in its style.

    Attributes:
        name: Name of the file, without the suffix.
        title: Title of the table or figure.
        place: Number in the paper, e.g. "Table 1"; empty if it is not in the paper.
        label: LaTeX label in the paper.
        kind: How the experiment is shown, see `table_metrics.VALUE_KINDS`.
        note: Remarks, for example about choices that the paper leaves open.
        digits: Number of decimals.
        x: Label of a figure's x axis.
        y: Label of a figure's y axis.
        spec: Part of the cell specifications that all cells share.
        columns: Columns, in order.
        rows: Rows, in order.
    """

    name: str
    title: str
    place: str
    label: str
    kind: ExperimentKind
    note: str
    digits: int
    x: str
    y: str
    spec: CellSpec
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def own_rows(self) -> tuple[Row, ...]:
        """Rows that are measured, not quoted."""
        return tuple(row for row in self.rows if not row.is_quoted)

    @property
    def varied_settings(self) -> frozenset[str]:
        """Dotted names of the settings that single rows or columns change."""
        specs = [*(row.spec for row in self.own_rows), *(column.spec for column in self.columns)]
        evaluation = (f"{EVALUATION_PREFIX}{name}" for spec in specs for name in spec.evaluation)
        return frozenset([*(name for spec in specs for name in spec.settings), *evaluation])

    def cell_spec(self, row: Row, column: Column) -> CellSpec:
        """Return the complete specification of a cell; `test` defaults to `train`."""
        where = _describe_cell(self.name, row, column)
        spec = self.spec.merge(column.spec, where).merge(row.spec, where)
        return replace(spec, test=spec.test or spec.train)


def list_experiment_names() -> list[str]:
    """Return the names of all experiments, sorted."""
    files = (resources.files("selfmark.paper.reproduction") / "tables").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_experiment(name: str) -> Experiment:
    """Load the experiment with this name; names from selfmark 0.1 are accepted, too."""
    name = _RENAMED.get(name, name)
    names = list_experiment_names()
    if name not in names:
        hint = suggest(name, names) or " 'selfmark reproduce list' shows the names"
        raise InputError(f"there is no table '{name}'.{hint}")
    file = resources.files("selfmark.paper.reproduction") / "tables" / f"{name}.yaml"
    return parse_experiment(name, yaml.safe_load(file.read_text(encoding="utf-8")))


def parse_experiment(name: str, content: Any) -> Experiment:
    """Parse the content of an experiment file and check every key, setting and metric.

    Args:
        name: Name of the experiment; error messages begin with it.
        content: Content of the YAML file.

    Raises:
        InputError: The content is not a valid experiment.
    """
    where = _describe_file(name)
    values = _check_mapping(content, where, _FILE_KEYS)
    for key in ("title", "kind", "columns", "rows"):
        if key not in values:
            raise InputError(f"{where}: the key '{key}' is missing")
    kind = values["kind"]
    if kind not in get_args(ExperimentKind):
        raise InputError(
            f"{where}: unknown kind '{kind}'; the kinds are {', '.join(get_args(ExperimentKind))}"
        )
    columns = tuple(_parse_column(entry, where) for entry in values["columns"])
    experiment = Experiment(
        name=name,
        title=values["title"],
        place=values.get("place", ""),
        label=values.get("label", ""),
        kind=kind,
        note=" ".join(str(values.get("note", "")).split()),
        digits=values.get("digits", 2),
        x=values.get("x", ""),
        y=values.get("y", ""),
        spec=_parse_spec(values, where),
        columns=columns,
        rows=tuple(_parse_row(entry, where, len(columns)) for entry in values["rows"]),
    )
    for row in experiment.own_rows:
        for column in columns:
            _check_cell(experiment, row, column)
    return experiment


def _describe_file(name: str) -> str:
    return f"tables/{name}.yaml"


def _describe_cell(name: str, row: Row, column: Column) -> str:
    return f"{_describe_file(name)}, row '{row.name}', column '{column.name}'"


def _parse_column(entry: Any, file: str) -> Column:
    where = f"{file}, columns"
    values = _check_mapping(entry, where, ("name", *_SPEC_KEYS))
    return Column(str(values["name"]), _parse_spec(values, where))


def _parse_row(entry: Any, file: str, num_columns: int) -> Row:
    where = f"{file}, rows"
    values = _check_mapping(entry, where, ("name", "paper", "quoted", *_SPEC_KEYS))
    paper = tuple(None if number is None else float(number) for number in values.get("paper", ()))
    if len(paper) not in (0, num_columns):
        raise InputError(f"{file}, row '{values['name']}': {len(paper)} numbers for {num_columns} columns")
    return Row(str(values["name"]), _parse_spec(values, where), paper, bool(values.get("quoted", False)))


def _parse_spec(values: Mapping[str, Any], where: str) -> CellSpec:
    spec = {key: values[key] for key in _SPEC_KEYS if key in values}
    if "start" in spec:
        start = _check_mapping(spec["start"], f"{where}, start", ("points", "jitter"))
        spec["start"] = StartPoints(tuple(start["points"]), float(start["jitter"]))
    return CellSpec(**spec)


def _check_mapping(content: Any, where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise InputError(f"{where}: expected lines of the form 'key: value'")
    unknown_keys = sorted(str(key) for key in content if key not in known)
    if unknown_keys:
        raise InputError(f"unknown key '{unknown_keys[0]}' in {where}.{suggest(unknown_keys[0], known)}")
    return content


def _check_cell(experiment: Experiment, row: Row, column: Column) -> None:
    spec = experiment.cell_spec(row, column)
    where = _describe_cell(experiment.name, row, column)
    if spec.train is None or spec.metric is None:
        raise InputError(f"{where}: 'train' and 'metric' are required")
    metric, _ = parse_metric(spec.metric)
    if metric.kind not in VALUE_KINDS[experiment.kind]:
        raise InputError(f"{where}: '{spec.metric}' cannot be shown as {experiment.kind}")
    override(Config(), spec.settings)
    override(Config(), {f"{EVALUATION_PREFIX}{name}": value for name, value in spec.evaluation.items()})
