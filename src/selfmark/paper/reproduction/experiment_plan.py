"""What experiments need: trainings and measurements, each named by a digest of all that it depends on.

Experiments that need the same training, or the same measurement of it, have the same one in their plans; so
has an experiment that is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from selfmark.config import Config, original_names, override, preset, to_dict
from selfmark.errors import InputError
from selfmark.paper.reproduction.experiment import EVALUATION, CellSpec, Column, Experiment, Row, StartPoints
from selfmark.paper.reproduction.table_metrics import Need, parse_metric, required_fields

_UNTRAINED: tuple[Need, ...] = ("keypoints", "keypoint map", "keypoint sheet")
_FIRST_STAGE: tuple[Need, ...] = ("stage1", "rounds", "map")


class DatasetLibrary(Protocol):
    """What a plan must know of data sets; without the data, names alone will do."""

    def settings(self, name: str) -> Mapping[str, Any]:
        """What the paper changes for this data set."""

    def trained_on(self, name: str) -> str:
        """A digest of the training images."""

    def started_from(self, name: str, points: int | None, start: StartPoints) -> str:
        """A digest of the training images that have points to start from, and of their annotated points."""

    def measured_on(self, name: str, points: int | None, seed: int, fit_images: int | None) -> str:
        """A digest of test images, of images that regressors are fitted on, and of their labels."""


@dataclass(frozen=True)
class Training:
    """A discovery: of what, with which settings over the preset; `stages` is 1 if Stage 2 is not needed."""

    key: str
    data: str
    points: int | None
    preset: str
    settings: Mapping[str, Any]
    start: StartPoints | None
    stages: int

    @cached_property
    def config(self) -> Config:
        return override(preset(self.preset), self.settings)

    @property
    def folder(self) -> str:
        """Of the run, below the output folder."""
        return f"{self.data}-K{self.config.K}-{self.key}"


@dataclass(frozen=True)
class Measurement:
    """Something measured of a training, or of the first keypoints of its settings if nothing is trained."""

    key: str
    training: Training
    need: Need
    data: str
    points: int | None
    fit_images: int | None
    evaluation: Mapping[str, Any]
    by: tuple[str, ...] = ()
    detectors: tuple[str, ...] = ()

    @property
    def trained(self) -> bool:
        return self.need not in _UNTRAINED


@dataclass(frozen=True)
class Cell:
    """Where the content of a cell is read off: a metric of a measurement; None where its data is missing."""

    metric: str
    measurement: str | None


@dataclass(frozen=True)
class Job:
    """What one process does in one go: a training with all its measurements, or measurements without any."""

    key: str
    training: Training | None
    measurements: tuple[Measurement, ...]


@dataclass
class ExperimentPlan:
    trainings: dict[str, Training] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)  # by experiment, row and column

    def jobs(self) -> list[Job]:
        """Trainings first as they were asked for, then what needs none."""
        jobs = []
        for key, training in self.trainings.items():
            mine = [one for one in self.measurements.values() if one.trained and one.training.key == key]
            jobs.append(Job(key, training, tuple(mine)))
        jobs += [Job(one.key, None, (one,)) for one in self.measurements.values() if not one.trained]
        return jobs


def make_plan(
    experiments: Sequence[Experiment],
    library: DatasetLibrary,
    preset_name: str,
    changes: Mapping[str, Any],
    missing: frozenset[tuple[str, int | None]] = frozenset(),
) -> ExperimentPlan:
    """Plan experiments; cells whose data sets are `missing`, by name and points, get no measurement."""
    plan = ExperimentPlan()
    for experiment in experiments:
        for row in experiment.own_rows:
            for column in experiment.columns:
                _add(plan, experiment, row, column, library, preset_name, changes, missing)
    return plan


def check_rows_differ(experiments: Sequence[Experiment], changes: Mapping[str, Any]) -> None:
    """Refuse a change of what tells rows apart: all would be alike, each under its old name."""
    for experiment, name in product(experiments, changes):
        if any(own == name or own.startswith(f"{name}.") for own in experiment.told_apart_by):
            raise InputError(
                f"'{experiment.name}' says {name} of its rows or columns itself, so it cannot be set for "
                f"all: leave --set {name} out, or name tables without this one"
            )


def required_datasets(experiments: Sequence[Experiment]) -> list[tuple[str, int | None]]:
    """Data sets and numbers of points that cells ask for, in order of mention."""
    needed: dict[tuple[str, int | None], None] = {}
    for experiment in experiments:
        for row in experiment.own_rows:
            for column in experiment.columns:
                what = experiment.cell(row, column)
                needed |= {(name, what.points): None for name in (what.train, what.test) if name}
    return list(needed)


def _add(
    plan: ExperimentPlan,
    experiment: Experiment,
    row: Row,
    column: Column,
    library: DatasetLibrary,
    preset_name: str,
    changes: Mapping[str, Any],
    missing: frozenset[tuple[str, int | None]],
) -> None:
    what = experiment.cell(row, column)
    if what.train is None or what.test is None or what.metric is None:
        raise ValueError("experiments are checked when they are read")
    place = (experiment.name, row.name, column.name)
    if {(what.train, what.points), (what.test, what.points)} & missing:
        plan.cells[place] = Cell(what.metric, None)
        return
    measurement = _measurement(what, library, preset_name, changes)
    before = plan.measurements.get(measurement.key)
    if before is not None:
        measurement = replace(
            measurement,
            by=tuple(dict.fromkeys((*before.by, *measurement.by))),
            detectors=tuple(dict.fromkeys((*before.detectors, *measurement.detectors))),
        )
    plan.measurements[measurement.key] = measurement
    if measurement.trained:
        training = measurement.training
        known = plan.trainings.get(training.key)
        stages = max(training.stages, known.stages if known is not None else 1)
        plan.trainings[training.key] = replace(training, stages=stages)
    plan.cells[place] = Cell(what.metric, measurement.key)


def _measurement(
    what: CellSpec, library: DatasetLibrary, preset_name: str, changes: Mapping[str, Any]
) -> Measurement:
    found, _ = parse_metric(what.metric or "")
    training = _training(what, found.need, library, preset_name, changes)
    by, detectors = required_fields(what.metric or "")
    test = what.test or ""
    own, asked = _evaluation(library.settings(test)), _evaluation(changes)
    evaluation = {**own, **what.evaluation, **asked}
    labels = library.measured_on(test, what.points, training.config.seed, what.fit_images)
    # What a detector finds is measured with all else; fields and detectors only add to a measurement.
    digested = original_names({"evaluation": evaluation})["evaluation"]
    named: list[Any] = [training.key, found.need, test, labels, what.fit_images, sorted(digested.items())]
    if not training.stages:
        named.append(detectors)
    return Measurement(
        _digest(named), training, found.need, test, what.points, what.fit_images, evaluation, by, detectors
    )


def _training(
    what: CellSpec, need: Need, library: DatasetLibrary, preset_name: str, changes: Mapping[str, Any]
) -> Training:
    data = what.train or ""
    asked = {name: value for name, value in changes.items() if not _is_evaluation(name)}
    settings = _enough_clusters(preset_name, {**library.settings(data), **what.settings, **asked})
    config = override(preset(preset_name), settings)
    values = {name: part for name, part in to_dict(config).items() if name != "evaluation"}
    start = ""
    if what.start is not None:
        start = f"{what.start.fingerprint} of {library.started_from(data, what.points, what.start)}"
    key = _digest([data, library.trained_on(data), original_names(values), start])
    stages = 0 if need in _UNTRAINED else 1 if need in _FIRST_STAGE else 2
    return Training(key, data, what.points, preset_name, settings, what.start, stages)


def _enough_clusters(preset_name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """As many clusters as landmarks at least, where a small preset has fewer and nobody says how many."""
    if "M" in settings:
        return dict(settings)
    least = override(preset(preset_name), {**settings, "M": 1_000_000}).K
    return {**settings, "M": max(least, preset(preset_name).M)}


def _evaluation(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of these settings those of the evaluation, by their own names."""
    return {name.removeprefix(EVALUATION): value for name, value in settings.items() if _is_evaluation(name)}


def _is_evaluation(name: str) -> bool:
    return name.startswith(EVALUATION)


def _digest(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True)
    except TypeError as error:
        raise InputError(f"a setting has a value that cannot be written down: {value!r}") from error
    return hashlib.sha256(text.encode()).hexdigest()[:12]
