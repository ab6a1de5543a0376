"""Sheets of test images: generic keypoints, landmarks, landmarks that stand for annotated points."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluate.labelled import Named, examples, join_found
from selfmark.evaluate.normalise import default_spec
from selfmark.evaluate.protocol import matched_landmarks
from selfmark.evaluate.shown import Shown, load_shown
from selfmark.evaluate.stage1 import Stage1
from selfmark.keypoints.first import first_keypoints
from selfmark.points import FloatArray
from selfmark.report.pictures import Picture, contact_sheet
from selfmark.reproduce.metrics import Figures
from selfmark.reproduce.study import Study, read_truth, show_some, spread
from selfmark.run import Run

IMAGES, COLUMNS = 12, 6
_RED, _BLUE = (226, 58, 46), (46, 98, 226)


def of_keypoints(study: Study) -> Figures:
    """Keypoints on an annotated point in red, the others in blue."""
    shown, config = show_some(study, IMAGES), study.config
    found = first_keypoints(
        shown.store.pixels, shown.store.bounds, config.keypoints, study.device, config.runtime.predict_batch
    )
    image, xy = found.image_index.cpu().numpy(), found.xy.cpu().numpy()
    right = shown.nearest(xy, image, config) >= 0
    pictures = [picture.copy() for picture in _pictures(shown)]
    for row, place, good in zip(image.tolist(), xy.tolist(), right.tolist(), strict=True):
        centre = (round(place[0]), round(place[1]))
        radius = max(1, pictures[row].shape[0] // 85)
        cv2.circle(pictures[row], centre, radius, _RED if good else _BLUE, -1, cv2.LINE_AA)
    nothing = np.full((len(pictures), 1, 2), np.nan)
    return {"keypoint_sheet": _write(contact_sheet(np.stack(pictures), nothing, COLUMNS), study, "keypoints")}


def of_landmarks(study: Study) -> Figures:
    """All landmarks, on images evenly spaced; and for each field asked for, on images in its order."""
    detector = Detector.load(study.trained, study.device)
    figures = {"landmark_sheet": _drawn(study, detector, show_some(study, IMAGES), "landmarks")}
    for field in study.by:
        truth = read_truth(study.test, study.config)
        if field not in truth.fields:
            raise InputError(f"{study.test} has no field '{field}' to order images by")
        order = sorted(range(len(truth)), key=lambda row: str(truth.fields[field][row]))
        rows = [order[place] for place in spread(len(order), IMAGES)]
        shown = load_shown(truth.select(rows), study.config, study.folder)
        figures["pose_sheet"] = _drawn(study, detector, shown, f"by-{field}")
    return figures


def of_matched(study: Study) -> Figures:
    """Only the landmarks that stand for an annotated point, as the images fitted on tell."""
    run = Run.open(study.trained)
    detector, stage1 = Detector.load(study.trained, study.device), Stage1.load(run, study.device)
    fitted = join_found(run, detector, stage1, Named([study.fit], study.fit), study.config, None)
    fit = examples(fitted, default_spec(fitted.truth), study.config.images.size)
    stands_for = matched_landmarks(fit)
    shown = show_some(study, IMAGES)
    xy = detector.locate(shown.store.pixels).xy.cpu().numpy()
    other = np.setdiff1d(np.arange(xy.shape[1]), stands_for)
    xy[:, other] = np.nan
    return {"matched_sheet": _write(contact_sheet(_pictures(shown), xy, COLUMNS), study, "matched")}


def _drawn(study: Study, detector: Detector, shown: Shown, name: str) -> str:
    xy: FloatArray = detector.locate(shown.store.pixels).xy.cpu().numpy()
    return _write(contact_sheet(_pictures(shown), xy, COLUMNS), study, name)


def _pictures(shown: Shown) -> Picture:
    pictures: Picture = np.ascontiguousarray(shown.store.pixels.permute(0, 2, 3, 1).numpy())
    return pictures


def _write(sheet: Picture, study: Study, name: str) -> str:
    path: Path = study.folder / f"{name}.png"
    if not cv2.imwrite(str(path), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR)):
        raise InputError(f"cannot write {path}")
    return path.name
