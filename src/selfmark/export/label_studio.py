"""Label Studio: tasks with pre-annotations to correct by hand, and the labelling interface for them.

Places are percent of the image's own size, counted from its corner. Each object is a rectangle with its
landmarks as children, which is how Label Studio keeps the objects of an image apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np

from selfmark._version import __version__
from selfmark.colours import colours_of
from selfmark.detector import ModelCard, Prediction
from selfmark.errors import InputError
from selfmark.export.coco import Image, objects, write_list
from selfmark.export.media import require_distinct, require_writable, writing

IMAGE, LANDMARKS, OBJECTS = "image", "landmarks", "objects"  # names of the interface's parts
OBJECT = "object"

_POINT = 0.5  # percent of the image's width: how large a point is drawn


def write_label_studio(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/tasks.json, and label_config.xml to paste into the project's labelling interface.

    Images are named from the folder above the one that holds them all; Label Studio's local storage wants
    that as its document root. Tasks hold whole images, so all objects are kept until the end.
    """
    require_distinct(card.names, "Label Studio")
    require_writable(folder)
    images: dict[str, Image] = {}
    found: dict[str, list[tuple[Any, Any]]] = {}
    for image, xy, score in objects(predictions, images):
        if image.ref.frame is not None:
            raise InputError(
                f"Label Studio takes key points of image files, and {image.ref.path} is a video: save the "
                "frames you want as images"
            )
        found.setdefault(image.ref.name, []).append((xy, score))
    path = folder / "tasks.json"
    with writing(path) as tasks, writing(folder / "label_config.xml") as interface:
        interface.write_text(_interface(card), encoding="utf-8")
        with open(tasks, "w", encoding="utf-8") as handle:
            write_list(_tasks(images, found, card), handle)
    return path


def _interface(card: ModelCard) -> str:
    """The labelling interface. `model_index` gives Label Studio's own exports the order of the landmarks."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name=IMAGE, value=f"${IMAGE}", zoom="true")
    points = ElementTree.SubElement(view, "KeyPointLabels", name=LANDMARKS, toName=IMAGE)
    for index, (name, background) in enumerate(zip(card.names, colours_of(card), strict=True)):
        ElementTree.SubElement(points, "Label", value=name, model_index=str(index), background=background)
    boxes = ElementTree.SubElement(view, "RectangleLabels", name=OBJECTS, toName=IMAGE)
    ElementTree.SubElement(boxes, "Label", value=OBJECT)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _tasks(
    images: dict[str, Image], found: dict[str, list[tuple[Any, Any]]], card: ModelCard
) -> Iterator[dict[str, Any]]:
    paths = {name: os.path.abspath(image.ref.path) for name, image in images.items()}
    shared = os.path.commonpath([os.path.dirname(path) for path in paths.values()]) if paths else os.sep
    root = os.path.dirname(shared)
    for name, image in images.items():
        place = Path(os.path.relpath(paths[name], root)).as_posix()
        scores = np.concatenate([score for _, score in found[name]])
        prediction = {
            "model_version": f"selfmark {__version__}",
            "score": round(float(scores.mean()), 4),
            "result": [
                region
                for number, (xy, score) in enumerate(found[name])
                for region in _regions(number, image, xy, score, card)
            ],
        }
        yield {"data": {IMAGE: f"/data/local-files/?d={quote(place)}"}, "predictions": [prediction]}


def _regions(number: int, image: Image, xy: Any, score: Any, card: ModelCard) -> Iterator[dict[str, Any]]:
    """The rectangle of an object, then its landmarks."""
    size = {"original_width": image.width, "original_height": image.height, "image_rotation": 0}
    # From pixel centres at integers to percent from the corner. What lies beyond the border is put onto it,
    # because Label Studio takes nothing above 100.
    percent = np.clip((xy + 0.5) / (image.width, image.height) * 100, 0, 100)
    low, high = percent.min(axis=0), percent.max(axis=0)
    parent = f"object{number}"
    yield {
        "id": parent,
        "type": "rectanglelabels",
        "from_name": OBJECTS,
        "to_name": IMAGE,
        **size,
        "score": round(float(score.mean()), 4),
        "value": {
            "x": low[0],
            "y": low[1],
            "width": high[0] - low[0],
            "height": high[1] - low[1],
            "rotation": 0,
            "rectanglelabels": [OBJECT],
        },
    }
    for index, name in enumerate(card.names):
        x, y = percent[index].tolist()
        yield {
            "id": f"{parent}-{index}",
            "parentID": parent,
            "type": "keypointlabels",
            "from_name": LANDMARKS,
            "to_name": IMAGE,
            **size,
            "score": round(float(score[index]), 4),
            "value": {"x": x, "y": y, "width": _POINT, "keypointlabels": [name]},
        }
