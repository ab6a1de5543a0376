"""Sheets of test images: generic keypoints, landmarks, landmarks that stand for annotated points."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from selfmark.detector import Detector
from selfmark.draw.primitives import draw_disc
from selfmark.errors import InputError
from selfmark.evaluation.labeled_images import LabeledImages, load_labeled_images
from selfmark.evaluation.labeled_run import LabeledInputs, build_examples, join_labels
from selfmark.evaluation.normalizers import default_normalizer
from selfmark.evaluation.protocol import matched_landmarks
from selfmark.evaluation.stage1_landmarks import Stage1
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.paper.reproduction.measurement_task import (
    MeasurementTask,
    load_image_sample,
    read_labels,
)
from selfmark.paper.reproduction.table_metrics import Figures
from selfmark.points import FloatArray
from selfmark.report.landmark_pictures import Picture, draw_contact_sheet
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

IMAGES, COLUMNS = 12, 6
_RED, _BLUE = (226, 58, 46), (46, 98, 226)


def draw_keypoint_sheet(study: MeasurementTask) -> Figures:
    """Keypoints on an annotated point in red, the others in blue."""
    shown, config = load_image_sample(study, IMAGES), study.config
    found = detect_first_keypoints(
        shown.store.pixels, shown.store.bounds, config.keypoints, study.device, config.runtime.predict_batch
    )
    image, xy = found.image_index.cpu().numpy(), found.xy.cpu().numpy()
    right = shown.nearest(xy, image, config) >= 0
    pictures = [picture.copy() for picture in _pictures(shown)]
    for row, place, good in zip(image.tolist(), xy, right.tolist(), strict=True):
        radius = max(1, pictures[row].shape[0] // 85)
        draw_disc(pictures[row], np.round(place), radius, _RED if good else _BLUE)
    nothing = np.full((len(pictures), 1, 2), np.nan)
    return {
        "keypoint_sheet": _write(draw_contact_sheet(np.stack(pictures), nothing, COLUMNS), study, "keypoints")
    }


def draw_landmark_sheet(study: MeasurementTask) -> Figures:
    """All landmarks, on images evenly spaced; and for each field asked for, on images in its order."""
    detector = Detector.load(study.trained, study.device)
    figures = {"landmark_sheet": _drawn(study, detector, load_image_sample(study, IMAGES), "landmarks")}
    for field in study.by:
        truth = read_labels(study.test, study.config)
        if field not in truth.fields:
            raise InputError(f"{study.test} has no field '{field}' to order images by")
        order = sorted(range(len(truth)), key=lambda row: str(truth.fields[field][row]))
        rows = [order[place] for place in evenly_spaced(len(order), IMAGES)]
        shown = load_labeled_images(truth.select(rows), study.config, study.folder)
        figures["pose_sheet"] = _drawn(study, detector, shown, f"by-{field}")
    return figures


def draw_matched_sheet(study: MeasurementTask) -> Figures:
    """Only the landmarks that stand for an annotated point, as the images fitted on tell."""
    run = Run.open(study.trained)
    detector, stage1 = Detector.load(study.trained, study.device), Stage1.load(run, study.device)
    fitted = join_labels(run, detector, stage1, LabeledInputs([study.fit], study.fit), study.config, None)
    fit = build_examples(
        fitted.truth,
        fitted.predictions.xy,
        fitted.predictions.regions,
        default_normalizer(fitted.truth),
        study.config.images.size,
    )
    stands_for = matched_landmarks(fit)
    shown = load_image_sample(study, IMAGES)
    xy = detector.locate(shown.store.pixels).xy.cpu().numpy()
    other = np.setdiff1d(np.arange(xy.shape[1]), stands_for)
    xy[:, other] = np.nan
    return {"matched_sheet": _write(draw_contact_sheet(_pictures(shown), xy, COLUMNS), study, "matched")}


def _drawn(study: MeasurementTask, detector: Detector, shown: LabeledImages, name: str) -> str:
    xy: FloatArray = detector.locate(shown.store.pixels).xy.cpu().numpy()
    return _write(draw_contact_sheet(_pictures(shown), xy, COLUMNS), study, name)


def _pictures(shown: LabeledImages) -> Picture:
    pictures: Picture = np.ascontiguousarray(shown.store.pixels.permute(0, 2, 3, 1).numpy())
    return pictures


def _write(sheet: Picture, study: MeasurementTask, name: str) -> str:
    path: Path = study.folder / f"{name}.png"
    if not cv2.imwrite(str(path), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR)):
        raise InputError(f"cannot write {path}")
    return path.name
