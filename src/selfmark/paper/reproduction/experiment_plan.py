"""Plan the training runs and measurements that experiments need.

The key of a run or measurement is a digest of its inputs. Experiments share runs and measurements that have
the same inputs. Repeating an experiment reuses them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Protocol

from selfmark.config import Config, original_setting_names, override, preset, used_settings
from selfmark.errors import InputError
from selfmark.paper.reproduction.experiment import (
    EVALUATION_PREFIX,
    CellSpec,
    Column,
    Experiment,
    Row,
    StartPoints,
)
from selfmark.paper.reproduction.table_metrics import MeasurementKind, list_required_inputs, parse_metric

_WITHOUT_TRAINING: tuple[MeasurementKind, ...] = ("keypoints", "keypoint map", "keypoint sheet")
_STAGE1_ONLY: tuple[MeasurementKind, ...] = ("stage1", "rounds", "map")

DatasetKey = tuple[str, int | None]  # name and number of annotated points of a data set; None for all points
CellKey = tuple[str, str, str]  # names of the experiment, the row and the column


class DatasetLibrary(Protocol):
    """What a plan must know about data sets.

    `DatasetCache` reads the data. `cost.DatasetNames` makes plans without the data.
    """

    def settings(self, name: str) -> Mapping[str, Any]:
        """Return the settings that the paper changes for this data set."""

    def train_digest(self, name: str) -> str:
        """Return a digest of the training images."""

    def start_digest(self, name: str, points: int | None, start: StartPoints) -> str:
        """Return a digest of the training images that have start points, and of their annotated points."""

    def labels_digest(self, name: str, points: int | None, seed: int, fit_images: int | None) -> str:
        """Return a digest of the test images, the images for fitting regressors, and the labels of both."""


@dataclass(frozen=True)
class Training:
    """A discovery run that a plan needs.

    Attributes:
        key: Digest of everything that the run depends on.
        data: Name of the data set.
        points: Number of annotated points; None for the points that the data set has.
        preset: Name of the preset.
        settings: Changes to the preset, a mapping from dotted names to new values.
        start: Annotated points to start from; None to start from the keypoints of a detector.
        stages: Number of stages to train: 0, 1 or 2.
    """

    key: str
    data: str
    points: int | None
    preset: str
    settings: Mapping[str, Any]
    start: StartPoints | None
    stages: int

    @cached_property
    def config(self) -> Config:
        """All settings of the run."""
        return override(preset(self.preset), self.settings)

    @property
    def folder(self) -> str:
        """Name of the run folder."""
        return f"{self.data}-K{self.config.K}-{self.key}"


@dataclass(frozen=True)
class Measurement:
    """A measurement of a training run, or of first keypoints, which need no training.

    Attributes:
        key: Digest of everything that the measurement depends on.
        training: Training run to measure; if nothing is trained, only its settings are used.
        kind: Kind of measurement.
        data: Name of the data set to measure on.
        points: Number of annotated points; None for the points that the data set has.
        fit_images: Number of images on which regressors are fitted; None for all.
        evaluation: Changes to the settings of the evaluation, a mapping from names without `evaluation.` to
            new values.
        by: Annotation fields to group errors by or, for contact sheets, to sort images by.
        detectors: Keypoint detectors to compare.
    """

    key: str
    training: Training
    kind: MeasurementKind
    data: str
    points: int | None
    fit_images: int | None
    evaluation: Mapping[str, Any]
    by: tuple[str, ...] = ()
    detectors: tuple[str, ...] = ()

    @property
    def needs_training(self) -> bool:
        """Whether the measurement needs a trained model."""
        return self.kind not in _WITHOUT_TRAINING


@dataclass(frozen=True)
class Cell:
    """A cell: its metric, and the key of the measurement to read it from (None if the data is missing)."""

    metric: str
    measurement: str | None


@dataclass(frozen=True)
class ExperimentJob:
    """Work for one process: a training run with its measurements, or a measurement without training."""

    key: str
    training: Training | None
    measurements: tuple[Measurement, ...]


@dataclass
class ExperimentPlan:
    """Mappings from keys to training runs and to measurements, and the cells of the experiments."""

    trainings: dict[str, Training] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    cells: dict[CellKey, Cell] = field(default_factory=dict)

    def jobs(self) -> list[ExperimentJob]:
        """Return the training runs with their measurements, then the measurements without training."""
        jobs = []
        for key, training in self.trainings.items():
            measurements = [
                measurement
                for measurement in self.measurements.values()
                if measurement.needs_training and measurement.training.key == key
            ]
            jobs.append(ExperimentJob(key, training, tuple(measurements)))
        jobs += [
            ExperimentJob(measurement.key, None, (measurement,))
            for measurement in self.measurements.values()
            if not measurement.needs_training
        ]
        return jobs

    def add(self, key: CellKey, metric: str, measurement: Measurement) -> None:
        """Add a cell and its measurement.

        If a measurement with the same key is already planned, both are merged: the result covers the fields
        and detectors of both. The training run is planned up to the last stage that any of its measurements
        needs.
        """
        planned = self.measurements.get(measurement.key)
        if planned is not None:
            measurement = replace(
                measurement,
                by=tuple(dict.fromkeys((*planned.by, *measurement.by))),
                detectors=tuple(dict.fromkeys((*planned.detectors, *measurement.detectors))),
            )
        self.measurements[measurement.key] = measurement
        if measurement.needs_training:
            training = measurement.training
            planned_training = self.trainings.get(training.key)
            stages = max(training.stages, 1 if planned_training is None else planned_training.stages)
            self.trainings[training.key] = replace(training, stages=stages)
        self.cells[key] = Cell(metric, measurement.key)


def make_plan(
    experiments: Sequence[Experiment],
    library: DatasetLibrary,
    preset_name: str,
    changes: Mapping[str, Any],
    missing: frozenset[DatasetKey] = frozenset(),
) -> ExperimentPlan:
    """Plan the training runs and measurements of experiments.

    Args:
        experiments: Experiments to plan.
        library: Information about the data sets.
        preset_name: Name of the preset.
        changes: Changes to the settings of all experiments, a mapping from dotted names to new values.
        missing: Data sets that are not available; their cells get no measurement.
    """
    plan, planner = ExperimentPlan(), _Planner(library, preset_name, changes)
    for key, spec in _iterate_cells(experiments):
        if spec.train is None or spec.test is None or spec.metric is None:
            raise ValueError(f"cell {key} has no data set or no metric")
        if {(spec.train, spec.points), (spec.test, spec.points)} & missing:
            plan.cells[key] = Cell(spec.metric, None)
        else:
            plan.add(key, spec.metric, planner.plan_measurement(spec))
    return plan


def check_rows_differ(experiments: Sequence[Experiment], changes: Mapping[str, Any]) -> None:
    """Raise if the user changes a setting in which the rows or columns of a table differ."""
    for experiment, name in product(experiments, changes):
        if any(varied == name or varied.startswith(f"{name}.") for varied in experiment.varied_settings):
            raise InputError(
                f"the rows or columns of '{experiment.name}' differ in {name}, so it cannot be set for all "
                f"of them: leave out --set {name}, or choose tables other than '{experiment.name}'"
            )


def list_required_datasets(experiments: Sequence[Experiment]) -> list[DatasetKey]:
    """Return the data sets that experiments need, in the order of their cells."""
    needed_datasets: dict[DatasetKey, None] = {}
    for _, spec in _iterate_cells(experiments):
        needed_datasets |= {(name, spec.points): None for name in (spec.train, spec.test) if name}
    return list(needed_datasets)


def _iterate_cells(experiments: Sequence[Experiment]) -> Iterator[tuple[CellKey, CellSpec]]:
    for experiment in experiments:
        cells: Iterator[tuple[Row, Column]] = product(experiment.own_rows, experiment.columns)
        for row, column in cells:
            yield (experiment.name, row.name, column.name), experiment.cell_spec(row, column)


@dataclass(frozen=True)
class _Planner:
    """Planner of the measurements of single cells, with the options that all experiments share."""

    library: DatasetLibrary
    preset: str
    changes: Mapping[str, Any]

    def plan_measurement(self, spec: CellSpec) -> Measurement:
        """Return the measurement that a cell needs."""
        metric, _ = parse_metric(spec.metric or "")
        training = self._plan_training(spec, metric.measured_by)
        by, detectors = list_required_inputs(spec.metric or "")
        test = spec.test or ""
        evaluation = {
            **_evaluation_settings(self.library.settings(test)),
            **spec.evaluation,
            **_evaluation_settings(self.changes),
        }
        # If `fit_images` is set, Stage 2 is evaluated with several random samples of the images for fitting.
        # All other measurements use one sample.
        has_several_draws = spec.fit_images is not None and metric.measured_by == "detector"
        sample_size = None if has_several_draws else spec.fit_images
        labels = self.library.labels_digest(test, spec.points, training.config.seed, sample_size)
        inputs: list[Any] = [training.key, metric.measured_by, test, labels, spec.fit_images]
        inputs.append(sorted(original_setting_names({"evaluation": evaluation})["evaluation"].items()))
        if has_several_draws:
            inputs.append({"draws": evaluation.get("draws", training.config.evaluation.draws)})
        # Fields and detectors only add results to a measurement of a trained model, so its digest does not
        # include them.
        if not training.stages:
            inputs.append(detectors)
        return Measurement(
            key=_digest(inputs),
            training=training,
            kind=metric.measured_by,
            data=test,
            points=spec.points,
            fit_images=spec.fit_images,
            evaluation=evaluation,
            by=by,
            detectors=detectors,
        )

    def _plan_training(self, spec: CellSpec, kind: MeasurementKind) -> Training:
        """Return the training run that a measurement of this kind needs."""
        data = spec.train or ""
        changes = {name: value for name, value in self.changes.items() if not _is_evaluation(name)}
        settings = _with_enough_clusters(
            self.preset, {**self.library.settings(data), **spec.settings, **changes}
        )
        values = used_settings(override(preset(self.preset), settings))
        del values["evaluation"]
        start = ""
        if spec.start is not None:
            digest = self.library.start_digest(data, spec.points, spec.start)
            start = f"{spec.start.fingerprint} of {digest}"
        stages = 2
        if kind in _WITHOUT_TRAINING:
            stages = 0
        elif kind in _STAGE1_ONLY:
            stages = 1
        return Training(
            key=_digest([data, self.library.train_digest(data), original_setting_names(values), start]),
            data=data,
            points=spec.points,
            preset=self.preset,
            settings=settings,
            start=spec.start,
            stages=stages,
        )


def _with_enough_clusters(preset_name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with M, the number of clusters of Stage 1.

    Unless M is set, it becomes the larger of two numbers: the preset's M, and K (the number of landmarks).
    """
    if "M" in settings:
        return dict(settings)
    # To find K, resolve the settings with an M that is larger than any K: settings with M < K are invalid.
    num_landmarks = override(preset(preset_name), {**settings, "M": 1_000_000}).K
    return {**settings, "M": max(num_landmarks, preset(preset_name).M)}


def _evaluation_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from names without `evaluation.` to the settings of the evaluation."""
    return {
        name.removeprefix(EVALUATION_PREFIX): value
        for name, value in settings.items()
        if _is_evaluation(name)
    }


def _is_evaluation(name: str) -> bool:
    return name.startswith(EVALUATION_PREFIX)


def _digest(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True)
    except TypeError as error:
        raise InputError(f"the value of a setting cannot be written as JSON: {value!r}") from error
    return hashlib.sha256(text.encode()).hexdigest()[:12]
