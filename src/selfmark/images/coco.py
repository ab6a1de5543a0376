"""Read the images, annotations and categories of a COCO file (JSON).

Label files come from many tools, so nothing in them is trusted. `read_coco` checks the structure that every
caller relies on. Each method checks only the values that it returns. A file with incomplete annotations can
therefore still be used as a list of images. Messages name the entry, e.g. "labels.json: annotations[3]".
"""

from __future__ import annotations

import reprlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from selfmark.errors import InputError
from selfmark.image_ref import Box, ClipFrame, ImageRef
from selfmark.images.input_files import (
    IMAGE_SUFFIXES,
    MAX_COORDINATE,
    VIDEO_SUFFIXES,
    parse_box,
    path_is,
    read_json_input,
)
from selfmark.run.json_schema import MAX_NAME_LENGTH, is_int64, is_point_name

Id = int | str
Scalar = str | int | float | bool | None

_MAX_KEYS = 1_000  # maximum number of different keys; each key takes memory for every annotation
# Keys that COCO defines for annotations and images. A scalar under any other key describes the object.
_STANDARD_KEYS = {"keypoints", "num_keypoints", "bbox", "area", "segmentation", "iscrowd"}
_STANDARD_KEYS |= {"id", "image_id", "category_id", "file_name", "width", "height"}


@dataclass(frozen=True)
class CocoImage:
    """An entry of "images".

    Attributes:
        where: Location of the entry in the file, for messages.
        id: Id of the image.
        file_name: Path of the image, relative to a folder that the COCO file does not name.
        values: The whole entry.
    """

    where: str
    id: Id
    file_name: str
    values: Mapping[str, Any]

    def size(self) -> tuple[int, int] | None:
        """Return width and height in pixels; None if the entry does not state them (missing, null or 0).

        Some tools write 640.0 or "640".

        >>> CocoImage("", 1, "a.jpg", {"width": 640.0, "height": "480"}).size()
        (640, 480)
        """
        width, height = (self._read_side(key) for key in ("width", "height"))
        return (width, height) if width and height else None

    def _read_side(self, key: str) -> int:
        """Return a side of the image in pixels; 0 if it is not stated."""
        value = self.values.get(key)
        try:
            side = float(0 if value is None else value)
        except (TypeError, ValueError, OverflowError):
            side = -1.0
        if isinstance(value, bool) or not side.is_integer() or not 0 <= side <= MAX_COORDINATE:
            raise InputError(
                f"{self.where}: '{key}' must be a whole number of pixels, not {reprlib.repr(value)}"
            )
        return int(side)

    def frame(self) -> int | None:
        """Return the 0-based frame number if the file is a video, None for a still image."""
        file = Path(self.file_name)
        if file.suffix.lower() in IMAGE_SUFFIXES:
            return None
        if file.suffix.lower() not in VIDEO_SUFFIXES:
            raise InputError(
                f"{self.where}: '{file.name}' has no image or video extension; name a file such as .jpg or "
                ".mp4"
            )
        return self.video_frame()

    def video_frame(self) -> int:
        """Return the 0-based frame number of an entry that is known to be a video frame."""
        frame = self.values.get("frame")
        if not is_int64(frame) or frame < 0:
            raise InputError(
                f"{self.where}: '{self.file_name}' is a video, so it needs a 'frame' number that counts from "
                f"0, not {reprlib.repr(frame)}"
            )
        return frame

    def ref(self) -> ImageRef:
        """Return a reference with the path from the COCO file, and with the frame number if it is valid."""
        frame = self.values.get("frame")
        is_video = Path(self.file_name).suffix.lower() in VIDEO_SUFFIXES
        is_valid_frame = is_video and type(frame) is int and 0 <= frame < 2**31
        return ImageRef(Path(self.file_name), frame if is_valid_frame else None, clip=self.clip_frame())

    def clip_frame(self) -> ClipFrame | None:
        """Return the video and frame number of a still image that was exported from a video, else None.

        >>> CocoImage("", 1, "3/7.jpg", {"video_id": 3, "frame_id": 6}).clip_frame()
        ('3', 6)
        """
        video, frame = self.values.get("video_id"), self.values.get("frame_id")
        is_still = Path(self.file_name).suffix.lower() in IMAGE_SUFFIXES
        if not is_still or isinstance(video, bool) or not isinstance(video, int | str):
            return None
        if isinstance(frame, bool) or not isinstance(frame, int) or not 0 <= frame < 2**31:
            return None
        return str(video), frame


@dataclass(frozen=True)
class CocoAnnotation:
    """An entry of "annotations".

    Attributes:
        where: Location of the entry in the file, for messages.
        image_id: Id of its image.
        values: The whole entry.
    """

    where: str
    image_id: Id
    values: Mapping[str, Any]

    def is_crowd(self) -> bool:
        """Return True if the annotation covers a group rather than one object."""
        value = self.values.get("iscrowd")
        if value is not None and value not in (0, 1):
            raise InputError(f"{self.where}: 'iscrowd' must be 0 or 1, not {reprlib.repr(value)}")
        return bool(value)

    def box(self) -> Box | None:
        """Return the bounding box, or None if there is none."""
        values = self.values.get("bbox")
        return parse_box(values, f"{self.where}: 'bbox'") if values else None

    def track(self) -> int | None:
        """Return the object's track number from the keys that trackers, CVAT and SLEAP use, or None."""
        attributes = self.values.get("attributes")
        candidates = [self.values.get("track_id"), self.values.get("track")]
        if isinstance(attributes, dict):
            candidates += [attributes.get("track_id"), attributes.get("object_id")]
        track = next((value for value in candidates if value is not None), None)
        if track is not None and not is_int64(track):
            raise InputError(
                f"{self.where}: a track must be a whole number of at most 64 bits, not {reprlib.repr(track)}"
            )
        return track


class DeclaredNormalizer(NamedTuple):
    """The length that errors are divided by, as a category declares it.

    Attributes:
        name: Name of the length; empty if it has none.
        points: Indices of the two points between which it is measured; None if they are not given.
    """

    name: str
    points: tuple[int, int] | None


@dataclass(frozen=True)
class CocoCategory:
    """An entry of "categories"; `values` is empty if the file has no suitable entry.

    Attributes:
        where: Location of the entry in the file, for messages.
        values: The whole entry.
    """

    where: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the object category."""
        return str(self.values.get("name", "object"))

    def point_names(self, first: CocoAnnotation) -> tuple[str, ...]:
        """Return the names of the points; without names, number the points of the annotation `first`."""
        names = self.values.get("keypoints")
        if not names:
            keypoints = first.values.get("keypoints")
            count = len(keypoints) if isinstance(keypoints, list) else 0
            if count == 0 or count % 3:
                raise InputError(f"{first.where}: 'keypoints' must list x, y, v for each point")
            return tuple(f"point_{number}" for number in range(count // 3))
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise InputError(
                f"{self.where}: 'keypoints' must list the names of the points, not {reprlib.repr(names)}"
            )
        unusable = [name for name in names if not is_point_name(name)]
        if unusable:
            raise InputError(
                f"{self.where}: {reprlib.repr(unusable[0])} cannot be the name of a point: names have "
                f"at most {MAX_NAME_LENGTH:,} characters and no control characters"
            )
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise InputError(
                f"{self.where}: two points are called '{repeated[0]}'; give each point its own name"
            )
        return tuple(names)

    def mirror(self, count: int) -> tuple[int, ...]:
        """Return each point's partner in the mirrored image ("flip_idx"); empty if not given."""
        partners = self.values.get("flip_idx")
        if partners is None or partners == []:
            return ()
        if not _are_integers(partners) or sorted(partners) != list(range(count)):
            raise InputError(f"{self.where}: 'flip_idx' must list every point from 0 to {count - 1} once")
        return tuple(partners)

    def skeleton(self, count: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of connected points, counted from 0; COCO itself counts from 1."""
        edges = self.values.get("skeleton") or []
        pairs = edges if isinstance(edges, list) else [edges]
        for pair in pairs:
            if not isinstance(pair, list) or [type(end) for end in pair] != [int, int]:
                raise InputError(f"{self.where}: 'skeleton' must list pairs of points, not {pair!r}")
            if not all(1 <= end <= count for end in pair):
                raise InputError(
                    f"{self.where}: 'skeleton' must connect points from 1 to {count}, not {pair!r}"
                )
        return tuple((start - 1, end - 1) for start, end in pairs)

    def normalizer(self, count: int) -> DeclaredNormalizer:
        """Return the length that errors are divided by, from "normalizer" and "normalizer_points".

        The spelling "normaliser", which selfmark writes, is accepted too.
        """
        name_key, name = self._first_of("normalizer", "normaliser")
        if name is not None and not isinstance(name, str):
            raise InputError(f"{self.where}: '{name_key}' must be a string, not {reprlib.repr(name)}")
        ends_key, ends = self._first_of("normalizer_points", "normaliser_points")
        if ends is None:
            return DeclaredNormalizer(name or "", None)
        is_inside = _are_integers(ends) and all(0 <= end < count for end in ends)
        if not is_inside or len(ends) != 2 or ends[0] == ends[1]:
            raise InputError(
                f"{self.where}: '{ends_key}' must be two different points from 0 to {count - 1}, "
                f"not {reprlib.repr(ends)}"
            )
        return DeclaredNormalizer(name or "", (ends[0], ends[1]))

    def _first_of(self, *keys: str) -> tuple[str, Any]:
        """Return the first key that has a value, and this value; if no key has one, keys[0] and None."""
        present = ((key, self.values[key]) for key in keys if self.values.get(key) is not None)
        return next(present, (keys[0], None))


@dataclass(frozen=True)
class CocoFile:
    """The entries of a file; other label formats are converted to this form.

    Attributes:
        path: Path of the file.
        images: Entries of "images".
        annotations: Entries of "annotations".
        content: The parsed JSON; for other label formats, only the names of the points under "categories".
    """

    path: Path
    images: tuple[CocoImage, ...]
    annotations: tuple[CocoAnnotation, ...]
    content: Mapping[str, Any]

    @property
    def info(self) -> Mapping[str, Any]:
        """Description of the data set, empty if there is none."""
        info = self.content.get("info")
        return info if isinstance(info, dict) else {}

    @cached_property
    def _image_by_id(self) -> dict[Id, CocoImage]:
        return {image.id: image for image in self.images}

    def image_of(self, annotation: CocoAnnotation) -> CocoImage:
        """Return the image of an annotation."""
        image = self._image_by_id.get(annotation.image_id)
        if image is None:
            raise InputError(
                f"{annotation.where}: there is no image with the id {annotation.image_id!r}; add the image "
                "or remove the annotation"
            )
        return image

    def check_image_ids(self) -> None:
        """Raise if two images have the same id."""
        _require_unique((image.where, image.id) for image in self.images)

    def check_ids(self) -> None:
        """Raise if two images or two annotations share an id, or if an annotation's image is missing."""
        self.check_image_ids()
        _require_unique(
            (annotation.where, annotation.values["id"])
            for annotation in self.annotations
            if annotation.values.get("id") is not None
        )
        for annotation in self.annotations:
            self.image_of(annotation)

    def single_objects(self) -> list[CocoAnnotation]:
        """Return the annotations that are not crowds."""
        return [annotation for annotation in self.annotations if not annotation.is_crowd()]

    def category(self, annotations: Sequence[CocoAnnotation]) -> CocoCategory:
        """Return the category of these annotations; raise if they have different categories.

        If no category of the file lists keypoints, return the file's only category, or an empty category if
        the file has several categories or none.
        """
        entries = _entries(self.path, self.content, "categories")
        for where, values in entries:
            if not isinstance(values, dict):
                raise InputError(f"{where} is not an object with a name and keypoints")
        categories = [CocoCategory(where, values) for where, values in entries]
        with_points = [category for category in categories if category.values.get("keypoints")]
        if not with_points:
            return categories[0] if len(categories) == 1 else CocoCategory(f"{self.path}: categories", {})
        by_id: dict[Id, CocoCategory] = {}
        # A single category with points need not have an id.
        if len(with_points) > 1 or "id" in with_points[0].values:
            _require_unique((category.where, category.values.get("id")) for category in with_points)
            by_id = {category.values["id"]: category for category in with_points}
        used: CocoCategory | None = None
        for annotation in annotations:
            key = annotation.values.get("category_id")
            chosen = by_id.get(key) if isinstance(key, int | str) else None
            if key is None and len(with_points) == 1:
                chosen = with_points[0]
            if chosen is None:
                raise InputError(
                    f"{annotation.where}: no category with keypoints has the id {reprlib.repr(key)}; correct "
                    "'category_id'"
                )
            if used is not None and chosen is not used:
                raise InputError(
                    f"{annotation.where} has a different category than the annotations before it "
                    f"({chosen.where}, not {used.where}); give a file with points of one category"
                )
            used = chosen
        return used or with_points[0]

    def image_folder(self, image: CocoImage) -> Path:
        """Return the folder that file names are relative to: the first of three that has this image."""
        folders = (
            self.path.parent,
            self.path.parent / "images",
            self.path.parent / "images" / self.path.stem,
        )
        for folder in folders:
            if path_is(folder / image.file_name, Path.is_file):
                return folder
        raise InputError(
            f"{self.path}: '{image.file_name}' is in none of {', '.join(map(str, folders))}; move the images "
            "there"
        )

    def fields(self, annotations: Sequence[CocoAnnotation]) -> dict[str, tuple[Scalar, ...]]:
        """Return the fields that describe objects (pose, species, ...), one value or None per annotation.

        A field is a scalar under a key that COCO does not define. An annotation without the key takes the
        value of its image.
        """
        annotation_entries = [annotation.values for annotation in annotations]
        image_entries = [self.image_of(annotation).values for annotation in annotations]
        fields: dict[str, tuple[Scalar, ...]] = {}
        keys = dict.fromkeys(key for entry in (*annotation_entries, *image_entries) for key in entry)
        if len(keys) > _MAX_KEYS:
            raise InputError(
                f"{self.path}: images and annotations have {len(keys):,} different keys; at most "
                f"{_MAX_KEYS:,} are allowed"
            )
        for key in keys:
            own_values = [_scalar(entry.get(key)) for entry in annotation_entries]
            values = tuple(
                _scalar(entry.get(key)) if value is None else value
                for value, entry in zip(own_values, image_entries, strict=True)
            )
            if key not in _STANDARD_KEYS and any(value is not None for value in values):
                fields[key] = values
        return fields


def read_coco(path: Path) -> CocoFile:
    """Read a COCO file; every image must have an id and a file name, every annotation an image id."""
    content = read_json_input(path)
    images = _entries(path, content, "images", "id", "file_name")
    annotations = _entries(path, content, "annotations", "image_id")
    return CocoFile(
        path,
        tuple(CocoImage(where, entry["id"], entry["file_name"], entry) for where, entry in images),
        tuple(CocoAnnotation(where, entry["image_id"], entry) for where, entry in annotations),
        content,
    )


def read_keypoints(annotations: Sequence[CocoAnnotation], names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return x, y, v of L named points of N annotations, [N, L, 3]; x and y are finite where v > 0.

    COCO's v is 0 for points that are not annotated, 1 for occluded points and 2 for visible points.
    """
    points = np.stack([_triples(annotation, len(names)) for annotation in annotations])
    has_bad_v = (points[..., 2] != 0) & (points[..., 2] != 1) & (points[..., 2] != 2)
    # The comparison is False for NaN, so NaN is bad. Where v is 0, the coordinates have no meaning.
    has_bad_xy = (points[..., 2] > 0) & ~(np.abs(points[..., :2]) <= MAX_COORDINATE).all(axis=2)
    for is_wrong, problem in (
        (has_bad_v, "has a visibility v other than 0, 1 and 2"),
        (has_bad_xy, "has no usable coordinates"),
    ):
        if is_wrong.any():
            row, point = np.argwhere(is_wrong)[0].tolist()
            raise InputError(
                f"{annotations[row].where}: point '{names[point]}' {problem}: {points[row, point].tolist()}"
            )
    return points


def _entries(path: Path, content: Any, key: str, *required: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the entries under a key with their locations; raise if a `required` field is missing."""
    entries = content.get(key, []) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise InputError(f"{path} is not a COCO file: it needs a list under '{key}'")
    located_entries = [(f"{path}: {key}[{number}]", entry) for number, entry in enumerate(entries)]
    for where, entry in located_entries:
        for name in required:
            value = entry.get(name) if isinstance(entry, dict) else None
            if not isinstance(value, str) and (name == "file_name" or not is_int64(value)):
                raise InputError(f"{where} needs a usable '{name}', not {reprlib.repr(value)}")
    return located_entries


def _require_unique(ids: Iterable[tuple[str, Any]]) -> None:
    """Raise unless all ids are distinct integers or strings; `ids` holds pairs of location and id."""
    locations: dict[Id, str] = {}
    for where, value in ids:
        if not isinstance(value, str) and not is_int64(value):
            raise InputError(
                f"{where} needs an 'id' that is a string or a whole number of at most 64 bits, not "
                f"{reprlib.repr(value)}"
            )
        if value in locations:
            raise InputError(
                f"{where}: the id {value!r} is already used by {locations[value]}; give each entry its own id"
            )
        locations[value] = where


def _triples(annotation: CocoAnnotation, count: int) -> npt.NDArray[np.float64]:
    """Return x, y, v of each point of one annotation, [L, 3]."""
    values = annotation.values.get("keypoints")
    if not isinstance(values, list) or len(values) != 3 * count:
        actual = f"{len(values)} numbers" if isinstance(values, list) else reprlib.repr(values)
        raise InputError(
            f"{annotation.where}: 'keypoints' must list x, y, v for each of {count} points, not {actual}"
        )
    # Compare types exactly, because isinstance(True, int) is True.
    if set(map(type, values)) <= {int, float}:
        try:
            return np.array(values, np.float64).reshape(-1, 3)
        except OverflowError:
            pass
    raise InputError(f"{annotation.where}: 'keypoints' must contain only numbers")


def _are_integers(values: Any) -> bool:
    return isinstance(values, list) and set(map(type, values)) <= {int}


def _scalar(value: Any) -> Scalar:
    """Return the value if it is a string, a boolean or a number that fits a float, otherwise None."""
    if isinstance(value, str | bool):
        return value
    is_usable = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return value if is_usable else None
