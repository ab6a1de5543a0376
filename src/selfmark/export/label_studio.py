"""Write Label Studio tasks with pre-annotations to correct by hand, and the labeling interface.

Coordinates are in percent of the image size, measured from the top left corner of the image. Each object is a
rectangle with its landmarks as children, which is how Label Studio keeps the objects of an image apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from selfmark._version import __version__
from selfmark.detector import Prediction
from selfmark.export.coco_keypoints import ExportedImage, ExportedObject, iterate_objects, write_list
from selfmark.export.frame_files import save_frames
from selfmark.export.output_files import open_output, require_absent, require_unique_names, require_writable
from selfmark.export.trust_entries import describe_smoothing, format_trust
from selfmark.model.card import ModelCard
from selfmark.model.colors import landmark_colors
from selfmark.run.files import atomic_folder

IMAGE, LANDMARKS, OBJECTS = "image", "landmarks", "objects"  # names of the elements of the interface
OBJECT = "object"  # label of the rectangles
FRAMES = "frames"  # folder for video frames

_POINT_SIZE = 0.8  # diameter of a displayed point, in percent of the image width


def write_label_studio(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/tasks.json and `folder`/label_config.xml, the labeling interface of the project.

    Paste label_config.xml into the settings of the project. Video frames are saved as images in
    `folder`/frames. Image paths are relative to the parent of the folder that holds all images; use that
    parent as the document root of Label Studio's local storage. A task is one image with all its objects, so
    all objects are kept in memory until the end.
    """
    require_unique_names(card.names, "Label Studio")
    require_writable(folder)
    images: dict[str, ExportedImage] = {}
    objects: dict[str, list[ExportedObject]] = {}
    for detected in iterate_objects(predictions, images):
        objects.setdefault(detected.image.ref.name, []).append(detected)
    files = {name: image.ref.path for name, image in images.items() if image.ref.frame is None}
    path = folder / "tasks.json"
    with (
        open_output(path) as tasks,
        open_output(folder / "label_config.xml") as interface,
        ExitStack() as frames,
    ):
        if len(files) < len(images):
            require_absent(folder / FRAMES)
            temporary = frames.enter_context(atomic_folder(folder / FRAMES))
            files |= _save_frames(images.values(), temporary, folder / FRAMES)
        interface.write(_build_interface(card))
        write_list(_build_tasks(images, files, objects, card), tasks)
    return path


def _save_frames(images: Iterable[ExportedImage], temporary: Path, target: Path) -> dict[str, Path]:
    """Save the video frames in a folder that is later renamed to `target`; return their final paths.

    Returns:
        Mapping from the name of each frame's image reference to the final path of the frame.
    """
    video_numbers: dict[Path, int] = {}
    temporary_paths: dict[Path, dict[int, Path]] = {}  # maps videos to mappings from frame numbers to paths
    final_paths = {}
    for image in images:
        video, frame = image.ref.path, image.ref.frame
        if frame is not None:
            number = video_numbers.setdefault(video, len(video_numbers))
            name = f"{number:03d}_{video.stem}_{frame:08d}.jpg"
            temporary_paths.setdefault(video, {})[frame] = temporary / name
            final_paths[image.ref.name] = target / name
    for video, targets in temporary_paths.items():
        save_frames(video, targets)
    return final_paths


def _build_interface(card: ModelCard) -> str:
    """Return the XML of the labeling interface.

    `model_index` keeps the order of the landmarks in Label Studio's own exports. Label Studio shows `hint`
    when the mouse is over a label. Rectangles are not filled, because the fill would dim the object.
    """
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name=IMAGE, value=f"${IMAGE}", zoom="true")
    points = ElementTree.SubElement(view, "KeyPointLabels", name=LANDMARKS, toName=IMAGE, opacity="1")
    for index, (name, background) in enumerate(zip(card.names, landmark_colors(card), strict=True)):
        label = ElementTree.SubElement(
            points, "Label", value=name, model_index=str(index), background=background
        )
        if card.trust:
            label.set("hint", format_trust(card, index))
    boxes = ElementTree.SubElement(view, "RectangleLabels", name=OBJECTS, toName=IMAGE, fillOpacity="0")
    ElementTree.SubElement(boxes, "Label", value=OBJECT)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _build_tasks(
    images: dict[str, ExportedImage],
    files: dict[str, Path],
    objects: dict[str, list[ExportedObject]],
    card: ModelCard,
) -> Iterator[dict[str, Any]]:
    paths = {name: os.path.abspath(file) for name, file in files.items()}
    common_folder = (
        os.path.commonpath([os.path.dirname(path) for path in paths.values()]) if paths else os.sep
    )
    root = os.path.dirname(common_folder)
    for name in images:
        relative_path = Path(os.path.relpath(paths[name], root)).as_posix()
        scores = np.concatenate([detected.score for detected in objects[name]])
        prediction = {
            "model_version": f"selfmark {__version__}{describe_smoothing(card)}",
            "score": round(float(scores.mean()), 4),
            "result": _build_regions(objects[name], card),
        }
        yield {"data": {IMAGE: f"/data/local-files/?d={quote(relative_path)}"}, "predictions": [prediction]}


def _build_regions(objects: list[ExportedObject], card: ModelCard) -> list[dict[str, Any]]:
    """Return the landmarks of all objects of an image, then the rectangles of these objects.

    Label Studio draws earlier regions on top of later ones; a landmark behind a rectangle could not be
    dragged.
    """
    numbered_objects = list(enumerate(objects))
    landmarks = [
        region for number, detected in numbered_objects for region in _build_landmarks(number, detected, card)
    ]
    return landmarks + [_build_rectangle(number, detected) for number, detected in numbered_objects]


def _build_landmarks(number: int, detected: ExportedObject, card: ModelCard) -> Iterator[dict[str, Any]]:
    parent = _make_region_id(number)
    for index, (name, (x, y)) in enumerate(zip(card.names, _to_percent(detected).tolist(), strict=True)):
        if np.isnan(x):  # a gap that smoothing did not fill
            continue
        yield {
            "id": f"{parent}-{index}",
            "parentID": parent,
            "type": "keypointlabels",
            "from_name": LANDMARKS,
            "to_name": IMAGE,
            **_describe_size(detected),
            "score": round(float(detected.score[index]), 4),
            "value": {"x": x, "y": y, "width": _POINT_SIZE, "keypointlabels": [name]},
        }


def _build_rectangle(number: int, detected: ExportedObject) -> dict[str, Any]:
    """Return the bounding box of the landmarks; a known track is added as a note."""
    percent = _to_percent(detected)
    low, high = np.nanmin(percent, axis=0).tolist(), np.nanmax(percent, axis=0).tolist()
    return {
        "id": _make_region_id(number),
        "type": "rectanglelabels",
        "from_name": OBJECTS,
        "to_name": IMAGE,
        **_describe_size(detected),
        "score": round(float(detected.score.mean()), 4),
        **({} if detected.track is None else {"meta": {"text": [f"track {detected.track}"]}}),
        "value": {
            "x": low[0],
            "y": low[1],
            "width": high[0] - low[0],
            "height": high[1] - low[1],
            "rotation": 0,
            "rectanglelabels": [OBJECT],
        },
    }


def _make_region_id(number: int) -> str:
    return f"object{number}"


def _describe_size(detected: ExportedObject) -> dict[str, int]:
    image = detected.image
    return {"original_width": image.width, "original_height": image.height, "image_rotation": 0}


def _to_percent(detected: ExportedObject) -> npt.NDArray[np.float64]:
    """Return the landmarks [K, 2] in percent of the image size, measured from the top left corner.

    Points outside the image are moved to its border, because Label Studio accepts no value above 100.
    """
    size = np.array((detected.image.width, detected.image.height), np.float64)
    percent: npt.NDArray[np.float64] = np.clip((detected.xy + 0.5) / size * 100, 0, 100)
    return percent
