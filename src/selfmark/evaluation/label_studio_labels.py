"""Labels exported from Label Studio (JSON) as the pieces of a COCO file.

So everything behind, from the checks of points to finding the images, is the same for every label file.
"""

from __future__ import annotations

import json
import re
import reprlib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

from selfmark.errors import InputError
from selfmark.images.coco import Entry
from selfmark.images.sources import read_text

ANNOTATED = 2  # COCO's v of a point that can be seen
UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # what Label Studio puts before the name of an uploaded file


def load_label_studio_labels(path: Path) -> tuple[Any, dict[int | str, Entry], list[Entry]]:
    """The file as `coco_points.load` would give it: content, images by id, annotations.

    Points with a rectangle as parent are one object, in that box; an image's other points are one more.
    Pre-annotations are no labels, and canceled annotations do not count.
    """
    text = read_text(path)
    try:
        tasks = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path} is no label file: it is nested too deeply") from error
    images: dict[int | str, Entry] = {}
    objects: list[tuple[str, int, dict[str, tuple[float, float]], list[float] | None]] = []
    names: dict[str, None] = {}
    for number, task in enumerate(tasks):
        where = f"{path}: tasks[{number}]"
        result = _result(where, task)
        if result is None:
            continue
        images[number] = (where, {"id": number, "file_name": _file_name(where, task)})
        for place, points, box in _objects(where, result):
            names |= dict.fromkeys(points)
            objects.append((place, number, points, box))
    annotations: list[Entry] = []
    for place, number, points, box in objects:
        keypoints = [
            value for name in names for value in ((*points[name], ANNOTATED) if name in points else (0, 0, 0))
        ]
        entry = {"image_id": number, "keypoints": keypoints}
        annotations.append((place, entry | ({"bbox": box} if box is not None else {})))
    return {"categories": [{"keypoints": list(names)}]}, images, annotations


def _result(where: str, task: Any) -> list[Any] | None:
    """The regions of the one annotation that counts; None where nobody has annotated the task."""
    annotations = task.get("annotations", []) if isinstance(task, dict) else None
    if not isinstance(annotations, list) or not all(isinstance(one, dict) for one in annotations):
        raise InputError(f"{where} is not a task of Label Studio: it needs a list under 'annotations'")
    counted = [one for one in annotations if not one.get("was_canceled")]
    if len(counted) > 1:
        raise InputError(f"{where} was annotated {len(counted)} times; keep the one that is right")
    if not counted:
        return None
    result = counted[0].get("result")
    if not isinstance(result, list) or not all(isinstance(region, dict) for region in result):
        raise InputError(f"{where}: its annotation needs a list of regions under 'result'")
    return result


def _file_name(where: str, task: dict[str, Any]) -> str:
    """The path behind the address of the task's image."""
    data = task.get("data")
    values = data if isinstance(data, dict) else {}
    words = [value for value in values.values() if isinstance(value, str)]
    address = values.get("image", words[0] if len(words) == 1 else None)
    if not isinstance(address, str) or not address:
        raise InputError(f"{where} needs the address of its image under 'data', not {reprlib.repr(data)}")
    parts = urlparse(address)
    if parts.path.rstrip("/") == "/data/local-files" and "d" in parse_qs(parts.query):
        return parse_qs(parts.query)["d"][-1]
    if parts.path.startswith("/data/upload/"):
        return UPLOADED.sub("", unquote(parts.path).rsplit("/", 1)[-1])
    return unquote(parts.path) if parts.scheme else address


def _objects(
    where: str, result: list[Any]
) -> list[tuple[str, dict[str, tuple[float, float]], list[float] | None]]:
    """Place, points by name in pixels and box of each object with at least one point."""
    boxes: dict[str, tuple[str, dict[str, Any]]] = {}
    points: dict[str | None, dict[str, tuple[float, float]]] = {}
    places: dict[str | None, str] = {}
    for number, region in enumerate(result):
        key = region.get("id")
        if region.get("type") == "rectanglelabels" and isinstance(key, str):
            boxes[key] = (f"{where}.result[{number}]", region)
    for number, region in enumerate(result):
        if region.get("type") != "keypointlabels":
            continue
        place = f"{where}.result[{number}]"
        parent = region.get("parentID")
        parent = parent if isinstance(parent, str) and parent in boxes else None
        x, y, width, height = _numbers(place, region, ("x", "y"))
        mine = points.setdefault(parent, {})
        places.setdefault(parent, place)
        for name in _labels(place, region):
            if name in mine:
                raise InputError(
                    f"{place}: '{name}' is there twice in one object; keep the one that is right"
                )
            # From percent counted from the corner to pixels whose centers are whole numbers.
            mine[name] = (x / 100 * width - 0.5, y / 100 * height - 0.5)
    return [
        (places[key], found, _box(*boxes[key]) if key is not None else None) for key, found in points.items()
    ]


def _box(place: str, region: dict[str, Any]) -> list[float] | None:
    """x, y, w, h in pixels; None of a rectangle that was turned, which no box describes."""
    x, y, w, h, width, height = _numbers(place, region, ("x", "y", "width", "height"))
    if region["value"].get("rotation"):
        return None
    return [x / 100 * width, y / 100 * height, w / 100 * width, h / 100 * height]


def _labels(place: str, region: dict[str, Any]) -> list[str]:
    labels = region["value"].get("keypointlabels")
    if not isinstance(labels, list) or not all(isinstance(name, str) and name for name in labels):
        raise InputError(f"{place}: 'keypointlabels' must list names, not {reprlib.repr(labels)}")
    return labels


def _numbers(place: str, region: dict[str, Any], keys: tuple[str, ...]) -> list[float]:
    """These numbers of a region's value, then the size of its image."""
    value = region.get("value")
    if not isinstance(value, dict):
        raise InputError(f"{place} needs a 'value' that says where it is")
    numbers: list[Any] = [value.get(key) for key in keys]
    numbers += [region.get(key) for key in ("original_width", "original_height")]
    for key, number in zip((*keys, "original_width", "original_height"), numbers, strict=True):
        if type(number) not in (int, float) or not abs(number) < 1e9:
            raise InputError(f"{place}: '{key}' must be a number, not {reprlib.repr(number)}")
    return [float(number) for number in numbers]
