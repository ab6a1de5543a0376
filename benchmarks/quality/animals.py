"""Boxes of the animals in the two films, as COCO files that `selfmark discover` takes.

The mouse is found by how it differs from the empty arena; no label is used. The two flies touch each other,
so their places are those of the tracker that came with the film. Boxes have one fixed side per film, because
the camera does not move up or down: an animal then keeps its size from frame to frame.

    flies-pair-video   frames-train.json, frames-test.json: first 80 % of the frames, the rest
    mouse-openfield    frames-video.json, frames-motion.json: the film without labels, likewise;
                       frames-train.json, frames-test.json: the labeled stills
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from selfmark.run.files import read_json, write_json

Picture = npt.NDArray[np.uint8]  # [H, W, 3]
Floats = npt.NDArray[np.float64]

TRAIN_SHARE = 0.8  # of a film's frames; the rest is for measuring

FLY_SIDE = 105.0  # pixels; a fly with its wings is about 95 long
FLY_TRACKS = (1, 2)  # the two flies; other tracks are fragments
FLY_LEAST_SCORE = 0.3  # points the reference model is less sure of count as not annotated
FLY_NEEDED = ("head", "thorax", "abdomen")

MOUSE_SIDE = 150.0  # pixels; snout to tail base is 102 to 143
MOUSE_DARKER = 60  # gray levels by which the mouse is darker than the arena
MOUSE_TAIL = 15  # pixels; an opening of this width leaves the body and removes the tail

FLIES_NOTE = (
    "errors are differences from another model's predictions (SLEAP), not from human labels, in percent of "
    "the length from head to abdomen; boxes of 105 px around its tracks; first 880 frames for training, last "
    "220 for testing"
)
MOUSE_NOTE = (
    "discovered in 1,864 frames of the film and the 92 labeled stills, without their labels; 24 test "
    "stills; errors in percent of the length from snout to tail base; boxes of 150 px by background "
    "subtraction"
)


def prepare_flies(folder: Path) -> None:
    """Both flies in every frame in which the tracker saw head, thorax and abdomen."""
    content = read_json(folder / "points.json")
    names = content["categories"][0]["keypoints"]
    frames = {image["id"]: image["frame"] for image in content["images"]}
    needed = [names.index(name) for name in FLY_NEEDED]
    kept = []
    for annotation in content["annotations"]:
        points = np.array(annotation["keypoints"], np.float64).reshape(-1, 3)
        points[np.array(annotation["keypoint_scores"]) < FLY_LEAST_SCORE] = 0.0
        if annotation["track"] in FLY_TRACKS and (points[needed, 2] > 0).all():
            middle = points[needed, :2].mean(axis=0)
            kept.append(_annotation(annotation, points, _square(middle, FLY_SIDE)))
    limit = TRAIN_SHARE * len(frames)
    for name, wanted in (("train", True), ("test", False)):
        chosen = [one for one in kept if (frames[one["image_id"]] < limit) == wanted]
        _write(content, chosen, folder / f"frames-{name}.json")


def prepare_mouse(folder: Path) -> None:
    """The mouse in every frame of the film and in every labeled still."""
    stills = {name: read_json(folder / f"{name}.json") for name in ("train", "test")}
    pictures = {
        name: [_read(folder / "images" / image["file_name"]) for image in content["images"]]
        for name, content in stills.items()
    }
    empty = _background([picture for name in pictures for picture in pictures[name]])
    for name, content in stills.items():
        annotations = {annotation["image_id"]: annotation for annotation in content["annotations"]}
        boxed = []
        for image, picture in zip(content["images"], pictures[name], strict=True):
            annotation = annotations[image["id"]]
            points = np.array(annotation["keypoints"], np.float64).reshape(-1, 3)
            boxed.append(_annotation(annotation, points, _square(_middle(picture, empty), MOUSE_SIDE)))
        _write(content, boxed, folder / f"frames-{name}.json")

    film = _frames(folder / "video.mp4")
    empty = _background(film[:: max(1, len(film) // 60)])
    middles = [_middle(picture, empty) for picture in film]
    height, width = film[0].shape[:2]
    images = [
        {"id": number, "file_name": "video.mp4", "frame": number, "width": width, "height": height}
        for number in range(len(film))
    ]
    boxed = [
        {"id": number, "image_id": number, "category_id": 1, "bbox": _square(middle, MOUSE_SIDE)}
        for number, middle in enumerate(middles)
    ]
    limit = int(TRAIN_SHARE * len(film))
    for name, part in (("video", slice(0, limit)), ("motion", slice(limit, None))):
        content = {"images": images[part], "annotations": boxed[part], "categories": []}
        write_json(content, folder / f"frames-{name}.json")


# --- COCO ------------------------------------------------------------------------------------------------


def _square(middle: Floats, side: float) -> list[float]:
    x, y = (middle - side / 2).round(2).tolist()
    return [x, y, side, side]


def _annotation(annotation: dict[str, Any], points: Floats, box: list[float]) -> dict[str, Any]:
    return {**annotation, "keypoints": points.ravel().tolist(), "bbox": box, "area": box[2] * box[3]}


def _write(content: dict[str, Any], annotations: list[dict[str, Any]], path: Path) -> None:
    """These annotations and the images they are of."""
    used = {annotation["image_id"] for annotation in annotations}
    images = [image for image in content["images"] if image["id"] in used]
    write_json({**content, "images": images, "annotations": annotations}, path)


# --- pictures --------------------------------------------------------------------------------------------


def _read(path: Path) -> Picture:
    picture = cv2.imread(str(path))
    if picture is None:
        raise ValueError(f"{path} cannot be read")
    return np.asarray(picture, np.uint8)


def _frames(path: Path) -> list[Picture]:
    film = cv2.VideoCapture(str(path))
    frames: list[Picture] = []
    while True:
        found, picture = film.read()
        if not found:
            return frames
        frames.append(np.asarray(picture, np.uint8))


def _background(pictures: list[Picture]) -> Picture:
    """The arena without the animal: it is in another place most of the time."""
    return np.asarray(np.median(np.stack([_gray(picture) for picture in pictures]), axis=0), np.uint8)


def _middle(picture: Picture, empty: Picture) -> Floats:
    """The center [2] of the largest thing darker than the arena, its tail left out."""
    darker = cv2.subtract(empty, _gray(picture)) > MOUSE_DARKER
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (MOUSE_TAIL, MOUSE_TAIL))
    body = cv2.morphologyEx(darker.astype(np.uint8), cv2.MORPH_OPEN, kernel)
    count, _, statistics, centers = cv2.connectedComponentsWithStats(body)
    if count < 2:
        raise ValueError("no animal was found in a frame")
    largest = 1 + int(statistics[1:, cv2.CC_STAT_AREA].argmax())
    return np.asarray(centers[largest], np.float64)


def _gray(picture: Picture) -> Picture:
    return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2GRAY), np.uint8)
