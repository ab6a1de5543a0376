"""One declared run: discover, evaluate, and write its rows, its contact sheet and, if wanted, its model."""

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
from rows import EVALUATION, RIDGES, Declared, Settings, run_name
from sets import SETS, DataSet, annotated_points, is_there, working_copy
from smoke import SMOKE, thinned

from selfmark.config import Config, override, preset
from selfmark.detector import Detector
from selfmark.discovery import discover
from selfmark.evaluate.evaluation import evaluate_run
from selfmark.evaluate.label_files import read_ground_truth
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.keypoints.weights_cache import KNOWN
from selfmark.report.landmark_pictures import draw_contact_sheet
from selfmark.run.devices import select_device
from selfmark.run.files import write_json
from selfmark.run.folder import Run

Figures = dict[str, Any]

SHEET_IMAGES, SHEET_COLUMNS, SHEET_TILE = 30, 6, 256


@dataclass(frozen=True)
class Place:
    """Where things are, and what is true of all runs of one call.

    data:     folder of the data sets, zipped or not
    weights:  folder of the learned detectors' weights
    work:     run folders and unpacked data; a run that was stopped goes on from there
    out:      rows, contact sheets and models
    """

    data: Path
    weights: Path
    work: Path
    out: Path
    commit: str
    processes: int
    smoke: bool
    keep_model: bool

    def rows(self, name: str) -> Path:
        return self.out / f"{name}.json"

    def prepare(self, data: str) -> bool:
        """Unpack a data set before several runs need it at once; false if it is not there."""
        there = is_there(data, self.data, self.work)
        if there:
            self.prepared(data)
        return there

    def prepared(self, data: str) -> tuple[Path, DataSet]:
        """A data set's folder and what is in it."""
        folder = working_copy(data, self.data, self.work)
        return folder, thinned(SETS[data], folder) if self.smoke else SETS[data]


def carry_out(declared: Declared, seed: int, place: Place) -> Figures:
    """Make one run and write OUT/NAME.json last, so that it exists only if the run is complete."""
    name = run_name(declared.name, seed)
    folder, dataset = place.prepared(declared.data)
    settings = settle(declared, seed, place, folder, dataset)
    config = override(preset(declared.preset), settings)
    path = place.work / "runs" / name
    seconds = {
        "discover": _discover(path, declared.preset, settings, [folder / one for one in dataset.inputs])
    }

    started = time.monotonic()
    evaluations = {
        name: _evaluate(path, folder, dataset, changes)
        for name, changes in {declared.name: {}, **declared.variants}.items()
    }
    detector = Detector.load(path, select_device("auto"))
    figures = motion.measure(detector, list_images([folder / dataset.video]), config) if dataset.video else {}
    place.out.mkdir(parents=True, exist_ok=True)
    images = list_images([folder / one for one in dataset.images])
    _sheet(
        detector, read_ground_truth(folder / dataset.labels, images).refs, config, place.out / f"{name}.jpg"
    )
    seconds["evaluate"] = round(time.monotonic() - started, 1)

    run = Run.open(path)
    result = {
        "run": _about(declared, name, run, evaluations[declared.name], place)
        | {"seconds": seconds, **figures},
        "rows": [
            row
            for row_name, metrics in evaluations.items()
            for row in _rows(row_name, name, declared, config, metrics, seconds["discover"], place)
        ],
    }
    if place.keep_model:
        shutil.copytree(run.model, place.out / f"{name}-model", dirs_exist_ok=True)
    write_json(result, place.rows(name))
    shutil.rmtree(path)  # checkpoints of many runs would fill a disk
    return result


def settle(declared: Declared, seed: int, place: Place, folder: Path, dataset: DataSet) -> Figures:
    """What differs from the preset in one run; paths among it are those of this machine."""
    settings: Figures = {**declared.settings, **EVALUATION, "seed": seed}
    known = KNOWN.get(settings["keypoints.detector"])
    if known is not None and (place.weights / known.file).is_file():
        settings["keypoints.weights"] = str(place.weights / known.file)
    if declared.points == "annotated":
        settings["keypoints.points_file"] = str(annotated_points(folder, dataset.train_labels, seed))
    return {**settings, **SMOKE} if place.smoke else settings


# --- discover and evaluate -------------------------------------------------------------------------------


def _discover(path: Path, preset_name: str, settings: Settings, inputs: Sequence[Path]) -> float:
    """Train, or go on with training that was stopped; returns the seconds it took in all."""
    begun = (path / "run.json").exists()
    if begun and Run.open(path).config != override(preset(preset_name), settings):
        begun = False  # under other settings
    if begun:
        print(f"{path.name}: goes on where it stood", flush=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
    before = _spent(Run.open(path).events()) if begun else 0.0
    started = time.monotonic()
    discover(() if begun else inputs, output=path, preset=preset_name, settings=settings, resume=begun)
    return round(before + time.monotonic() - started, 1)


def _spent(events: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the first to the last event of every attempt at a run.

    >>> _spent([{"time": 5, "event": "start"}, {"time": 6, "event": "plan"}, {"time": 9, "event": "train"},
    ...         {"time": 50, "event": "plan"}, {"time": 52, "event": "train"}])
    6
    """
    begins = [row for row, event in enumerate(events) if event["event"] == "plan"]  # one per attempt
    edges = [0, *begins[1:], len(events)]
    spent: float = sum(events[stop - 1]["time"] - events[first]["time"] for first, stop in pairwise(edges))
    return spent


def _evaluate(path: Path, folder: Path, dataset: DataSet, changes: Settings) -> Figures:
    return evaluate_run(
        path,
        [folder / one for one in dataset.images],
        folder / dataset.labels,
        train_labels=folder / dataset.train_labels,
        normalizer=dataset.normalizer,
        by=dataset.by,
        settings=changes,
    )


# --- what is written -------------------------------------------------------------------------------------


def _rows(
    row_name: str,
    name: str,
    declared: Declared,
    config: Config,
    metrics: Figures,
    seconds: float,
    place: Place,
) -> list[Figures]:
    """One row per stage and ridge."""
    shared = {
        "name": row_name,
        "run": name,
        "data": declared.data,
        "k": config.K,
        "m": config.M,
        "keypoints": "annotated points" if declared.points else config.keypoints.detector,
        "preset": config.preset,
        "seed": config.seed,
    }
    common = {
        "mean_shape": round(metrics["guessing"]["forward"], 3),
        "minutes": round(seconds / 60, 2),
        "hardware": hardware(),
        "commit": place.commit,
    }
    if place.smoke:
        shared["smoke"] = True
    stages: dict[int, dict[str, Figures]] = {
        1: {row["regressor"]: row for row in metrics["stage1"]["errors"]},
        2: {
            row["regressor"]: {way: row[way]["mean"] for way in ("forward", "backward")}
            for row in metrics["errors"]
            if row["all"]
        },
    }
    points = {1: round(metrics["stage1"]["points_per_image"], 2), 2: config.K}
    return [
        {
            **shared,
            "stage": stage,
            "ridge": ridge,
            "forward": round(found[f"ridge {ridge:g}"]["forward"], 3),
            "backward": round(found[f"ridge {ridge:g}"]["backward"], 3),
            **common,
            "points_per_image": points[stage],
            **({"mean_shape_backward": round(metrics["guessing"]["backward"], 3)} if stage == 2 else {}),
        }
        for stage, found in stages.items()
        for ridge in RIDGES
    ]


def _about(declared: Declared, name: str, run: Run, metrics: Figures, place: Place) -> Figures:
    """What is worth keeping of a run besides its rows."""
    events = run.events()
    checks = metrics["unlabelled"]
    return {
        "name": name,
        "data": declared.data,
        "preset": declared.preset,
        "settings": dict(declared.settings),
        "digest": declared.digest(),
        "images": next(event["used"] for event in events if event["event"] == "images"),
        "first_keypoints": next(event["points"] for event in events if event["event"] == "keypoints"),
        "first_keypoints_precision": {key: _rounded(value) for key, value in metrics["precision"].items()},
        "rounds": [
            {key: event[key] for key in ("found_per_image", "kept_per_image", "labelled_share")}
            for event in events
            if event["event"] == "recovery"
        ],
        "normaliser": metrics["normaliser"],
        "train_images": metrics["train_images_used"],
        "test_images": metrics["test_images_used"],
        "by": metrics["by"],
        "backward_by_landmark": [_rounded(one) for one in metrics["headline"]["backward"]["by_point"]],
        "trust": [_rounded(one) for one in checks["trust"]],
        "found": [_rounded(one) for one in checks["found"]],
        "note": SETS[declared.data].note,
        "processes": place.processes,
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {len(os.sched_getaffinity(0))} cores"


def _sheet(detector: Detector, refs: Sequence[ImageRef], config: Config, path: Path) -> None:
    """About thirty of the images, as the network sees them, with their landmarks."""
    rows = np.unique(np.linspace(0, len(refs) - 1, min(SHEET_IMAGES, len(refs))).astype(int))
    store = load_store([refs[row] for row in rows], config.images, float("inf"), None)
    xy = detector.locate(store.pixels).xy.cpu().numpy()
    sheet = draw_contact_sheet(store.pixels.permute(0, 2, 3, 1).numpy(), xy, SHEET_COLUMNS)
    width = SHEET_COLUMNS * SHEET_TILE
    height = round(sheet.shape[0] * width / sheet.shape[1])
    small = cv2.resize(sheet, (width, height), interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(path), small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 88])
