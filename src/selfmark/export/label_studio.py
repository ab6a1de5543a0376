"""Label Studio: tasks with pre-annotations to correct by hand, and the labeling interface for them.

Places are percent of the image's own size, counted from its corner. Each object is a rectangle with its
landmarks as children, which is how Label Studio keeps the objects of an image apart.
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
from selfmark.export.frame_files import atomic_folder, require_absent, save_frames
from selfmark.export.pose_tables import atomic_output, require_distinct, require_writable
from selfmark.model.card import ModelCard
from selfmark.model.colors import landmark_colors

IMAGE, LANDMARKS, OBJECTS = "image", "landmarks", "objects"  # names of the interface's parts
OBJECT = "object"
FRAMES = "frames"  # folder of the frames of videos

_POINT = 0.8  # percent of the image's width: how large a point is drawn


def write_label_studio(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/tasks.json, and label_config.xml to paste into the project's labeling interface.

    Frames of videos become image files in `folder`/frames. Images are named from the folder above the one
    that holds them all, which Label Studio's local storage wants as its document root. Tasks are images,
    so all objects are kept until the end.
    """
    require_distinct(card.names, "Label Studio")
    require_writable(folder)
    images: dict[str, ExportedImage] = {}
    found: dict[str, list[ExportedObject]] = {}
    for one in iterate_objects(predictions, images):
        found.setdefault(one.image.ref.name, []).append(one)
    files = {name: image.ref.path for name, image in images.items() if image.ref.frame is None}
    path = folder / "tasks.json"
    with (
        atomic_output(path) as tasks,
        atomic_output(folder / "label_config.xml") as interface,
        ExitStack() as frames,
    ):
        if len(files) < len(images):
            require_absent(folder / FRAMES)
            temporary = frames.enter_context(atomic_folder(folder / FRAMES))
            files |= _save_frames(images.values(), temporary, folder / FRAMES)
        interface.write_text(_interface(card), encoding="utf-8")
        with open(tasks, "w", encoding="utf-8") as handle:
            write_list(_tasks(images, files, found, card), handle)
    return path


def _save_frames(images: Iterable[ExportedImage], temporary: Path, target: Path) -> dict[str, Path]:
    """Write the frames among the images into a folder that becomes `target`: where each will be, by name."""
    wanted: dict[Path, dict[int, Path]] = {}
    files = {}
    for image in images:
        video, frame = image.ref.path, image.ref.frame
        if frame is not None:
            number = len(wanted) if video not in wanted else list(wanted).index(video)
            name = f"{number:03d}_{video.stem}_{frame:08d}.jpg"
            wanted.setdefault(video, {})[frame] = temporary / name
            files[image.ref.name] = target / name
    for video, targets in wanted.items():
        save_frames(video, targets)
    return files


def _interface(card: ModelCard) -> str:
    """The labeling interface. `model_index` gives Label Studio's own exports the order of the landmarks.

    Rectangles are not filled, else they would dim just the part of the photo one has to look at.
    """
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name=IMAGE, value=f"${IMAGE}", zoom="true")
    points = ElementTree.SubElement(view, "KeyPointLabels", name=LANDMARKS, toName=IMAGE, opacity="1")
    for index, (name, background) in enumerate(zip(card.names, landmark_colors(card), strict=True)):
        ElementTree.SubElement(points, "Label", value=name, model_index=str(index), background=background)
    boxes = ElementTree.SubElement(view, "RectangleLabels", name=OBJECTS, toName=IMAGE, fillOpacity="0")
    ElementTree.SubElement(boxes, "Label", value=OBJECT)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _tasks(
    images: dict[str, ExportedImage],
    files: dict[str, Path],
    found: dict[str, list[ExportedObject]],
    card: ModelCard,
) -> Iterator[dict[str, Any]]:
    paths = {name: os.path.abspath(file) for name, file in files.items()}
    shared = os.path.commonpath([os.path.dirname(path) for path in paths.values()]) if paths else os.sep
    root = os.path.dirname(shared)
    for name in images:
        place = Path(os.path.relpath(paths[name], root)).as_posix()
        scores = np.concatenate([one.score for one in found[name]])
        prediction = {
            "model_version": f"selfmark {__version__}",
            "score": round(float(scores.mean()), 4),
            "result": _regions(found[name], card),
        }
        yield {"data": {IMAGE: f"/data/local-files/?d={quote(place)}"}, "predictions": [prediction]}


def _regions(found: list[ExportedObject], card: ModelCard) -> list[dict[str, Any]]:
    """The landmarks of an image's objects, then their rectangles.

    Label Studio puts earlier regions above later ones: behind a rectangle no landmark could be grabbed.
    """
    numbered = list(enumerate(found))
    landmarks = [region for number, one in numbered for region in _landmarks(number, one, card)]
    return landmarks + [_rectangle(number, one) for number, one in numbered]


def _landmarks(number: int, found: ExportedObject, card: ModelCard) -> Iterator[dict[str, Any]]:
    parent = _name(number)
    for index, (name, (x, y)) in enumerate(zip(card.names, _percent(found).tolist(), strict=True)):
        yield {
            "id": f"{parent}-{index}",
            "parentID": parent,
            "type": "keypointlabels",
            "from_name": LANDMARKS,
            "to_name": IMAGE,
            **_size(found),
            "score": round(float(found.score[index]), 4),
            "value": {"x": x, "y": y, "width": _POINT, "keypointlabels": [name]},
        }


def _rectangle(number: int, found: ExportedObject) -> dict[str, Any]:
    """Just around the landmarks; the object's track is a note at it where it is known."""
    percent = _percent(found)
    low, high = percent.min(axis=0).tolist(), percent.max(axis=0).tolist()
    return {
        "id": _name(number),
        "type": "rectanglelabels",
        "from_name": OBJECTS,
        "to_name": IMAGE,
        **_size(found),
        "score": round(float(found.score.mean()), 4),
        **({} if found.track is None else {"meta": {"text": [f"track {found.track}"]}}),
        "value": {
            "x": low[0],
            "y": low[1],
            "width": high[0] - low[0],
            "height": high[1] - low[1],
            "rotation": 0,
            "rectanglelabels": [OBJECT],
        },
    }


def _name(number: int) -> str:
    return f"object{number}"


def _size(found: ExportedObject) -> dict[str, int]:
    return {"original_width": found.image.width, "original_height": found.image.height, "image_rotation": 0}


def _percent(found: ExportedObject) -> npt.NDArray[np.float64]:
    """Landmarks [K, 2] from pixel centers at integers to percent from the corner.

    What lies beyond the border is put onto it, because Label Studio takes nothing above 100.
    """
    size = np.array((found.image.width, found.image.height), np.float64)
    percent: npt.NDArray[np.float64] = np.clip((found.xy + 0.5) / size * 100, 0, 100)
    return percent
