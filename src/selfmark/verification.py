"""Verify a run: train a second, shorter run on half of its images, and measure how well the two runs agree.

A run that will be verified holds out some of its images when it is created. Neither run is trained on these
images. The second run is trained on half of the other images. It has its own run folder, RUN/verification, so
that an interrupted verification can be resumed. This folder is deleted once the result is stored in
RUN/verification.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfmark.config import Config, override
from selfmark.config.schedule import scale_schedule
from selfmark.detector import Detector
from selfmark.errors import CollapsedTraining, NotEnoughData
from selfmark.evaluation.located_images import locate_images
from selfmark.evaluation.protocol import to_json_list
from selfmark.evaluation.second_run import PairedLandmarks, SecondRunErrors, compare_detectors
from selfmark.image_ref import ImageRef
from selfmark.images.splits import split_images
from selfmark.images.store import ImageStore, load_store
from selfmark.model_library import copy_model
from selfmark.points import FloatArray
from selfmark.run.event_log import Event
from selfmark.run.files import write_json
from selfmark.run.folder import START_FOLDER, Run, StartingPoint
from selfmark.run.guarded_files import remove_folder
from selfmark.run.time_left import SECOND_TRAINING
from selfmark.sampling import evenly_spaced

_FIT_IMAGES = 800  # images for the regressions that predict each detector's landmarks from the other's

Train = Callable[[Run, bool], Detector]
"""Trains the detector of a run; the second argument says whether the run was just created."""


def verify_run(run: Run, detector: Detector, store: ImageStore, train: Train) -> None:
    """Train a second detector and write RUN/verification.json; do nothing if this file exists.

    If the second training collapses, or has too few images or keypoints, log a note and write nothing.

    Args:
        run: the run to verify, which has held-out images.
        detector: the run's detector.
        store: the run's training images.
        train: trains the detector of the second run.
    """
    path = run.verification_path
    if path.exists():
        return
    folder = run.path / "verification"
    config = build_second_config(run.config)
    _, half = split_images(run.refs(), config.verification.training_fraction, len(run.refs()), config.seed)
    # `any` waits for all processes, so all have looked for run.json before the leader creates it.
    is_new = run.group.any(not (folder / "run.json").exists())
    run.log("verification", images=len(half), held_out=len(run.held_out_refs()))
    if is_new:
        start = _get_start(run)
        run.group.run_on_leader(lambda: Run.create(folder, config, [str(run.path)], half, start=start))
    second_run = Run.open(folder, _TrainingProgress(run), run.group)
    try:
        second_detector = train(second_run, is_new)
    except (CollapsedTraining, NotEnoughData) as error:
        run.log("note", text=f"the run is not verified, because the second training failed: {error}")
        return

    fit, held_out = _locate_both(run, detector, second_detector, store)

    def compare_and_store() -> None:
        errors = compare_detectors(fit, held_out, config.images.size, run.config.evaluation.ridge)
        with run.report_disk_errors():
            write_json(_to_json(errors, len(half)), path)
            remove_folder(folder)

    run.group.run_on_leader(compare_and_store)


def _get_start(run: Run) -> StartingPoint | None:
    """Return the detector that a run starts from, so that the second run can start from the same detector.

    Return None if the run starts from random weights.
    """
    record = run.start_from()
    if record is None:
        return None
    return StartingPoint(record["model"], record["sha256"], partial(copy_model, run.path / START_FOLDER))


def hold_out(refs: Sequence[ImageRef], config: Config) -> tuple[list[ImageRef], list[ImageRef]]:
    """Return the images to train on and those to hold out; none are held out if the run is not verified."""
    settings = config.verification
    if not settings.enabled:
        return list(refs), []
    return split_images(refs, settings.held_out_fraction, settings.max_held_out, seed=0)


def build_second_config(config: Config) -> Config:
    """Return the settings of the second run: another seed, fewer iterations, and no landmarks of Stage 1.

    With pretrained features, a run can also discover landmarks by Stage 1. The second run does not.

    >>> build_second_config(Config(seed=3)).seed, build_second_config(Config()).stage2.iterations
    (4, 100000)
    """
    reseeded = override(config, {"seed": config.seed + 1, "verification.enabled": False})
    shorter = scale_schedule(reseeded, config.verification.schedule_fraction)
    return replace(shorter, features=replace(config.features, keypoint_landmarks=False))


def _locate_both(
    run: Run, detector: Detector, second_detector: Detector, store: ImageStore
) -> tuple[PairedLandmarks, PairedLandmarks]:
    """Return the landmarks of two detectors in some training images, and in the held-out images.

    Each process locates the landmarks of a part of the images.
    """
    config, group = run.config, run.group
    held_out = group.run_on_all(lambda: load_store(run.held_out_refs(), config.images, float("inf"), None))
    fit = store.pixels[torch.from_numpy(evenly_spaced(len(store), _FIT_IMAGES))]

    def locate(model: Detector, pixels: Tensor) -> FloatArray:
        located = locate_images(model, pixels, config.runtime.predict_batch, group)
        xy: FloatArray = located.xy.cpu().numpy().astype(np.float64)
        return xy

    def locate_pair(pixels: Tensor) -> PairedLandmarks:
        return PairedLandmarks(locate(detector, pixels), locate(second_detector, pixels))

    return locate_pair(fit), locate_pair(held_out.pixels)


def _to_json(errors: SecondRunErrors, num_images: int) -> dict[str, Any]:
    shares = to_json_list(errors.backward_shares)
    return asdict(errors) | {"backward_shares": shares, "second_run_images": num_images}


class _TrainingProgress:
    """Reports the training of the second run as one progress bar of the verified run."""

    def __init__(self, run: Run) -> None:
        self._report = run.progress(SECOND_TRAINING)
        self._total = 0
        self._done: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        """Report the iterations done so far."""
        if event["event"] == "plan":
            self._total = event["stage1"] + event["stage2"] + event.get("student", 0)
        elif event["event"] == "train" and self._total:
            self._done[f"{event['stage']}-{event['round']}"] = event["iteration"] - event["start"]
            self._report(min(sum(self._done.values()), self._total), self._total)
