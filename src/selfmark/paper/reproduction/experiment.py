"""An experiment as its file in `tables/` states it: rows and columns, each saying a part of what is measured.

A cell of a table is measured on what the file, its column and its row say together. Keys of all three:

    train:      data set landmarks are discovered in
    test:       data set errors are measured on, regressors fitted on its own training images; default `train`
    points:     how many annotated points the data set must have (faces come with 5 or with 68)
    fit_images: regressors are fitted on so many images, drawn at random; default all
    settings:   changes to the preset, by dotted name
    evaluation: changes to the evaluation's settings
    start:      first keypoints are these annotated points, by index, moved at random by up to `jitter` pixels
    metric:     a word of `metrics.METRICS`, with its argument

A row may also have `paper`, the paper's number for each column, and `other: true` if it is another method's,
which is quoted and not made here. Files are refused by name for a key or a metric nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, get_args

import yaml

from selfmark.config import Config, override
from selfmark.errors import InputError
from selfmark.paper.reproduction.table_metrics import KINDS, Kind, parse_metric

_WHAT = ("train", "test", "points", "fit_images", "settings", "evaluation", "start", "metric")
EVALUATION = "evaluation."  # settings of this section are what a file calls `evaluation`
_TOP = ("title", "place", "label", "kind", "note", "digits", "x", "y", "columns", "rows", *_WHAT)


@dataclass(frozen=True)
class StartPoints:
    """First keypoints that are annotated points: their indices, and pixels they are moved by at most."""

    points: tuple[int, ...]
    jitter: float

    @property
    def fingerprint(self) -> str:
        """Text that digests are computed from; it must not change, or existing output folders are not found."""
        return f"Start(points={self.points}, jitter={self.jitter})"


@dataclass(frozen=True)
class CellSpec:
    """What a file, a column or a row says of its cells; None or empty where it says nothing."""

    train: str | None = None
    test: str | None = None
    points: int | None = None
    fit_images: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    start: StartPoints | None = None
    metric: str | None = None

    def joined(self, other: CellSpec, where: str) -> CellSpec:
        """Both together; no two may say the same thing differently."""
        said: dict[str, Any] = {}
        for name in ("train", "test", "points", "fit_images", "start", "metric"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                raise InputError(f"{where}: '{name}' is said twice")
            said[name] = mine if theirs is None else theirs
        for name in ("settings", "evaluation"):
            mine, theirs = getattr(self, name), getattr(other, name)
            twice = sorted(set(mine) & set(theirs))
            if twice:
                raise InputError(f"{where}: the setting '{twice[0]}' is said twice")
            said[name] = {**mine, **theirs}
        return CellSpec(**said)


@dataclass(frozen=True)
class Column:
    name: str
    what: CellSpec


@dataclass(frozen=True)
class Row:
    """A line of a table or of a figure; `paper` has a number or None for each column, or is empty."""

    name: str
    what: CellSpec
    paper: tuple[float | None, ...]
    other: bool


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    name:   of its file
    title:  what it is about
    place:  where it stands in the paper, e.g. "Table 1"; empty for what is not in it
    label:  its LaTeX label there
    kind:   how it is shown, see `metrics.KINDS`
    note:   where the paper leaves something open, what was chosen
    digits: of numbers, after the point
    x, y:   what the axes of a figure mean
    """

    name: str
    title: str
    place: str
    label: str
    kind: Kind
    note: str
    digits: int
    x: str
    y: str
    what: CellSpec
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def own_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.other)

    @property
    def told_apart_by(self) -> frozenset[str]:
        """Settings that rows or columns say themselves, by dotted name: each is called after them."""
        said = [*(row.what for row in self.own_rows), *(column.what for column in self.columns)]
        evaluation = (f"{EVALUATION}{name}" for what in said for name in what.evaluation)
        return frozenset([*(name for what in said for name in what.settings), *evaluation])

    def cell(self, row: Row, column: Column) -> CellSpec:
        """All that is said of one cell; `test` is the data set trained on unless another is named."""
        where = f"{self.name}, row '{row.name}', column '{column.name}'"
        what = self.what.joined(column.what, where).joined(row.what, where)
        return replace(what, test=what.test or what.train)


def experiment_names() -> list[str]:
    """The experiments there are files of."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in (resources.files("selfmark.paper.reproduction") / "tables").iterdir()
        if entry.name.endswith(".yaml")
    )


# Names that selfmark 0.1 used.
_RENAMED = {"generalisation": "generalization", "initialisation": "initialization"}


def load_experiment(name: str) -> Experiment:
    """Load the experiment with this name."""
    name = _RENAMED.get(name, name)
    if name not in experiment_names():
        raise InputError(f"there is no table '{name}'; 'selfmark reproduce list' shows those there are")
    text = (resources.files("selfmark.paper.reproduction") / "tables" / f"{name}.yaml").read_text(
        encoding="utf-8"
    )
    return parse_experiment(name, yaml.safe_load(text))


def parse_experiment(name: str, content: Any) -> Experiment:
    """An experiment from its file's content, every key, setting and metric checked."""
    values = _mapping(content, name, _TOP)
    for key in ("title", "kind", "columns", "rows"):
        if key not in values:
            raise InputError(f"{name}: '{key}' is missing")
    kind = values["kind"]
    if kind not in get_args(Kind):
        raise InputError(f"{name}: there is no kind '{kind}'; there are {', '.join(get_args(Kind))}")
    columns = tuple(_column(entry, name) for entry in values["columns"])
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
        what=_what(values, name),
        columns=columns,
        rows=tuple(_row(entry, name, len(columns)) for entry in values["rows"]),
    )
    for row in experiment.own_rows:
        for column in columns:
            _check_cell(experiment, row, column)
    return experiment


def _column(entry: Any, name: str) -> Column:
    where = f"{name}, a column"
    values = _mapping(entry, where, ("name", *_WHAT))
    return Column(str(values["name"]), _what(values, where))


def _row(entry: Any, name: str, columns: int) -> Row:
    where = f"{name}, a row"
    values = _mapping(entry, where, ("name", "paper", "other", *_WHAT))
    paper = tuple(None if number is None else float(number) for number in values.get("paper", ()))
    if len(paper) not in (0, columns):
        raise InputError(f"{name}, row '{values['name']}': {len(paper)} numbers for {columns} columns")
    return Row(str(values["name"]), _what(values, where), paper, bool(values.get("other", False)))


def _what(values: Mapping[str, Any], where: str) -> CellSpec:
    said = {key: values[key] for key in _WHAT if key in values}
    if "start" in said:
        start = _mapping(said["start"], f"{where}, start", ("points", "jitter"))
        said["start"] = StartPoints(tuple(start["points"]), float(start["jitter"]))
    return CellSpec(**said)


def _mapping(content: Any, where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise InputError(f"{where}: 'name: value' lines are expected")
    unknown = sorted(str(key) for key in content if key not in known)
    if unknown:
        raise InputError(f"{where}: nobody knows the key '{unknown[0]}'")
    return content


def _check_cell(experiment: Experiment, row: Row, column: Column) -> None:
    what = experiment.cell(row, column)
    where = f"{experiment.name}, row '{row.name}', column '{column.name}'"
    if what.train is None or what.metric is None:
        raise InputError(f"{where}: 'train' and 'metric' must be said")
    measured, _ = parse_metric(what.metric)
    if measured.kind not in KINDS[experiment.kind]:
        raise InputError(f"{where}: '{what.metric}' cannot be shown as {experiment.kind}")
    override(Config(), what.settings)
    override(Config(), {f"{EVALUATION}{name}": value for name, value in what.evaluation.items()})
