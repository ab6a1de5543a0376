"""Draw contact sheets of test images: with first keypoints, with all landmarks, or with matched landmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfmark.detector import Detector
from selfmark.draw.primitives import draw_disc
from selfmark.errors import InputError
from selfmark.evaluation.labeled_images import LabeledImages, load_labeled_images
from selfmark.evaluation.labeled_run import build_examples, predict_labeled
from selfmark.evaluation.normalizers import choose_normalizer
from selfmark.evaluation.raw_landmarks import match_annotated_points
from selfmark.evaluation.run_models import RunModels
from selfmark.images.picture_files import write_png
from selfmark.keypoints.first_keypoints import detect_first_keypoints
from selfmark.paper.reproduction.measurement_task import (
    MeasurementTask,
    load_image_sample,
    read_labels,
)
from selfmark.paper.reproduction.table_metrics import Results
from selfmark.points import FloatArray
from selfmark.report.landmark_pictures import Picture, draw_contact_sheet
from selfmark.run.folder import Run
from selfmark.sampling import evenly_spaced

MAX_IMAGES, COLUMNS = 12, 6
_RED, _BLUE = (226, 58, 46), (46, 98, 226)


def draw_keypoint_sheet(task: MeasurementTask) -> Results:
    """Draw keypoints that lie on an annotated point in red, and all others in blue."""
    images, config = load_image_sample(task, MAX_IMAGES), task.config
    keypoints = detect_first_keypoints(
        images.store.pixels, images.store.bounds, config.keypoints, task.device, config.runtime.predict_batch
    )
    image_index, xy = keypoints.image_index.cpu().numpy(), keypoints.xy.cpu().numpy()
    is_on_point = images.find_nearest(xy, image_index, config) >= 0
    pictures = [picture.copy() for picture in _to_pictures(images)]
    for row, center, is_hit in zip(image_index.tolist(), xy, is_on_point.tolist(), strict=True):
        radius = max(1, pictures[row].shape[0] // 85)
        draw_disc(pictures[row], np.round(center), radius, _RED if is_hit else _BLUE)
    no_landmarks = np.full((len(pictures), 1, 2), np.nan)
    sheet = draw_contact_sheet(np.stack(pictures), no_landmarks, COLUMNS)
    return {"keypoint_sheet": _write_sheet(sheet, task, "keypoints")}


def draw_landmark_sheet(task: MeasurementTask) -> Results:
    """Draw all landmarks on sampled test images.

    For each annotation field in `task.by`, draw another sheet of test images, sorted by this field.
    """
    detector = Detector.load(task.run_folder, task.device)
    sample = load_image_sample(task, MAX_IMAGES)
    landmark_sheet = _draw_landmarks(task, detector, sample, "landmarks")
    pose_sheets: dict[str, str] = {}
    for field in task.by:
        truth = read_labels(task.test, task.config)
        if field not in truth.fields:
            raise InputError(f"{task.test} has no field '{field}' to sort images by")
        order = sorted(range(len(truth)), key=lambda row: str(truth.fields[field][row]))
        rows = [order[index] for index in evenly_spaced(len(order), MAX_IMAGES)]
        images = load_labeled_images(truth.select(rows), task.config, task.folder)
        pose_sheets[field] = _draw_landmarks(task, detector, images, f"by-{field}")
    return {"landmark_sheet": landmark_sheet, "pose_sheets": pose_sheets}


def draw_matched_sheet(task: MeasurementTask) -> Results:
    """Draw only the landmarks that match annotated points; matches are found on the images for fitting."""
    run = Run.open(task.run_folder)
    models = RunModels.open(run, task.device)
    labeled = predict_labeled(models, read_labels(task.fit, task.config), None)
    examples = build_examples(
        labeled.truth,
        labeled.predictions.xy,
        labeled.predictions.regions,
        choose_normalizer(labeled.truth),
        task.config.images.size,
    )
    images = load_image_sample(task, MAX_IMAGES)
    xy = models.detector.locate(images.store.pixels).xy.cpu().numpy()
    unmatched_landmarks = np.setdiff1d(np.arange(xy.shape[1]), match_annotated_points(examples))
    xy[:, unmatched_landmarks] = np.nan
    sheet = draw_contact_sheet(_to_pictures(images), xy, COLUMNS)
    return {"matched_sheet": _write_sheet(sheet, task, "matched")}


def _draw_landmarks(task: MeasurementTask, detector: Detector, images: LabeledImages, name: str) -> str:
    """Write a sheet with all landmarks of the images and return its file name."""
    xy: FloatArray = detector.locate(images.store.pixels).xy.cpu().numpy()
    return _write_sheet(draw_contact_sheet(_to_pictures(images), xy, COLUMNS), task, name)


def _to_pictures(images: LabeledImages) -> Picture:
    """Return the images as the network sees them, [N, H, W, 3]."""
    pictures: Picture = np.ascontiguousarray(images.store.pixels.permute(0, 2, 3, 1).numpy())
    return pictures


def _write_sheet(sheet: Picture, task: MeasurementTask, name: str) -> str:
    """Write a sheet into the folder of the task and return its file name."""
    path: Path = task.folder / f"{name}.png"
    write_png(sheet, path)
    return path.name
