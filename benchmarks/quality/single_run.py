"""Execute a single run: discover, evaluate, and write the results.

The results are a file with result rows (one per evaluation, stage and ridge), a contact sheet and optionally
the model.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import motion
import numpy as np
import torch
from detector_errors import measure_readout_errors
from experiments import EVALUATION, RIDGES, Experiment, Settings, build_run_name
from mirror_variants import override_unpaired_treatment
from quality_data import DATASETS, Dataset, is_available, prepare_working_copy, write_annotated_points
from smoke import SMOKE, reduce_dataset
from validation_split import select_validation_part

from selfmark.config import Config, Images, override, preset
from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.evaluation.run_evaluation import EvaluationInputs, EvaluationOptions, evaluate_run
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.report.landmark_pictures import draw_contact_sheet
from selfmark.run.devices import select_device
from selfmark.run.files import write_json
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced
from selfmark.weights_cache import PUBLISHED_WEIGHTS

Record = dict[str, Any]

SHEET_IMAGES, SHEET_COLUMNS = 30, 6
SHEET_TILE = 256  # pixels


@dataclass(frozen=True)
class Workspace:
    """Folders and options that all runs of one `run.py` command share.

    Attributes:
        data: Folder with the data sets, zipped or not.
        weights: Folder with the published weights of the learned keypoint detectors (such as SuperPoint).
        work: Folder for unpacked data and run folders; interrupted runs resume from there.
        out: Folder for result files, contact sheets and models.
        commit: Git commit of the code.
        processes: Number of runs executed in parallel.
        smoke: Whether to make trial runs of a few seconds.
        keep_model: Whether to copy the model folders to `out`.
    """

    data: Path
    weights: Path
    work: Path
    out: Path
    commit: str
    processes: int
    smoke: bool
    keep_model: bool

    def result_path(self, name: str) -> Path:
        """Return the path of the result file of a run."""
        return self.out / f"{name}.json"

    def prepare(self, dataset_name: str) -> bool:
        """Unpack a data set before several runs use it at once; return False if it is not available."""
        available = is_available(dataset_name, self.data, self.work)
        if available:
            self.open_dataset(dataset_name, "validation")
        return available

    def open_dataset(self, dataset_name: str, part: str = "test") -> tuple[Path, Dataset]:
        """Return the working copy of a data set and its description, for the part "test" or "validation"."""
        folder, dataset = prepare_working_copy(dataset_name, self.data, self.work), DATASETS[dataset_name]
        if part == "validation":
            dataset = select_validation_part(dataset, folder)
        return folder, reduce_dataset(dataset, folder) if self.smoke else dataset


def execute_run(experiment: Experiment, seed: int, workspace: Workspace) -> Record:
    """Execute one run. Its result file is written last, so it exists only if the run is complete."""
    name = build_run_name(experiment.name, seed)
    folder, dataset = workspace.open_dataset(experiment.data, experiment.part)
    settings = build_settings(experiment, seed, workspace, folder, dataset)
    config = override(preset(experiment.preset), settings)
    path = workspace.work / "runs" / name
    inputs = [folder / file for file in dataset.inputs]
    with override_unpaired_treatment(experiment.unpaired_treatment):
        seconds = {"discover": _discover(path, experiment.preset, settings, inputs)}

    started = time.monotonic()
    evaluations = {
        row_name: _evaluate(path, folder, dataset, changes)
        for row_name, changes in {experiment.name: {}, **experiment.variants}.items()
    }
    detector = Detector.load(path, select_device("auto"))
    video_metrics = (
        motion.measure(detector, list_images([folder / dataset.video]), config) if dataset.video else {}
    )
    workspace.out.mkdir(parents=True, exist_ok=True)
    images = [folder / file for file in dataset.images]
    errors_by_readout = (
        measure_readout_errors(
            detector,
            (images, folder / dataset.train_labels),
            (images, folder / dataset.labels),
            dataset.normalizer,
        )
        if experiment.part == "validation"
        else []
    )
    write_contact_sheet(
        detector,
        read_ground_truth(folder / dataset.labels, list_images(images)).refs,
        config.images,
        workspace.out / f"{name}.jpg",
    )
    seconds["evaluate"] = round(time.monotonic() - started, 1)

    run = Run.open(path)
    result = {
        "run": _describe_run(experiment, name, run, evaluations[experiment.name], workspace)
        | {"seconds": seconds, **video_metrics}
        | ({"readings": errors_by_readout, "unpaired": detector.card.unpaired} if errors_by_readout else {}),
        "rows": [
            row
            for row_name, metrics in evaluations.items()
            for row in _build_rows(
                row_name, name, experiment, config, metrics, seconds["discover"], workspace
            )
        ],
    }
    if workspace.keep_model:
        shutil.copytree(run.model_folder, workspace.out / f"{name}-model", dirs_exist_ok=True)
    write_json(result, workspace.result_path(name))
    shutil.rmtree(path)  # the checkpoints of many runs would fill the disk
    return result


def build_settings(
    experiment: Experiment, seed: int, workspace: Workspace, folder: Path, dataset: Dataset
) -> Record:
    """Return the settings of one run that differ from the preset, including paths of files."""
    settings: Record = {**experiment.settings, **EVALUATION, "seed": seed}
    published = PUBLISHED_WEIGHTS.get(settings["keypoints.detector"])
    if published is not None and (workspace.weights / published.file).is_file():
        settings["keypoints.weights"] = str(workspace.weights / published.file)
    if experiment.points == "annotated":
        settings["keypoints.points_file"] = str(write_annotated_points(folder, dataset.train_labels, seed))
    return {**settings, **SMOKE} if workspace.smoke else settings


# --- discover and evaluate -------------------------------------------------------------------------------


def _discover(path: Path, preset_name: str, settings: Settings, inputs: Sequence[Path]) -> float:
    """Discover landmarks, or resume an interrupted run; return the seconds of all attempts."""
    resume = (path / "run.json").exists()
    if resume and Run.open(path).config != override(preset(preset_name), settings):
        resume = False  # the interrupted run used other settings
    if resume:
        print(f"{path.name}: resuming", flush=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
    before = _sum_elapsed_seconds(Run.open(path).events()) if resume else 0.0
    started = time.monotonic()
    discover(() if resume else inputs, output=path, preset=preset_name, settings=settings, resume=resume)
    return round(before + time.monotonic() - started, 1)


def _sum_elapsed_seconds(events: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds from the first to the last event, summed over all attempts at a run.

    >>> first = [{"time": 5, "event": "start"}, {"time": 6, "event": "plan"}, {"time": 9, "event": "train"}]
    >>> resumed = [{"time": 50, "event": "plan"}, {"time": 52, "event": "train"}]
    >>> _sum_elapsed_seconds(first + resumed)
    6
    """
    starts = [row for row, event in enumerate(events) if event["event"] == "plan"]  # one per attempt
    edges = [0, *starts[1:], len(events)]
    elapsed: float = sum(events[stop - 1]["time"] - events[first]["time"] for first, stop in pairwise(edges))
    return elapsed


def _evaluate(path: Path, folder: Path, dataset: Dataset, changes: Settings) -> Record:
    return evaluate_run(
        path,
        EvaluationInputs(
            [folder / file for file in dataset.images],
            folder / dataset.labels,
            train_labels=folder / dataset.train_labels,
        ),
        EvaluationOptions(dataset.normalizer, by=dataset.breakdown_fields, settings=changes),
    )


# --- output ----------------------------------------------------------------------------------------------


def _build_rows(
    row_name: str,
    run: str,
    experiment: Experiment,
    config: Config,
    metrics: Record,
    seconds: float,
    workspace: Workspace,
) -> list[Record]:
    """Return one row per stage and ridge.

    Args:
        row_name: Name of the row; that of the experiment or of one of its variants.
        run: Name of the run.
        experiment: The experiment.
        config: Settings of the run.
        metrics: Result of the evaluation.
        seconds: Duration of the discovery.
        workspace: Folders and options.
    """
    run_columns = {
        "name": row_name,
        "run": run,
        "data": experiment.data,
        "k": config.K,
        "m": config.M,
        "keypoints": "annotated points" if experiment.points else config.keypoints.detector,
        "preset": config.preset,
        "seed": config.seed,
    }
    context_columns = {
        # The forward error of predicting the mean shape for every image.
        "mean_shape": round(metrics["guessing"]["forward"], 3),
        "minutes": round(seconds / 60, 2),
        "hardware": describe_hardware(),
        "commit": workspace.commit,
    }
    if workspace.smoke:
        run_columns["smoke"] = True
    stages: dict[int, dict[str, Record]] = {
        1: {row["regressor"]: row for row in metrics["stage1"]["errors"]},
        2: {
            row["regressor"]: {direction: row[direction]["mean"] for direction in ("forward", "backward")}
            for row in metrics["errors"]
            if row["all"]  # fitted on all training images
        },
    }
    points = {1: round(metrics["stage1"]["points_per_image"], 2), 2: config.K}
    return [
        {
            **run_columns,
            "stage": stage,
            "ridge": ridge,
            "forward": round(errors[f"ridge {ridge:g}"]["forward"], 3),
            "backward": round(errors[f"ridge {ridge:g}"]["backward"], 3),
            **context_columns,
            "points_per_image": points[stage],
            **_select_backward_columns(metrics, stage, errors[f"ridge {ridge:g}"]),
        }
        for stage, errors in stages.items()
        for ridge in RIDGES
    ]


def _select_backward_columns(metrics: Record, stage: int, errors: Record) -> Record:
    """Return the backward error of guessing, as a reference for the backward error of a row.

    For Stage 1, also return the error of the row and that of guessing for the found landmarks alone.
    """
    if stage == 2:
        return {"mean_shape_backward": round(metrics["guessing"]["backward"], 3)}
    guessing = metrics["stage1"]["guessing"]
    return {
        "mean_shape_backward": round(guessing["backward"], 3),
        "backward_found": _round_or_none(errors["backward_found"]),
        "mean_shape_backward_found": _round_or_none(guessing["backward_found"]),
    }


def _summarize_inter_ocular(metrics: Record) -> Record:
    """Return the errors of Stage 2 for both inter-ocular distances; empty without 68 facial points."""
    return {
        name: {
            key: round(value, 3)
            for direction in ("forward", "backward")
            for key, value in (
                (direction, entry["headline"][direction]["error"]),
                (f"guessing_{direction}", entry["guessing"][direction]),
            )
        }
        for name, entry in metrics["inter_ocular"].items()
    }


def _describe_run(
    experiment: Experiment, name: str, run: Run, metrics: Record, workspace: Workspace
) -> Record:
    """Return the published record of a run without its rows: data, settings, checks and versions."""
    events = run.events()
    checks = metrics["unlabelled"]
    return {
        "name": name,
        "data": experiment.data,
        "preset": experiment.preset,
        "settings": dict(experiment.settings),
        "digest": experiment.compute_digest(),
        "images": next(event["used"] for event in events if event["event"] == "images"),
        "first_keypoints": next(event["points"] for event in events if event["event"] == "keypoints"),
        "first_keypoints_precision": {
            key: _round_or_none(value) for key, value in metrics["precision"].items()
        },
        "rounds": [
            {key: event[key] for key in ("found_per_image", "kept_per_image", "labelled_share")}
            for event in events
            if event["event"] == "recovery"
        ],
        "normaliser": metrics["normaliser"],
        "train_images": metrics["train_images_used"],
        "test_images": metrics["test_images_used"],
        "by": metrics["by"],
        "inter_ocular": _summarize_inter_ocular(metrics),
        "backward_by_landmark": [
            _round_or_none(value) for value in metrics["headline"]["backward"]["by_point"]
        ],
        "trust": [_round_or_none(value) for value in checks["trust"]],
        "found": [_round_or_none(value) for value in checks["found"]],
        "note": DATASETS[experiment.data].note,
        "processes": workspace.processes,
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }


def _round_or_none(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def describe_hardware() -> str:
    """Return the name of the GPU, or the number of CPU cores."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {len(os.sched_getaffinity(0))} cores"


def write_contact_sheet(detector: Detector, refs: Sequence[ImageRef], images: Images, path: Path) -> None:
    """Write a contact sheet of at most 30 images, as the network sees them, with their landmarks."""
    rows = evenly_spaced(len(refs), SHEET_IMAGES)
    store = load_store([refs[row] for row in rows], images, float("inf"), None)
    xy = detector.locate(store.pixels).xy.cpu().numpy()
    sheet = draw_contact_sheet(store.pixels.permute(0, 2, 3, 1).numpy(), xy, SHEET_COLUMNS)
    width = SHEET_COLUMNS * SHEET_TILE
    height = round(sheet.shape[0] * width / sheet.shape[1])
    small = cv2.resize(sheet, (width, height), interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(path), small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 88])
