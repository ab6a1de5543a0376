"""Find out how many iterations a method can do in a given time: train for a few iterations and measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from selfmark.comparison.jobs import UNTRAINED_SETTINGS, Job
from selfmark.config import Config, override, resolve_preset, settings_of_method
from selfmark.config.schedule import scale_schedule, schedule_settings
from selfmark.discovery import open_run, train_run
from selfmark.errors import SelfmarkError
from selfmark.images.sources import list_images
from selfmark.pipeline_steps import show_nothing
from selfmark.run.folder import Run
from selfmark.run.guarded_files import remove_folder
from selfmark.run_plan import RunInputs, RunOptions
from selfmark.sampling import evenly_spaced

_PILOT_IMAGES = 64
_PILOT_ITERATIONS = 12  # of each phase
# A training this short finds few keypoints and no good clusters, and must nevertheless run to its end.
_PILOT_SETTINGS: dict[str, Any] = {
    "runtime.log_every": 2,
    "heatmaps.threshold": 0.0,
    "guards.min_points": 0.0,
    "guards.min_descriptor_spread": 0.0,
    "guards.max_empty_fraction": 1.0,
    "mallis2020.merges": 0,  # so that Stage 2 is one phase
}
_SKIPPED_ITERATIONS = 4  # the first ones, which include one-time costs
_MIN_FACTOR, _MAX_FACTOR = 0.01, 50.0  # limits of the change of the schedule


def plan_schedule(job: Job, device: torch.device) -> dict[str, Any]:
    """Return the iterations of all phases such that the training takes the budget, by dotted name.

    For the untrained network, these are the settings that leave it untrained.

    Args:
        job: the method and its budget.
        device: device to compute on.
    """
    if job.name == "untrained":
        return dict(UNTRAINED_SETTINGS)
    base = base_config(job, device)
    if job.method == "zero-shot":
        return schedule_settings(base)
    seconds = _predict_seconds(base, measure_pace(job))
    factor = min(max(job.comparison.budget / seconds, _MIN_FACTOR), _MAX_FACTOR)
    return schedule_settings(scale_schedule(base, factor))


def base_config(job: Job, device: torch.device) -> Config:
    """Return the settings of the preset, with those of the comparison."""
    comparison = job.comparison
    features = None if job.uses_features else "none"
    num_images = len(list_images(list(comparison.images)))
    config, _ = resolve_preset(
        comparison.preset, device.type == "cuda", num_images, comparison.landmarks, features
    )
    return override(config, {"method": job.method, **settings_of_method(job.method), **job.settings})


def measure_pace(job: Job) -> dict[str, float]:
    """Train on a few images for a few iterations; return the seconds per iteration of each phase."""
    comparison = job.comparison
    refs = list_images(list(comparison.images))
    # Of videos, whole files are given, and frames are left out.
    chosen = dict.fromkeys(str(refs[row].path) for row in evenly_spaced(len(refs), _PILOT_IMAGES))
    folder = job.folder / "pilot"
    remove_folder(folder)
    short = dict.fromkeys(schedule_settings(Config()), _PILOT_ITERATIONS)
    settings = {**job.settings, **short, **_PILOT_SETTINGS}
    try:
        options = RunOptions(
            comparison.landmarks,
            folder,
            comparison.preset,
            settings,
            device=job.device,
            method=job.method,
            verify=False,
        )
        inputs = RunInputs(list(chosen), max(1, len(refs) // _PILOT_IMAGES))
        with open_run(inputs, options, None) as opened:
            train_run(*opened, on_preview=show_nothing)
    except SelfmarkError:
        if not (folder / "run.json").exists():
            raise
        # A training this short may end without landmarks; its pace is known nevertheless.
    events = Run.open(folder).events()
    remove_folder(folder)
    return seconds_per_iteration(events)


def seconds_per_iteration(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the seconds per iteration of each phase, without its first iterations.

    >>> shared = {"event": "train", "stage": "method", "round": 0, "start": 0}
    >>> rows = [(2, 9.0), (4, 10.0), (8, 12.0), (12, 14.0)]
    >>> seconds_per_iteration([{**shared, "iteration": i, "seconds": s} for i, s in rows])
    {'method': 0.5}
    """
    times: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        # Of several rounds of a stage, the first one counts.
        if event["event"] != "train" or event["round"] > 1:
            continue
        if event["iteration"] - event["start"] >= _SKIPPED_ITERATIONS:
            times.setdefault(event["stage"], []).append((event["iteration"], event["seconds"]))
    return {
        stage: (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])
        for stage, rows in times.items()
        if rows[-1][0] > rows[0][0]
    }


def _predict_seconds(config: Config, pace: Mapping[str, float]) -> float:
    """Return how long the training of a schedule takes."""
    iterations = {
        "method": config.methods.iterations,
        "warm-up": config.warmup.iterations,
        "round": config.rounds.count * config.rounds.iterations,
        "stage 2": config.stage2.iterations,
        "student": config.student.rounds * config.student.iterations,
        "keypoints": config.student.rounds * config.student.iterations,
    }
    return max(
        1e-6, sum(iterations[stage] * seconds for stage, seconds in pace.items() if stage in iterations)
    )


def remove_pilot(folder: Path) -> None:
    """Delete what an interrupted measurement left behind."""
    remove_folder(folder / "pilot")
