"""Read labels exported from Label Studio (JSON) into the structure of a COCO file.

In this way, the same code checks the points and finds the images of every label format.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlparse

from selfmark.errors import InputError
from selfmark.images.coco import CocoAnnotation, CocoFile, CocoImage
from selfmark.images.input_files import MAX_COORDINATE, read_json_input

_MAX_NAMES = 1_000  # maximum number of different labels; each label takes memory for every object
VISIBLE = 2  # COCO's v of a point that is annotated and visible
UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # added by Label Studio to the name of an uploaded file


class _Object(NamedTuple):
    """An annotated object of a task. A task of Label Studio is an image with its annotations.

    Attributes:
        where: Location of the first point in the file, for messages.
        points: Pixel coordinates of each point by name.
        box: x, y, w, h in pixels; None if the object has no rectangle, or a rotated one.
        sizes: Width and height of the image in pixels, as the points and the rectangle state them; usually
            one pair.
    """

    where: str
    points: dict[str, tuple[float, float]]
    box: list[float] | None
    sizes: set[tuple[float, float]]


def read_label_studio_labels(path: Path) -> CocoFile:
    """Read a file that was exported from Label Studio.

    Points with the same rectangle as their parent form an object, and the rectangle is its box. All points
    without a rectangle form one more object. Pre-annotations and canceled annotations do not count.
    """
    tasks = read_json_input(path)
    images: list[CocoImage] = []
    objects: list[tuple[int, _Object]] = []
    for number, task in enumerate(tasks):
        where = f"{path}: tasks[{number}]"
        regions = _read_regions(where, task)
        if regions is None:
            continue
        file_name = _read_image_path(where, task)
        instances = _group_objects(where, regions)
        size = _require_one_size(where, instances)
        images.append(CocoImage(where, number, file_name, {"id": number, "file_name": file_name, **size}))
        objects += [(number, instance) for instance in instances]
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
    address = _read_address(where, task)
    try:
        return _parse_address(address)
    except ValueError as error:
        raise InputError(
            f"{where}: the address of its image, {reprlib.repr(address)}, is not valid: {error}; correct it"
        ) from error


def _read_address(where: str, task: dict[str, Any]) -> str:
    """Return the path or URL of a task's image."""
    data = task.get("data")
    values = data if isinstance(data, dict) else {}
    texts = [value for value in values.values() if isinstance(value, str)]
    address = values.get("image", texts[0] if len(texts) == 1 else None)
    if not isinstance(address, str) or not address:
        raise InputError(f"{where} needs the address of its image under 'data', not {reprlib.repr(data)}")
    return address


def _parse_address(address: str) -> str:
    """Return the path in an address; raise ValueError if the address is not valid."""
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
    # Points of each rectangle, the location of its first point, and the image sizes that its points and the
    # rectangle itself state. The key None stands for no rectangle.
    points: dict[str | None, dict[str, tuple[float, float]]] = {}
    locations: dict[str | None, str] = {}
    sizes: dict[str | None, set[tuple[float, float]]] = {}
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
        sizes.setdefault(parent, set()).add((width, height))
        for name in _read_point_labels(location, region):
            if name in siblings:
                raise InputError(f"{location}: '{name}' occurs twice in one object; keep the correct one")
            # Percentages are measured from the image corner; pixel centers are at whole numbers.
            siblings[name] = (x / 100 * width - 0.5, y / 100 * height - 0.5)
    objects = []
    for key, named_points in points.items():
        box = None
        if key is not None:
            box, size = _read_box(*boxes[key])
            sizes[key].add(size)
        objects.append(_Object(locations[key], named_points, box, sizes[key]))
    return objects


def _require_one_size(where: str, objects: Sequence[_Object]) -> dict[str, float]:
    """Return width and height of a task's image as entries of a COCO image; empty if there are no objects."""
    sizes = sorted({size for instance in objects for size in instance.sizes})
    if len(sizes) > 1:
        (width, height), (other_width, other_height) = sizes[:2]
        raise InputError(
            f"{where}: its regions belong to images of {width:g} x {height:g} and {other_width:g} x "
            f"{other_height:g} pixels; annotate the task again"
        )
    return dict(zip(("width", "height"), sizes[0], strict=True)) if sizes else {}


def _read_box(location: str, region: dict[str, Any]) -> tuple[list[float] | None, tuple[float, float]]:
    """Return a rectangle as x, y, w, h in pixels, and width and height of its image in pixels.

    COCO boxes cannot represent a rotated rectangle; it becomes None.
    """
    x, y, w, h, width, height = _read_numbers(location, region, ("x", "y", "width", "height"))
    if region["value"].get("rotation"):
        return None, (width, height)
    box = [x / 100 * width, y / 100 * height, w / 100 * width, h / 100 * height]
    return box, (width, height)


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
    rotation = region.get("image_rotation")
    if rotation not in (None, 0):
        raise InputError(
            f"{location}: the image was rotated by {reprlib.repr(rotation)} degrees in Label Studio; rotate "
            "it back there and export again"
        )
    sizes = ("original_width", "original_height")
    numbers: list[Any] = [*(value.get(key) for key in keys), *(region.get(key) for key in sizes)]
    for key, number in zip((*keys, *sizes), numbers, strict=True):
        if type(number) not in (int, float) or not abs(number) < MAX_COORDINATE:
            raise InputError(f"{location}: '{key}' must be a number, not {reprlib.repr(number)}")
        if key in sizes and number <= 0:
            raise InputError(f"{location}: '{key}' must be larger than 0, not {reprlib.repr(number)}")
    return [float(number) for number in numbers]
