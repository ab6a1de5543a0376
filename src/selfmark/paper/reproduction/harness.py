"""`selfmark reproduce`: experiments from their files to tables and figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from selfmark._version import __version__
from selfmark.config import Config, override, preset
from selfmark.errors import InputError
from selfmark.keypoints.weights_cache import PUBLISHED_WEIGHTS, cache_folder, license_notice
from selfmark.paper.reproduction import cost, experiment, workspace
from selfmark.paper.reproduction.dataset_cache import DatasetCache
from selfmark.paper.reproduction.experiment import Experiment
from selfmark.paper.reproduction.experiment_plan import (
    ExperimentPlan,
    Job,
    Measurement,
    check_rows_differ,
    make_plan,
    required_datasets,
)
from selfmark.paper.reproduction.figures import require_matplotlib, write_figure
from selfmark.paper.reproduction.jobs import run_jobs
from selfmark.paper.reproduction.table_metrics import Value, parse_metric
from selfmark.paper.reproduction.table_writers import (
    ABSENT,
    FAILED,
    TableOrigin,
    build_paragraphs,
    write_tables,
)
from selfmark.paper.reproduction.workspace import Watch, Workspace
from selfmark.report.embedding import require_tsne
from selfmark.run.devices import select_device
from selfmark.run.files import atomic_write, read_json

Say = Callable[[str], None]


def reproduce_tables(
    names: Sequence[str],
    data: Path,
    output: Path,
    preset_name: str = "paper",
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    allow_missing: bool = False,
    say: Say = print,
    watch: Watch = nullcontext,
) -> list[Path]:
    """Make experiments: train and measure what is not there yet, and write tables and figures.

    Started several times by torchrun, each process takes trainings that no other has, on a GPU of its own,
    and the first writes once all are done.

    Args:
        names: of the experiments, or "all".
        data: folder with a folder for each data set, called as the data set.
        output: what is made is kept here, and found again the next time.
        preset_name: `paper`, `fast` or `tiny`.
        changes: settings by dotted name, over those of the experiments; `evaluation.ridge` and the like too.
        device: `auto`, `cpu`, `cuda`, ...
        allow_missing: make what can be made where a data set is missing; otherwise nothing is.
        say: called with lines on what is being done.
        watch: gives whoever listens to the events of a training, anew for each.

    Returns:
        The files written.
    """
    changed = dict(changes or {})
    experiments, settings = _asked(names, preset_name, changed, device)
    if any(one.kind != "table" for one in experiments):
        require_matplotlib()  # now, not after hours of training
    if any(one.kind == "map" for one in experiments):
        require_tsne()
    rank, device = _own_device(device)
    shelf = DatasetCache(data, output / "data")
    missing = _missing(experiments, shelf, allow_missing, say)
    plan = make_plan(experiments, shelf, preset_name, changed, missing)
    _require_weights(plan, all("keypoints.detector" not in one.told_apart_by for one in experiments), say)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {output}: {error.strerror}") from error
    bench = Workspace(shelf, output, device, watch if rank == 0 else nullcontext)
    jobs = plan.jobs()
    numbers = {job.key: number for number, job in enumerate(jobs, 1)}

    def do(job: Job) -> None:
        what = (
            job.training.folder
            if job.training is not None
            else f"{job.measurements[0].need} without training"
        )
        say(f"{numbers[job.key]} of {len(jobs)}: {what}")
        workspace.run_job(bench, job)

    run_jobs(jobs, output / "claims", lambda job: workspace.is_job_done(bench, job), do)
    if rank != 0:
        return []
    keys = [key for job in jobs for key in (job.key, *(one.key for one in job.measurements))]
    for path in map(bench.failure, dict.fromkeys(keys)):
        if path.exists():
            failure = read_json(path)
            say(f"failed: {failure['training']}: {failure['why']}; remove {path} to try again")
    origin = TableOrigin(
        preset_name,
        settings.seed,
        {name: str(value) for name, value in changed.items()},
        __version__,
        _device_name(device),
    )
    return [path for one in experiments for path in _write(one, plan, bench, origin)]


def select_experiments(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, each once; all of them for "all"."""
    wanted = experiment.experiment_names() if list(names) == ["all"] else list(dict.fromkeys(names))
    alone = next((name for name in wanted if name in ("all", "list")), None)
    if alone is not None:
        raise InputError(f"'{alone}' stands alone, without the names of tables: selfmark reproduce {alone}")
    if not wanted:
        raise InputError("name a table, or 'all'; 'selfmark reproduce list' shows those there are")
    return [experiment.load_experiment(name) for name in wanted]


def preview_plan(
    names: Sequence[str],
    data: Path | None,
    preset_name: str,
    changes: Mapping[str, Any],
    device: str = "auto",
) -> list[str]:
    """What would be trained, in lines, and an estimate of its cost; works without the data too."""
    experiments, _ = _asked(names, preset_name, changes, device)
    plan = make_plan(experiments, cost.DatasetNames(), preset_name, changes)
    lines = []
    for name, points in required_datasets(experiments):
        words = "" if data is None else DatasetCache(data, data).missing(name, points)
        lines.append(f"data  {name}{f' with {points} points' if points else ''}: {words or 'is there'}")
    if data is None:
        lines = []
    for training in plan.trainings.values():
        minutes = cost.training_seconds(training) / 60
        what = "both stages" if training.stages > 1 else "Stage 1"
        given = " ".join(f"{key}={value}" for key, value in sorted(training.settings.items()))
        lines.append(f"train {training.data}: {what}, {given}, {minutes:.1f} GPU min")
    lines.append(
        f"in all {len(plan.trainings)} trainings and {len(plan.measurements)} measurements, about "
        f"{cost.estimate_minutes(plan):.0f} minutes of one NVIDIA H200 (extrapolated to the paper's images)"
    )
    return lines


def list_experiments() -> list[tuple[str, str, str]]:
    """Name, place in the paper and title of every experiment."""
    return [
        (one.name, one.place, one.title)
        for one in map(experiment.load_experiment, experiment.experiment_names())
    ]


# --- before anything is trained --------------------------------------------------------------------------


def _asked(
    names: Sequence[str], preset_name: str, changes: Mapping[str, Any], device: str
) -> tuple[list[Experiment], Config]:
    """Experiments and the settings for all of them, checked before data is read, which takes minutes."""
    experiments, settings = select_experiments(names), override(preset(preset_name), changes)
    check_rows_differ(experiments, changes)
    select_device(device)
    return experiments, settings


def _own_device(device: str) -> tuple[int, str]:
    """This process's number and GPU.

    Processes of torchrun work on trainings of their own here: what would make them share one is taken away.
    """
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    several = int(os.environ.pop("WORLD_SIZE", "1")) > 1
    where = select_device(device)
    if where.type != "cuda" or not several:
        return rank, device
    if local >= torch.cuda.device_count():
        raise InputError(
            f"this machine has {torch.cuda.device_count()} GPUs: --nproc-per-node must not be more"
        )
    torch.cuda.set_device(local)
    return rank, f"cuda:{local}"


def _missing(
    experiments: Sequence[Experiment], shelf: DatasetCache, allowed: bool, say: Say
) -> frozenset[tuple[str, int | None]]:
    """Data sets that cannot be used; unless that is allowed, the first is said and nothing is made."""
    needed = required_datasets(experiments)
    reasons = {key: reason for key in needed if (reason := shelf.missing(*key))}
    if reasons and (not allowed or len(reasons) == len(needed)):
        more = "" if allowed else "; --allow-missing makes what can be made without it"
        raise InputError(next(iter(reasons.values())) + more)
    for reason in reasons.values():
        say(f"left out: {reason}")
    return frozenset(reasons)


def _require_weights(plan: ExperimentPlan, free: bool, say: Say) -> None:
    """Learned detectors need their weights, better said now than after hours; and have licenses.

    Args:
        free: whether the tables leave open what is started from, so that another detector would do.
    """
    for measurement in plan.measurements.values():
        training = measurement.training
        own = training.config.keypoints
        asked = set(measurement.detectors)
        asked |= {own.detector} if training.start is None and not own.weights and not asked else set()
        for name in sorted(asked & set(PUBLISHED_WEIGHTS)):
            if not (cache_folder() / PUBLISHED_WEIGHTS[name].file).exists():
                other = free and name not in measurement.detectors
                more = ", or start from another with --set keypoints.detector=selfmark" if other else ""
                raise InputError(
                    f"the keypoint detector '{name}' has no weights here; get them with 'selfmark weights "
                    f"{name}'{more}"
                )
            notice = license_notice(name)
            if notice:
                say(notice)


# --- when all is done ------------------------------------------------------------------------------------


def _write(one: Experiment, plan: ExperimentPlan, bench: Workspace, origin: TableOrigin) -> list[Path]:
    origin = replace(origin, regressor=_regressor(one, plan), notes=_notes(one, plan, bench))
    values = {
        (row.name, column.name): _value(one.name, row.name, column.name, plan, bench)
        for row in one.own_rows
        for column in one.columns
    }
    if one.kind == "table":
        return write_tables(one, values, origin, bench.output)
    paths = write_figure(one, values, bench.output)
    page = bench.output / f"{one.name}.md"
    lines = [f"# {one.title}", "", *build_paragraphs(one, origin), f"![{one.title}]({one.name}.png)", ""]
    with atomic_write(page) as temporary:
        temporary.write_text("\n".join(lines), encoding="utf-8")
    return [page, *paths]


def _measurements(one: Experiment, plan: ExperimentPlan) -> list[Measurement]:
    """Those of the table's cells, in order; cells whose data is missing have none."""
    keys = [cell.measurement for (name, _, _), cell in plan.cells.items() if name == one.name]
    return [plan.measurements[key] for key in filter(None, keys)]


def _regressor(one: Experiment, plan: ExperimentPlan) -> str:
    """How errors of the table were regressed; data sets may differ in it."""
    ridges: dict[float, dict[str, None]] = {}
    for measurement in _measurements(one, plan):
        ridge = measurement.evaluation.get("ridge", measurement.training.config.evaluation.ridge)
        ridges.setdefault(float(ridge), {})[measurement.data] = None
    if len(ridges) < 2:
        return "".join(f"ridge {ridge:g}" for ridge in ridges)
    return ", ".join(f"ridge {ridge:g} ({' and '.join(data)})" for ridge, data in ridges.items())


def _notes(one: Experiment, plan: ExperimentPlan, bench: Workspace) -> tuple[str, ...]:
    """What could not be done as in the paper with the data sets that are here, and what was left out."""
    shelf = bench.shelf
    here = [key for key in required_datasets([one]) if not shelf.missing(*key)]
    said = [f"{name}: {note}." for name, points in here for note in shelf.hold(name, points).data.notes]
    for measurement in _measurements(one, plan):
        training = measurement.training
        if training.start is not None:
            held = shelf.hold(training.data, training.points)
            said += [f"{training.data}: {note}." for note in held.start_notes(training.start)]
        if not bench.has_failed(measurement):
            said += [f"{measurement.data}: {note}" for note in bench.figures(measurement).get("notes", ())]
    return tuple(dict.fromkeys(said))


def _value(name: str, row: str, column: str, plan: ExperimentPlan, bench: Workspace) -> Value:
    cell = plan.cells[name, row, column]
    if cell.measurement is None:
        return ABSENT
    measurement = plan.measurements[cell.measurement]
    if bench.has_failed(measurement):
        return FAILED
    found, argument = parse_metric(cell.metric)
    value = found.read(bench.figures(measurement), argument)
    return str(bench.folder(measurement) / str(value)) if found.kind == "picture" else value


def _device_name(device: str) -> str:
    where = select_device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
