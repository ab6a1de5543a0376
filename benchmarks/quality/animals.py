"""Write the boxes of the animals in two data sets with videos, as COCO files for `selfmark discover`.

The mouse is detected by its difference from the empty arena, without labels. The two flies touch each other,
so their positions come from the tracks published with the video. All boxes of a video have the same side:
the camera does not move, so an animal keeps its size from frame to frame.

    flies-pair-video   frames-train.json: the first 80 % of the video's frames
                       frames-test.json: the other frames
    mouse-openfield    frames-video.json: the first 80 % of the video's frames, without labels
                       frames-motion.json: the other frames, without labels
                       frames-train.json, frames-test.json: the labeled still images
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.run.files import read_json, write_json

Picture = npt.NDArray[np.uint8]  # [H, W, 3] BGR, or [H, W] gray
Floats = npt.NDArray[np.float64]

TRAIN_FRACTION = 0.8  # fraction of a video's frames for training; errors or motion are measured on the others

FLY_SIDE = 105.0  # pixels; a fly with its wings is about 95 long
FLY_TRACKS = (1, 2)  # the two flies; other tracks are fragments
FLY_MIN_SCORE = 0.3  # points with a lower score of the reference model count as not annotated
FLY_REQUIRED = ("head", "thorax", "abdomen")  # frames in which a fly lacks one of these are left out

MOUSE_SIDE = 150.0  # pixels; snout to tail base is 102 to 143
MOUSE_CONTRAST = 60  # gray levels by which the mouse is darker than the arena
TAIL_WIDTH = 15  # pixels; a morphological opening of this width keeps the body and removes the tail

FLIES_NOTE = (
    "errors are differences from the predictions of another model (SLEAP), not from human labels, in percent "
    "of the length from head to abdomen; boxes of 105 px around that model's tracks; the first 880 frames "
    "are for training, the last 220 for testing"
)
MOUSE_NOTE = (
    "landmarks are discovered in 1,864 frames of the video and the 92 labeled still images, without their "
    "labels, and tested on 24 still images; errors are in percent of the length from snout to tail base; "
    "boxes of 150 px come from background subtraction"
)


def prepare_flies(folder: Path) -> None:
    """Write boxes of both flies for every frame in which the tracks contain head, thorax and abdomen."""
    content = read_json(folder / "points.json")
    names = content["categories"][0]["keypoints"]
    frames = {image["id"]: image["frame"] for image in content["images"]}
    required_columns = [names.index(name) for name in FLY_REQUIRED]
    kept = []
    for annotation in content["annotations"]:
        points = np.array(annotation["keypoints"], np.float64).reshape(-1, 3)
        points[np.array(annotation["keypoint_scores"]) < FLY_MIN_SCORE] = 0.0
        if annotation["track"] in FLY_TRACKS and (points[required_columns, 2] > 0).all():
            center = points[required_columns, :2].mean(axis=0)
            kept.append(_replace_box(annotation, points, _build_square(center, FLY_SIDE)))
    limit = TRAIN_FRACTION * len(frames)
    for name, is_train in (("train", True), ("test", False)):
        selected = [annotation for annotation in kept if (frames[annotation["image_id"]] < limit) == is_train]
        _write(content, selected, folder / f"frames-{name}.json")


def prepare_mouse(folder: Path) -> None:
    """Write boxes of the mouse for every frame of the video and every labeled still image."""
    stills = {name: read_json(folder / f"{name}.json") for name in ("train", "test")}
    pictures = {
        name: [_read(folder / "images" / image["file_name"]) for image in content["images"]]
        for name, content in stills.items()
    }
    empty = _compute_background([picture for name in pictures for picture in pictures[name]])
    for name, content in stills.items():
        annotations = {annotation["image_id"]: annotation for annotation in content["annotations"]}
        with_boxes = []
        for image, picture in zip(content["images"], pictures[name], strict=True):
            annotation = annotations[image["id"]]
            points = np.array(annotation["keypoints"], np.float64).reshape(-1, 3)
            with_boxes.append(
                _replace_box(annotation, points, _build_square(_find_center(picture, empty), MOUSE_SIDE))
            )
        _write(content, with_boxes, folder / f"frames-{name}.json")

    frames = _read_frames(folder / "video.mp4")
    empty = _compute_background(frames[:: max(1, len(frames) // 60)])
    centers = [_find_center(picture, empty) for picture in frames]
    height, width = frames[0].shape[:2]
    images = [
        {"id": number, "file_name": "video.mp4", "frame": number, "width": width, "height": height}
        for number in range(len(frames))
    ]
    annotated = [
        {"id": number, "image_id": number, "category_id": 1, "bbox": _build_square(center, MOUSE_SIDE)}
        for number, center in enumerate(centers)
    ]
    limit = int(TRAIN_FRACTION * len(frames))
    for name, part in (("video", slice(0, limit)), ("motion", slice(limit, None))):
        content = {"images": images[part], "annotations": annotated[part], "categories": []}
        write_json(content, folder / f"frames-{name}.json")


# --- COCO ------------------------------------------------------------------------------------------------


def _build_square(center: Floats, side: float) -> list[float]:
    x, y = (center - side / 2).round(2).tolist()
    return [x, y, side, side]


def _replace_box(annotation: dict[str, Any], points: Floats, box: list[float]) -> dict[str, Any]:
    """Return the annotation with other points [L, 3] and another box."""
    return {**annotation, "keypoints": points.ravel().tolist(), "bbox": box, "area": box[2] * box[3]}


def _write(content: dict[str, Any], annotations: list[dict[str, Any]], path: Path) -> None:
    """Write a COCO file with these annotations and only the images that they belong to."""
    used = {annotation["image_id"] for annotation in annotations}
    images = [image for image in content["images"] if image["id"] in used]
    write_json({**content, "images": images, "annotations": annotations}, path)


# --- images ----------------------------------------------------------------------------------------------


def _read(path: Path) -> Picture:
    picture = cv2.imread(str(path))
    if picture is None:
        raise ValueError(f"{path} cannot be read")
    return np.asarray(picture, np.uint8)


def _read_frames(path: Path) -> list[Picture]:
    video = cv2.VideoCapture(str(path))
    frames: list[Picture] = []
    while True:
        success, picture = video.read()
        if not success:
            return frames
        frames.append(np.asarray(picture, np.uint8))


def _compute_background(pictures: list[Picture]) -> Picture:
    """Return the gray arena without the animal: the median of images between which the animal moves."""
    return np.asarray(np.median(np.stack([_to_gray(picture) for picture in pictures]), axis=0), np.uint8)


def _find_center(picture: Picture, empty: Picture) -> Floats:
    """Return the center [2] of the largest region that is darker than the arena, not counting the tail."""
    darker = cv2.subtract(empty, _to_gray(picture)) > MOUSE_CONTRAST
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (TAIL_WIDTH, TAIL_WIDTH))
    body = cv2.morphologyEx(darker.astype(np.uint8), cv2.MORPH_OPEN, kernel)
    count, _, statistics, centers = cv2.connectedComponentsWithStats(body)
    if count < 2:
        raise ValueError("found no animal in a frame")
    largest = 1 + int(statistics[1:, cv2.CC_STAT_AREA].argmax())
    return np.asarray(centers[largest], np.float64)


def _to_gray(picture: Picture) -> Picture:
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY), np.uint8)
