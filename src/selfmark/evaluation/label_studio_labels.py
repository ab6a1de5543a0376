"""Read labels exported from Label Studio (JSON) into the structure of a COCO file.

In this way, the same code checks the points and finds the images of every label format.
"""

from __future__ import annotations

import json
import re
import reprlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlparse

from selfmark.errors import InputError
from selfmark.images.coco import CocoAnnotation, CocoFile, CocoImage
from selfmark.images.input_files import MAX_COORDINATE, read_text_input

_MAX_NAMES = 1_000  # maximum number of different labels; each label takes memory for every object
VISIBLE = 2  # COCO's v of a point that is annotated and visible
UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # added by Label Studio to the name of an uploaded file


class _Object(NamedTuple):
    """An annotated object of a task, which is an image with its annotations.

    Attributes:
        where: Location of its first point in the file, for messages.
        points: Pixel coordinates of each point by name.
        box: x, y, w, h in pixels; None if the object has no rectangle, or a rotated one.
    """

    where: str
    points: dict[str, tuple[float, float]]
    box: list[float] | None


def read_label_studio_labels(path: Path) -> CocoFile:
    """Read a file that was exported from Label Studio.

    The points whose parent is the same rectangle form an object with that box. All points without a rectangle
    form one more object. Pre-annotations and canceled annotations do not count.
    """
    text = read_text_input(path)
    try:
        tasks = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{path} is not valid JSON: it is nested too deeply") from error
    images: list[CocoImage] = []
    objects: list[tuple[int, _Object]] = []
    for number, task in enumerate(tasks):
        where = f"{path}: tasks[{number}]"
        regions = _read_regions(where, task)
        if regions is None:
            continue
        file_name = _read_image_path(where, task)
        images.append(CocoImage(where, number, file_name, {"id": number, "file_name": file_name}))
        objects += [(number, instance) for instance in _group_objects(where, regions)]
    names = list(dict.fromkeys(name for _, instance in objects for name in instance.points))
    if len(names) > _MAX_NAMES:
        raise InputError(f"{path} has {len(names):,} different labels; at most {_MAX_NAMES:,} are allowed")
    annotations = []
    for number, instance in objects:
        keypoints: list[float] = []
        for name in names:
            keypoints += [*instance.points[name], VISIBLE] if name in instance.points else [0, 0, 0]
        values: dict[str, Any] = {"image_id": number, "keypoints": keypoints}
        if instance.box is not None:
            values["bbox"] = instance.box
        annotations.append(CocoAnnotation(instance.where, number, values))
    return CocoFile(path, tuple(images), tuple(annotations), {"categories": [{"keypoints": names}]})


def _read_regions(where: str, task: Any) -> list[dict[str, Any]] | None:
    """Return the regions of a task's annotation; None if the task is not annotated."""
    annotations = task.get("annotations", []) if isinstance(task, dict) else None
    if not isinstance(annotations, list) or not all(
        isinstance(annotation, dict) for annotation in annotations
    ):
        raise InputError(f"{where} is not a task of Label Studio: it needs a list under 'annotations'")
    valid = [annotation for annotation in annotations if not annotation.get("was_canceled")]
    if len(valid) > 1:
        raise InputError(f"{where} was annotated {len(valid)} times; keep the correct annotation")
    if not valid:
        return None
    regions = valid[0].get("result")
    if not isinstance(regions, list) or not all(isinstance(region, dict) for region in regions):
        raise InputError(f"{where}: its annotation needs a list of regions under 'result'")
    return regions


def _read_image_path(where: str, task: dict[str, Any]) -> str:
    """Return the path of a task's image, which the task gives as a path or URL."""
    data = task.get("data")
    values = data if isinstance(data, dict) else {}
    texts = [value for value in values.values() if isinstance(value, str)]
    address = values.get("image", texts[0] if len(texts) == 1 else None)
    if not isinstance(address, str) or not address:
        raise InputError(f"{where} needs the address of its image under 'data', not {reprlib.repr(data)}")
    parts = urlparse(address)
    # Files in local storage are named by the parameter d. Uploaded files have a prefix before their name.
    if parts.path.rstrip("/") == "/data/local-files" and "d" in parse_qs(parts.query):
        return parse_qs(parts.query)["d"][-1]
    if parts.path.startswith("/data/upload/"):
        return UPLOAD_PREFIX.sub("", unquote(parts.path).rsplit("/", 1)[-1])
    return unquote(parts.path) if parts.scheme else address


def _group_objects(where: str, regions: list[dict[str, Any]]) -> list[_Object]:
    """Group points by their rectangle, and return the objects with at least one point."""
    boxes: dict[str, tuple[str, dict[str, Any]]] = {}  # location and region of each rectangle, by its id
    # Points of each rectangle, and the location of its first point; None stands for no rectangle.
    points: dict[str | None, dict[str, tuple[float, float]]] = {}
    locations: dict[str | None, str] = {}
    for number, region in enumerate(regions):
        key = region.get("id")
        if region.get("type") == "rectanglelabels" and isinstance(key, str):
            boxes[key] = (f"{where}.result[{number}]", region)
    for number, region in enumerate(regions):
        if region.get("type") != "keypointlabels":
            continue
        location = f"{where}.result[{number}]"
        parent = region.get("parentID")
        parent = parent if isinstance(parent, str) and parent in boxes else None
        x, y, width, height = _read_numbers(location, region, ("x", "y"))
        siblings = points.setdefault(parent, {})
        locations.setdefault(parent, location)
        for name in _read_point_labels(location, region):
            if name in siblings:
                raise InputError(f"{location}: '{name}' occurs twice in one object; keep the correct one")
            # Percentages are measured from the image corner; pixel centers are at whole numbers.
            siblings[name] = (x / 100 * width - 0.5, y / 100 * height - 0.5)
    return [
        _Object(locations[key], named_points, _read_box(*boxes[key]) if key is not None else None)
        for key, named_points in points.items()
    ]


def _read_box(location: str, region: dict[str, Any]) -> list[float] | None:
    """Return x, y, w, h in pixels; None for a rotated rectangle, which COCO boxes cannot represent."""
    x, y, w, h, width, height = _read_numbers(location, region, ("x", "y", "width", "height"))
    if region["value"].get("rotation"):
        return None
    return [x / 100 * width, y / 100 * height, w / 100 * width, h / 100 * height]


def _read_point_labels(location: str, region: dict[str, Any]) -> list[str]:
    labels = region["value"].get("keypointlabels")
    if not isinstance(labels, list) or not all(isinstance(name, str) and name for name in labels):
        raise InputError(f"{location}: 'keypointlabels' must list names, not {reprlib.repr(labels)}")
    return labels


def _read_numbers(location: str, region: dict[str, Any], keys: tuple[str, ...]) -> list[float]:
    """Return the numbers under `keys` in a region's value, then width and height of its image in pixels."""
    value = region.get("value")
    if not isinstance(value, dict):
        raise InputError(f"{location} needs a 'value' with its position")
    sizes = ("original_width", "original_height")
    numbers: list[Any] = [*(value.get(key) for key in keys), *(region.get(key) for key in sizes)]
    for key, number in zip((*keys, *sizes), numbers, strict=True):
        if type(number) not in (int, float) or not abs(number) < MAX_COORDINATE:
            raise InputError(f"{location}: '{key}' must be a number, not {reprlib.repr(number)}")
    return [float(number) for number in numbers]
