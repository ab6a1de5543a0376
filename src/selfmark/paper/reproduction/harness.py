"""Run experiments and write their tables and figures, as `selfmark reproduce` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from selfmark._version import __version__
from selfmark.config import Config, override, preset
from selfmark.config.renamed import current_name
from selfmark.errors import InputError, report_write_errors
from selfmark.paper.reproduction import cost
from selfmark.paper.reproduction import experiment as experiment_files
from selfmark.paper.reproduction.dataset_cache import DatasetCache
from selfmark.paper.reproduction.experiment import Column, Experiment, Row
from selfmark.paper.reproduction.experiment_plan import (
    Cell,
    DatasetKey,
    ExperimentJob,
    ExperimentPlan,
    Measurement,
    check_rows_differ,
    list_required_datasets,
    make_plan,
)
from selfmark.paper.reproduction.figures import require_matplotlib, write_figure
from selfmark.paper.reproduction.job_queue import run_jobs
from selfmark.paper.reproduction.reference_values import (
    AUTHORS_EYES,
    View,
    add_references,
    as_measured,
    with_authors_eyes,
)
from selfmark.paper.reproduction.table_metrics import METRICS, MeasurementKind, Value, parse_metric
from selfmark.paper.reproduction.table_writers import (
    ABSENT,
    FAILED,
    TableOrigin,
    build_paragraphs,
    write_tables,
)
from selfmark.paper.reproduction.workspace import OpenListener, Workspace, is_job_done, run_experiment_job
from selfmark.report.embedding import require_tsne
from selfmark.run.devices import select_device
from selfmark.run.files import read_json, write_text
from selfmark.run.guarded_files import make_folders, require_no_links
from selfmark.run.torchrun_environment import read_count
from selfmark.weights_cache import PUBLISHED_WEIGHTS, cache_folder, pop_license_notice

Log = Callable[[str], None]

# Kinds of measurements that fit regressors.
_WITH_REGRESSORS: tuple[MeasurementKind, ...] = ("stage1", "rounds", "detector")

_EYES_NOTE = (
    "The inter-ocular distance of 68 points is measured between the centers of the six points of each eye. "
    f"Rows '{AUTHORS_EYES}' use the distance between points 41 and 46 (counted from 0), as the authors' "
    "program does."
)


@dataclass(frozen=True)
class ReproductionOptions:
    """Options of a reproduction.

    Attributes:
        preset: `paper`, `fast` or `tiny`.
        changes: Mapping from dotted names to settings; they override the settings of the experiments.
        device: `auto`, `cpu`, `cuda`, ...
        allow_missing: Whether to leave out cells whose data set is missing, instead of raising an error.
    """

    preset: str = "paper"
    changes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    allow_missing: bool = False


def reproduce_tables(
    names: Sequence[str],
    data: Path,
    output: Path,
    options: ReproductionOptions | None = None,
    log: Log = print,
    open_listener: OpenListener = nullcontext,
) -> list[Path]:
    """Reproduce experiments: train and measure what is not done yet, then write all tables and figures.

    If torchrun starts several processes, each uses its own GPU and takes training runs that no other process
    has taken. The first process writes the tables when all runs are done.

    Args:
        names: Names of the experiments, or "all".
        data: Folder with one folder per data set, named after the data set.
        output: Folder for the results; finished parts in it are not repeated.
        options: Preset, settings and device.
        log: Called with progress messages.
        open_listener: Opens a listener for the events of one training run.

    Returns:
        The files written.
    """
    options = _use_current_names(options or ReproductionOptions())
    experiments, settings = _select_and_check(names, options)
    if any(experiment.kind != "table" for experiment in experiments):
        require_matplotlib()  # Raise now, not after hours of training.
    if any(experiment.kind == "map" for experiment in experiments):
        require_tsne()
    for name in ("data", "trainings", "measurements", "failed", "claims"):
        require_no_links(output / name, below=output)
    rank, device = _select_own_device(options.device)
    datasets = DatasetCache(data, output / "data")
    missing_datasets = _find_missing(experiments, datasets, options.allow_missing, log)
    plan = make_plan(experiments, datasets, options.preset, options.changes, missing_datasets)
    varied_settings = frozenset().union(*(experiment.varied_settings for experiment in experiments))
    _require_weights(plan, "keypoints.detector" not in varied_settings, log)
    with report_write_errors(f"to {output}"):
        make_folders(output)
    workspace = Workspace(datasets, output, device, open_listener if rank == 0 else nullcontext)
    _run_plan(plan, workspace, log)
    if rank != 0:
        return []
    _log_failures(plan, workspace, log)
    origin = TableOrigin(
        options.preset,
        settings.seed,
        {name: str(value) for name, value in options.changes.items()},
        __version__,
        _device_name(device),
    )
    paths = (_write_experiment(experiment, plan, workspace, origin) for experiment in experiments)
    return [path for group in paths for path in group]


def select_experiments(names: Sequence[str]) -> list[Experiment]:
    """Load the named experiments, each once; "all" selects all experiments."""
    selected = (
        experiment_files.list_experiment_names() if list(names) == ["all"] else list(dict.fromkeys(names))
    )
    keyword = next((name for name in selected if name in ("all", "list")), None)
    if keyword is not None:
        raise InputError(
            f"'{keyword}' cannot be combined with names of tables; run 'selfmark reproduce {keyword}'"
        )
    if not selected:
        raise InputError("give the name of a table, or 'all'; 'selfmark reproduce list' shows the names")
    return [experiment_files.load_experiment(name) for name in selected]


def preview_plan(
    names: Sequence[str], data: Path | None, options: ReproductionOptions | None = None
) -> list[str]:
    """Return lines that list the planned training runs and their estimated cost.

    The plan needs no data. If `data` is given, the lines also say which data sets are available.
    """
    options = _use_current_names(options or ReproductionOptions())
    experiments, _ = _select_and_check(names, options)
    plan = make_plan(experiments, cost.DatasetNames(), options.preset, options.changes)
    lines = []
    if data is not None:
        datasets = DatasetCache(data, data)
        for name, points in list_required_datasets(experiments):
            with_points = f" with {points} points" if points else ""
            lines.append(f"data  {name}{with_points}: {datasets.why_missing(name, points) or 'available'}")
    for training in plan.trainings.values():
        minutes = cost.estimate_training_seconds(training) / 60
        stages = "both stages" if training.stages > 1 else "Stage 1"
        settings = " ".join(f"{key}={value}" for key, value in sorted(training.settings.items()))
        lines.append(f"train {training.data}: {stages}, {settings}, {minutes:.1f} GPU min")
    lines.append(
        f"total: {len(plan.trainings)} training runs and {len(plan.measurements)} measurements, about "
        f"{cost.estimate_minutes(plan):.0f} minutes on one NVIDIA H200 (extrapolated to the paper's images)"
    )
    return lines


def list_experiments() -> list[tuple[str, str, str]]:
    """Return name, place in the paper and title of every experiment."""
    experiments = map(experiment_files.load_experiment, experiment_files.list_experiment_names())
    return [(experiment.name, experiment.place, experiment.title) for experiment in experiments]


# --- checks before training --------------------------------------------------------------------------------


def _use_current_names(options: ReproductionOptions) -> ReproductionOptions:
    """Return the options with old names of settings replaced by current names."""
    return replace(options, changes={current_name(name): value for name, value in options.changes.items()})


def _select_and_check(names: Sequence[str], options: ReproductionOptions) -> tuple[list[Experiment], Config]:
    """Load and check experiments and settings.

    This is done before the data sets are read, because reading them takes minutes.
    """
    experiments, settings = select_experiments(names), override(preset(options.preset), options.changes)
    check_rows_differ(experiments, options.changes)
    select_device(options.device)
    return experiments, settings


def _select_own_device(device: str) -> tuple[int, str]:
    """Return the rank and the device of this process.

    Here, each process of torchrun works on training runs of its own. WORLD_SIZE is removed from the
    environment, because it would make all processes share one run.
    """
    rank, local_rank = read_count("RANK", 0), read_count("LOCAL_RANK", 0)
    is_distributed = read_count("WORLD_SIZE", 1) > 1
    os.environ.pop("WORLD_SIZE", None)
    if select_device(device).type != "cuda" or not is_distributed:
        return rank, device
    if local_rank >= torch.cuda.device_count():
        raise InputError(
            f"this machine has {torch.cuda.device_count()} GPUs; --nproc-per-node must not be larger"
        )
    torch.cuda.set_device(local_rank)
    return rank, f"cuda:{local_rank}"


def _find_missing(
    experiments: Sequence[Experiment], datasets: DatasetCache, allow_missing: bool, log: Log
) -> frozenset[DatasetKey]:
    """Return the data sets that cannot be used.

    Raises:
        InputError: A data set cannot be used and `allow_missing` is False, or no data set can be used.
    """
    needed_datasets = list_required_datasets(experiments)
    reasons = {key: reason for key in needed_datasets if (reason := datasets.why_missing(*key))}
    if reasons and (not allow_missing or len(reasons) == len(needed_datasets)):
        hint = "" if allow_missing else "; use --allow-missing to leave out the cells that need this data set"
        raise InputError(next(iter(reasons.values())) + hint)
    for reason in reasons.values():
        log(f"left out: {reason}")
    return frozenset(reasons)


def _require_weights(plan: ExperimentPlan, can_choose_detector: bool, log: Log) -> None:
    """Raise if the weights of a needed keypoint detector are missing; log the licenses of installed weights.

    Args:
        plan: Plan whose keypoint detectors are checked.
        can_choose_detector: Whether the user can choose another detector, because no table prescribes one.
        log: Called with license notices.
    """
    for measurement in plan.measurements.values():
        training = measurement.training
        keypoints = training.config.keypoints
        needed_detectors = set(measurement.detectors)
        if training.start is None and not keypoints.weights and not needed_detectors:
            needed_detectors = {keypoints.detector}
        for name in sorted(needed_detectors & set(PUBLISHED_WEIGHTS)):
            if not (cache_folder() / PUBLISHED_WEIGHTS[name].file).exists():
                can_change = can_choose_detector and name not in measurement.detectors
                hint = ", or choose another with --set keypoints.detector=selfmark" if can_change else ""
                raise InputError(
                    f"the weights of the keypoint detector '{name}' are not installed; get them with "
                    f"'selfmark weights {name}'{hint}"
                )
            notice = pop_license_notice(name)
            if notice:
                log(notice)


# --- running and writing -----------------------------------------------------------------------------------


def _run_plan(plan: ExperimentPlan, workspace: Workspace, log: Log) -> None:
    """Run all jobs of the plan that are not done yet, together with other processes."""
    jobs = plan.jobs()
    numbers = {job.key: number for number, job in enumerate(jobs, 1)}

    def run(job: ExperimentJob) -> None:
        description = f"{job.measurements[0].kind} without training"
        if job.training is not None:
            description = job.training.folder
        log(f"{numbers[job.key]} of {len(jobs)}: {description}")
        run_experiment_job(workspace, job)

    run_jobs(jobs, workspace.output / "claims", lambda job: is_job_done(workspace, job), run)


def _log_failures(plan: ExperimentPlan, workspace: Workspace, log: Log) -> None:
    keys = [
        key
        for job in plan.jobs()
        for key in (job.key, *(measurement.key for measurement in job.measurements))
    ]
    for path in map(workspace.failure_file, dict.fromkeys(keys)):
        if path.exists():
            failure = read_json(path)
            log(f"failed: {failure['training']}: {failure['why']}; remove {path} to try again")


def _write_experiment(
    experiment: Experiment, plan: ExperimentPlan, workspace: Workspace, origin: TableOrigin
) -> list[Path]:
    notes = _collect_notes(experiment, plan, workspace)
    origin = replace(origin, regressor=_describe_regressor(experiment, plan), notes=notes)

    def read(row: Row, column: Column, metric: str, view: View) -> Value:
        return _read_value(plan.cells[experiment.name, row.name, column.name], metric, view, plan, workspace)

    shown, values = add_references(experiment, read)
    if AUTHORS_EYES in " ".join(row.name for row in shown.rows):
        origin = replace(origin, notes=(*notes, _EYES_NOTE))
    if experiment.kind == "table":
        return write_tables(shown, values, origin, workspace.output)
    spreads: dict[tuple[str, str], Value] = {}
    for row, column in product(experiment.own_rows, experiment.columns):
        metric = f"{plan.cells[experiment.name, row.name, column.name].metric}_spread"
        if metric in METRICS:
            spreads[row.name, column.name] = read(row, column, metric, as_measured)
            name = f"{row.name}, {AUTHORS_EYES}"
            spreads[name, column.name] = read(row, column, metric, with_authors_eyes)
    paths = write_figure(shown, values, workspace.output, spreads)
    page = workspace.output / f"{experiment.name}.md"
    lines = [
        f"# {experiment.title}",
        "",
        *build_paragraphs(experiment, origin),
        f"![{experiment.title}]({experiment.name}.png)",
        "",
    ]
    write_text("\n".join(lines), page)
    return [page, *paths]


def _find_measurements(experiment: Experiment, plan: ExperimentPlan) -> list[Measurement]:
    """Return the measurements of an experiment's cells, in order; cells without data are skipped."""
    keys = [cell.measurement for (name, _, _), cell in plan.cells.items() if name == experiment.name]
    return [plan.measurements[key] for key in filter(None, keys)]


def _describe_regressor(experiment: Experiment, plan: ExperimentPlan) -> str:
    """Return the ridges of an experiment's regressors as text; empty if nothing is regressed.

    Data sets may have different ridges.
    """
    ridges: dict[float, dict[str, None]] = {}
    for measurement in _find_measurements(experiment, plan):
        if measurement.kind not in _WITH_REGRESSORS:
            continue
        ridge = measurement.evaluation.get("ridge", measurement.training.config.evaluation.ridge)
        ridges.setdefault(float(ridge), {})[measurement.data] = None
    if len(ridges) < 2:
        return "".join(f"ridge {ridge:g}" for ridge in ridges)
    return ", ".join(f"ridge {ridge:g} ({' and '.join(data)})" for ridge, data in ridges.items())


def _collect_notes(experiment: Experiment, plan: ExperimentPlan, workspace: Workspace) -> tuple[str, ...]:
    """Return sentences about what was left out, and how the available data differs from the paper's data."""
    datasets, notes = workspace.datasets, []
    for name, points in list_required_datasets([experiment]):
        if not datasets.why_missing(name, points):
            notes += [f"{name}: {note}." for note in datasets.load(name, points).data.notes]
    for measurement in _find_measurements(experiment, plan):
        training = measurement.training
        if training.start is not None:
            cached = datasets.load(training.data, training.points)
            notes += [f"{training.data}: {note}." for note in cached.start_notes(training.start)]
        if not workspace.has_failed(measurement):
            result_notes = workspace.read_results(measurement).get("notes", ())
            notes += [f"{measurement.data}: {note}" for note in result_notes]
    return tuple(dict.fromkeys(notes))


def _read_value(
    cell: Cell, metric_text: str, view: View, plan: ExperimentPlan, workspace: Workspace
) -> Value:
    """Return the value of a metric in a cell's measurement; None if `view` cannot convert the results.

    `view` converts the results of the measurement, for example to errors with another normalizer. Return
    `ABSENT` if the cell has no measurement, and `FAILED` if the measurement or its training failed. The value
    of a picture is its path.
    """
    if cell.measurement is None:
        return ABSENT
    measurement = plan.measurements[cell.measurement]
    if workspace.has_failed(measurement):
        return FAILED
    metric, argument = parse_metric(metric_text)
    results = view(workspace.read_results(measurement))
    value = None if results is None else metric.read(results, argument)
    if metric.kind == "picture":
        return str(workspace.measurement_folder(measurement) / str(value))
    return value


def _device_name(device: str) -> str:
    selected_device = select_device(device)
    return torch.cuda.get_device_name(selected_device) if selected_device.type == "cuda" else "CPU"
