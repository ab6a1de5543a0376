"""Train one method of a comparison and measure its errors; `runner` does this in a separate process."""

from __future__ import annotations

import time
from typing import Any

import torch

from selfmark.comparison.comparison_plan import MethodJob
from selfmark.comparison.pace import plan_schedule
from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.errors import (
    DamagedFile,
    DiskError,
    InputError,
    NotEnoughData,
    SelfmarkError,
    TrainingError,
    UnsafeFile,
)
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.labeled_run import build_examples
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.on_object import fraction_on_object
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.images.sources import list_images
from selfmark.run.devices import select_device
from selfmark.run.files import read_json, write_json
from selfmark.run.folder import Listener, Run
from selfmark.run.guarded_files import make_folders
from selfmark.run.json_schema import (
    Check,
    is_bool,
    is_count,
    is_dict_of,
    is_none_or,
    is_number,
    is_text,
    require_fields,
)
from selfmark.run.locks import FolderLocked
from selfmark.run.processes import measure_peak_memory

Row = dict[str, Any]
# The page shows no curves, so regressors are fitted on all images only, not on subsets. `discover` has
# already run the checks without labels, so their repetition is kept short.
_EVALUATION: dict[str, Any] = {"fit_images": [], "draws": 1, "num_samples": 6, "deformations": 1}
# Maximum distance between a landmark on the object and the hull of the annotated points, as a fraction of the
# image side.
_TOLERANCE = 0.02
# Names and types of the fields of a row; measured values are None if the method failed.
_NUMBERS = (
    *("forward", "guessing_forward", "backward", "guessing_backward", "hits", "on_object"),
    *("minutes", "training_minutes", "memory_gigabytes"),
)
_TEXTS = ("verdict", "device", "torch")


def _is_setting(value: Any) -> bool:
    """Return True if a setting can have this value; `discover` checks later which type the setting needs."""
    return is_number(value) or is_bool(value) or is_text(value)


_ROW: dict[str, Check] = {
    "method": is_text,
    "k": is_count,
    "seed": is_count,
    "budget_minutes": is_number,
    "failure": is_text,
    "iterations": is_none_or(is_dict_of(_is_setting)),
    **dict.fromkeys(_NUMBERS, is_none_or(is_number)),
    **dict.fromkeys(_TEXTS, is_none_or(is_text)),
}


def measure_method(job: MethodJob, listener: Listener | None = None) -> Row:
    """Train and measure a method, unless its result exists; resume an interrupted training.

    A failed method gets a row that says why. If the cause may be temporary, an exception is raised and no row
    is written, so that the method can be resumed.

    Raises:
        DiskError: if the disk is full or cannot be written.
        FolderLocked: if another process works on the run of the method.
        DamagedFile: if weights or another file that the method needs are damaged.
        UnsafeFile: if a file that the method needs is not safe to read or write.
        InputError: if an earlier attempt cannot be continued.
    """
    if job.result_file.exists():
        return _read_row(job)
    make_folders(job.folder)
    device = select_device(job.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    is_resumed = job.schedule_file.exists()
    try:
        row = _train_and_measure(job, device, listener)
    except (DiskError, FolderLocked, DamagedFile, UnsafeFile):
        raise
    except SelfmarkError as error:
        if is_resumed and not isinstance(error, TrainingError | NotEnoughData):
            # The first attempt accepted the same inputs, so a file is probably missing or damaged.
            raise InputError(f"{error}; if nothing else helps, delete {job.folder} to train again") from error
        row = _empty_row(job) | {"failure": str(error)}
    write_json(row, job.result_file)
    return row


def _read_row(job: MethodJob) -> Row:
    """Read the row of a finished method; raise an InputError if the file is not such a row."""
    row = read_json(job.result_file)
    try:
        require_fields(row, _ROW)
        if row["method"] != job.name:
            raise ValueError(f"it is the result of {row['method']}")
        if not row["failure"]:
            require_fields(row, dict.fromkeys(("forward", "minutes"), is_number))
    except ValueError as error:
        raise InputError(
            f"{job.result_file} is not a result of a comparison ({error}): delete it to measure again"
        ) from error
    return dict(row)


def _train_and_measure(job: MethodJob, device: torch.device, listener: Listener | None) -> Row:
    """Plan the schedule, train, evaluate, and return the row of the method."""
    comparison = job.comparison
    if not job.schedule_file.exists():
        write_json(plan_schedule(job, device), job.schedule_file)
    schedule = read_json(job.schedule_file)
    if not is_dict_of(_is_setting)(schedule):
        raise DamagedFile(f"{job.schedule_file} is not a schedule: delete it to measure the pace again")
    resume = (job.run_folder / "run.json").exists()
    started = time.monotonic()
    detector = discover(
        () if resume else list(comparison.images),
        landmarks=None if resume else comparison.landmarks,
        output=job.run_folder,
        preset=comparison.preset,
        settings={} if resume else {**job.settings, **schedule},
        resume=resume,
        device=job.device,
        listener=listener,
        method=job.method,
        verify=None if resume else False,
    )
    minutes = (time.monotonic() - started) / 60
    metrics = evaluate_run(
        job.run_folder,
        EvaluationInputs(
            comparison.evaluated_images, comparison.labels, train_labels=comparison.train_labels
        ),
        EvaluationOptions(comparison.normalizer, settings=_EVALUATION),
        output=job.folder,
        device=job.device,
    )
    raw = next(iter(metrics["raw"].values()))
    return _empty_row(job) | {
        "k": len(detector.names),
        "forward": metrics["headline"]["forward"]["error"],
        "guessing_forward": metrics["guessing"]["forward"],
        "backward": metrics["headline"]["backward"]["error"],
        "guessing_backward": metrics["guessing"]["backward"],
        "hits": raw["average"],
        "on_object": _measure_on_object(job, detector),
        "verdict": detector.card.verdict,
        "minutes": round(minutes, 2),
        "training_minutes": round(_training_seconds(Run.open(job.run_folder)) / 60, 2),
        "memory_gigabytes": round(_peak_memory(device) / 2**30, 2),
        "iterations": {} if job.name == "untrained" else schedule,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
    }


def _empty_row(job: MethodJob) -> Row:
    """Return a row in which all measured values are None."""
    comparison = job.comparison
    return {
        "method": job.name,
        "k": comparison.landmarks,
        "seed": comparison.seed,
        "budget_minutes": comparison.budget / 60,
        "failure": "",
    } | dict.fromkeys((*_NUMBERS, *_TEXTS, "iterations"))


def _measure_on_object(job: MethodJob, detector: Detector) -> float | None:
    """Return the fraction of landmarks on the object in the labeled images, see `fraction_on_object`."""
    comparison = job.comparison
    truth = read_ground_truth(comparison.labels, list_images(comparison.evaluated_images))
    predicted = detector.predict_network_pixels(truth.refs)
    size = detector.card.images.size
    spec = comparison.normalizer or choose_normalizer(truth)
    examples = build_examples(truth.select(predicted.rows), predicted.xy, predicted.regions, spec, size)
    return fraction_on_object(examples, _TOLERANCE * size)


def _training_seconds(run: Run) -> float:
    """Return the seconds of all training phases, including those before a run was resumed."""
    seconds: dict[tuple[str, int, int], float] = {}
    attempt = 0
    for event in run.events():
        attempt += event["event"] == "plan"
        if event["event"] == "train":  # `seconds` counts from the start of the phase; keep the last value
            seconds[event["stage"], event["round"], attempt] = event["seconds"]
    return sum(seconds.values())


def _peak_memory(device: torch.device) -> int:
    """Return the largest memory that this process has used on its device, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return measure_peak_memory()
