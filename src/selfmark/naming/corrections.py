"""Store corrected landmarks of images in RUN/corrections/labels.json, as COCO keypoints.

A user drags landmarks to where they belong. A landmark that was moved is labeled at its new place (v = 2). If
the user marks the image as done, the unmoved landmarks are labeled at their predicted places. Three kinds of
landmarks stay unlabeled (v = 0): landmarks that the user marks as not visible, unmoved landmarks that the
model card hides, and unmoved landmarks of an image that is not done. `selfmark evaluate`, `map` and `refine`
read the file.

The key "selfmark" of an annotation stores what COCO has no field for: which landmarks were moved or marked as
not visible, and whether the image is done.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfmark._version import __version__
from selfmark.errors import InputError, report_write_errors
from selfmark.evaluation.correction_labels import CORRECTIONS, build_point_entries, require_same_count
from selfmark.image_ref import Box, ImageRef
from selfmark.images.coco import CocoAnnotation, CocoFile, read_coco, read_keypoints
from selfmark.images.input_files import MAX_COORDINATE
from selfmark.model.card import ModelCard
from selfmark.naming.edits import edits_to_json, parse_edits
from selfmark.run.files import FORMAT, write_json
from selfmark.run.guarded_files import make_folder, read_bytes
from selfmark.run.json_schema import is_bool, is_count, is_list_of, require_fields
from selfmark.run.locks import exclusive

_VISIBLE = 2  # COCO's v of a point that is annotated and visible


# --- edits -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MovePoint:
    """Move a landmark of an image to a place, in pixels of the original with pixel centers at integers."""

    row: int
    landmark: int
    x: float
    y: float


@dataclass(frozen=True)
class ResetPoint:
    """Withdraw the correction of a landmark: the landmark is visible again, at its predicted place."""

    row: int
    landmark: int


@dataclass(frozen=True)
class SetAbsent:
    """Mark a landmark as not visible in an image."""

    row: int
    landmark: int


@dataclass(frozen=True)
class SetDone:
    """Mark an image as done or not done.

    In an image that is done, unmoved landmarks are labeled unless they are hidden or marked as not visible.
    """

    row: int
    done: bool


Correction = MovePoint | ResetPoint | SetAbsent | SetDone

_CLASSES: dict[str, type[Correction]] = {
    "move": MovePoint,
    "reset": ResetPoint,
    "absent": SetAbsent,
    "done": SetDone,
}


def corrections_from_json(values: Any) -> list[Correction]:
    """Parse a list of corrections such as {"kind": "move", "row": 3, "landmark": 0, "x": 12.5, "y": 8.0}.

    >>> corrections_from_json([{"kind": "done", "row": 3, "done": True}])
    [SetDone(row=3, done=True)]
    """
    return parse_edits(values, _CLASSES)


def corrections_to_json(corrections: Sequence[Correction]) -> list[dict[str, Any]]:
    """Convert corrections to JSON values; the inverse of `corrections_from_json`."""
    return edits_to_json(corrections, _CLASSES)


# --- the corrections of one image ---------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The labeled place of a landmark in an image.

    Attributes:
        xy: x and y in pixels of the original.
        is_moved: True if the user moved the landmark there; False if it is the predicted place in an image
            that the user marked as done.
    """

    xy: tuple[float, float]
    is_moved: bool


@dataclass(frozen=True)
class ImageCorrection:
    """The corrections of an object in an image.

    Attributes:
        places: Mapping from the numbers of the labeled landmarks to their places.
        absent: Landmarks that the user marked as not visible.
        done: Whether the user marked the image as done.
    """

    places: Mapping[int, Place] = field(default_factory=dict)
    absent: frozenset[int] = frozenset()
    done: bool = False


def apply_correction(
    current: ImageCorrection,
    edit: Correction,
    predicted: Sequence[tuple[float, float]],
    hidden: Sequence[int],
) -> ImageCorrection:
    """Return the corrections of an image after an edit.

    Args:
        current: Corrections before the edit.
        edit: Edit to apply.
        predicted: x and y of the K predicted landmarks, in pixels of the original.
        hidden: Landmarks that get no label when the image is marked as done.
    """
    places, absent, done = dict(current.places), current.absent, current.done
    match edit:
        case MovePoint(_, landmark, x, y):
            places[landmark], absent = Place((x, y), True), absent - {landmark}
        case ResetPoint(_, landmark):
            places.pop(landmark, None)
            absent -= {landmark}
        case SetAbsent(_, landmark):
            places.pop(landmark, None)
            absent |= {landmark}
        case SetDone(_, done):
            pass
    places = {landmark: place for landmark, place in places.items() if place.is_moved or done}
    if done:
        unmoved = set(range(len(predicted))) - set(places) - absent - set(hidden)
        places |= {landmark: Place(predicted[landmark], False) for landmark in unmoved}
    return ImageCorrection(dict(sorted(places.items())), absent, done)


def invert_correction(current: ImageCorrection, edit: Correction) -> Correction:
    """Return the edit that undoes `edit` and so restores `current`."""
    match edit:
        case SetDone(row, _):
            return SetDone(row, current.done)
        case MovePoint(row, landmark, _, _) | ResetPoint(row, landmark) | SetAbsent(row, landmark):
            place = current.places.get(landmark)
            if place is not None and place.is_moved:
                return MovePoint(row, landmark, *place.xy)
            return SetAbsent(row, landmark) if landmark in current.absent else ResetPoint(row, landmark)


# --- the file ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorrectedObject:
    """An object in an image with its corrections.

    Attributes:
        ref: Image and box of the object; the path is absolute.
        size: Width and height of the image, in pixels.
        correction: Corrections of the object.
    """

    ref: ImageRef
    size: tuple[int, int]
    correction: ImageCorrection


def get_object_key(ref: ImageRef) -> tuple[str, int | None, Box | None]:
    """Return a key that identifies an object: path, frame and box."""
    return os.path.abspath(ref.path), ref.frame, ref.box


class CorrectionFile:
    """Reader and writer of the corrections of a run.

    The corrections are not kept in memory: every read returns what is on disk. Every edit reads, changes and
    replaces the file under a lock.
    """

    def __init__(self, folder: Path) -> None:
        """Create a reader and writer of the corrections in a run folder or model folder."""
        self.path = folder / CORRECTIONS

    def read(self, num_landmarks: int) -> list[CorrectedObject]:
        """Return the corrected objects; empty if nothing was corrected yet.

        Raises:
            InputError: The file is damaged or was made for a detector with more or fewer landmarks.
        """
        if not self.path.exists():
            return []
        file = read_coco(self.path)
        file.check_ids()
        category = file.category(file.annotations)
        names: Any = category.values.get("keypoints")
        if file.annotations:
            names = category.point_names(file.annotations[0])
        if isinstance(names, (list, tuple)):
            require_same_count(self.path, len(names), num_landmarks)
        if not file.annotations:
            return []
        points = read_keypoints(file.annotations, names)
        return [_object_from_coco(file, entry, points[row]) for row, entry in enumerate(file.annotations)]

    def edit(
        self,
        edits: Sequence[Correction],
        card: ModelCard,
        refs: Sequence[ImageRef],
        sizes: Sequence[tuple[int, int]],
        predicted: Sequence[Sequence[tuple[float, float]]],
    ) -> list[Correction]:
        """Apply edits and write the file.

        Args:
            edits: Edits to apply; `row` of an edit is an index into `refs`.
            card: Names, mirror partners, skeleton and hidden landmarks.
            refs: N images.
            sizes: Width and height of each image, in pixels.
            predicted: N x K predicted landmarks, x and y in pixels of the originals.

        Returns:
            The edits that undo the change.

        Raises:
            InputError: An edit is invalid or the file cannot be written; no edit is applied.
        """
        for edit in edits:
            _check_edit(edit, len(card.names), refs)
        with report_write_errors(self.path):
            make_folder(self.path.parent)
            with exclusive(self.path.parent, wait=True, lock_file=False):
                objects = {get_object_key(item.ref): item for item in self.read(len(card.names))}
                undo: list[Correction] = []
                for edit in edits:
                    key = get_object_key(refs[edit.row])
                    before = objects.get(key) or CorrectedObject(
                        replace(refs[edit.row], path=Path(key[0])), sizes[edit.row], ImageCorrection()
                    )
                    undo.insert(0, invert_correction(before.correction, edit))
                    after = apply_correction(before.correction, edit, predicted[edit.row], card.hidden)
                    objects[key] = replace(before, correction=after)
                write_json(_to_coco(objects.values(), card), self.path)
        return undo

    def revision(self) -> str:
        """Return a digest of the file; empty if the file does not exist."""
        try:
            return hashlib.sha256(read_bytes(self.path)).hexdigest()[:16]
        except OSError:
            return ""


def _check_edit(edit: Correction, num_landmarks: int, refs: Sequence[ImageRef]) -> None:
    if not 0 <= edit.row < len(refs):
        raise InputError(f"there is no image {edit.row}; images are numbered from 0 to {len(refs) - 1}")
    try:
        str(refs[edit.row].path).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the file name {refs[edit.row].name!r} is not valid UTF-8: rename the file before you correct "
            "its landmarks"
        ) from error
    if isinstance(edit, SetDone):
        return
    if not 0 <= edit.landmark < num_landmarks:
        raise InputError(
            f"there is no landmark {edit.landmark}; landmarks are numbered from 0 to {num_landmarks - 1}"
        )
    if isinstance(edit, MovePoint) and not (abs(edit.x) < MAX_COORDINATE and abs(edit.y) < MAX_COORDINATE):
        raise InputError(f"a landmark cannot be moved to ({edit.x}, {edit.y})")


def _object_from_coco(file: CocoFile, annotation: CocoAnnotation, points: Any) -> CorrectedObject:
    image = file.image_of(annotation)
    try:
        extra = annotation.values["selfmark"]
        is_landmark_list = is_list_of(lambda value: is_count(value) and value < len(points))
        lists = {"moved": is_landmark_list, "absent": is_landmark_list}
        require_fields(extra, lists, {"done": is_bool})
        require_fields(image.values, {"width": _is_side, "height": _is_side}, {"frame": is_count})
        moved, absent = set(extra["moved"]), set(extra["absent"])
        size = image.values["width"], image.values["height"]
        box = annotation.box()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{annotation.where} was not written by 'selfmark correct': {error}") from error
    places = {
        landmark: Place((float(x), float(y)), landmark in moved)
        for landmark, (x, y, visibility) in enumerate(points.tolist())
        if visibility > 0
    }
    ref = ImageRef(Path(image.file_name), image.frame(), box, annotation.track())
    return CorrectedObject(ref, size, ImageCorrection(places, frozenset(absent), extra.get("done", False)))


def _is_side(value: Any) -> bool:
    """Return True for a possible width or height of an image in pixels."""
    return is_count(value) and 1 <= value < MAX_COORDINATE


def _to_coco(objects: Iterable[CorrectedObject], card: ModelCard) -> dict[str, Any]:
    """Return the content of the COCO file; objects without corrections are left out."""
    images: dict[tuple[Path, int | None], dict[str, Any]] = {}
    annotations: list[dict[str, Any]] = []
    for item in objects:
        ref, correction = item.ref, item.correction
        if correction == ImageCorrection():
            continue
        width, height = item.size
        entry = {"id": len(images) + 1, "file_name": str(ref.path), "width": width, "height": height}
        entry |= {} if ref.frame is None else {"frame": ref.frame}
        image = images.setdefault((ref.path, ref.frame), entry)
        keypoints: list[float] = []
        for landmark in range(len(card.names)):
            place = correction.places.get(landmark)
            keypoints += (*place.xy, _VISIBLE) if place else (0, 0, 0)
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": image["id"],
                "category_id": 1,
                "keypoints": keypoints,
                "num_keypoints": len(correction.places),
                "iscrowd": 0,
                **({} if ref.box is None else {"bbox": list(ref.box)}),
                **({} if ref.track is None else {"track_id": ref.track}),
                "selfmark": {
                    "done": correction.done,
                    "moved": [landmark for landmark, place in correction.places.items() if place.is_moved],
                    "absent": sorted(correction.absent),
                },
            }
        )
    category = {"id": 1, "name": "object", **build_point_entries(card)}
    info = {"description": "landmarks corrected with selfmark", "selfmark": __version__, "format": FORMAT}
    return {
        "info": info,
        "images": list(images.values()),
        "annotations": annotations,
        "categories": [category],
    }
