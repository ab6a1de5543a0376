"""Box files of other tools: COCO JSON, YOLO text files, CSV. What they say, not yet where it belongs."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfmark.errors import InputError
from selfmark.image_ref import Box
from selfmark.images.coco import read_coco
from selfmark.images.input_files import parse_box, read_text

_COLUMNS = {  # of a CSV file, by the names people give them
    "image": ("image", "video", "file", "file_name", "filename", "path"),
    "frame": ("frame", "frame_number"),
    "x": ("x", "left"),
    "y": ("y", "top"),
    "w": ("w", "width"),
    "h": ("h", "height"),
    "track": ("track", "track_id", "id"),
}


@dataclass(frozen=True)
class FileBox:
    """One box as a file gives it.

    where:  the words that name its place in the file
    image:  name of the image or video it is of; empty where the file does not say
    frame:  0-based, None where the file does not say
    box:    x, y, w, h, corner convention; in pixels, or with `shares` as shares of width and height
    track:  which of a video's objects it is, None where the file does not say
    """

    where: str
    image: str
    frame: int | None
    box: Box
    track: int | None
    shares: bool = False


def read_boxes(path: Path) -> list[FileBox]:
    """The boxes of a COCO file (.json), a table (.csv), or YOLO's text files (a .txt or a folder of them)."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; see that the path is right")
    if path.is_dir():
        files = sorted(path.rglob("*.txt"))
        if not files:
            raise InputError(f"the folder {path} holds no .txt files, which is what YOLO's boxes are in")
        boxes = _yolo(files)
    elif path.suffix.lower() == ".json":
        boxes = list(_coco(path))
    elif path.suffix.lower() == ".csv":
        boxes = list(_table(path))
    elif path.suffix.lower() == ".txt":
        boxes = _yolo([path])
    else:
        raise InputError(f"{path}: boxes are read from .json (COCO), .csv, and .txt or folders of it (YOLO)")
    if not boxes:
        raise InputError(f"{path} holds no boxes")
    return boxes


# --- COCO ------------------------------------------------------------------------------------------


def _coco(path: Path) -> Iterator[FileBox]:
    file = read_coco(path)
    for annotation in file.annotations:
        box = annotation.box()
        if box is not None:
            image = file.image_of(annotation)
            yield FileBox(annotation.where, image.file_name, image.frame(), box, annotation.track())


# --- CSV -------------------------------------------------------------------------------------------


def _table(path: Path) -> Iterator[FileBox]:
    rows = csv.reader(read_text(path).splitlines())
    header = [name.strip().lower() for name in next(rows, [])]
    place = {
        meaning: next((header.index(name) for name in names if name in header), None)
        for meaning, names in _COLUMNS.items()
    }
    missing = [name for name in "xywh" if place[name] is None]
    if missing or (place["image"] is None and place["frame"] is None):
        raise InputError(
            f"{path}: the first line must name the columns image or frame (or both), x, y, w, h and, where "
            f"there is one, track; it is '{','.join(header)[:80]}'"
        )
    for number, row in enumerate(rows, start=2):
        where = f"{path} line {number}"
        if not any(cell.strip() for cell in row):
            continue
        cells = {
            meaning: row[at].strip() for meaning, at in place.items() if at is not None and at < len(row)
        }
        numbers = [_number(cells.get(name, ""), where) for name in "xywh"]
        yield FileBox(
            where,
            cells.get("image", ""),
            _whole(cells.get("frame", ""), "frame", where),
            parse_box(numbers, f"{where}: the box"),
            _whole(cells.get("track", ""), "track", where),
        )


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{where}: '{text}' is not a number") from error


def _whole(text: str, what: str, where: str) -> int | None:
    """A whole number that is not negative, also written as 3.0 the way tables do; None for nothing."""
    if not text:
        return None
    value = _number(text, where)
    if value != value or value < 0 or value != int(value):
        raise InputError(f"{where}: a {what} is a whole number from 0, not '{text}'")
    return int(value)


# --- YOLO ------------------------------------------------------------------------------------------


def _yolo(files: Sequence[Path]) -> list[FileBox]:
    """Rows `class cx cy w h [confidence] [track]`, shares of the image; one file per image or frame.

    A file is called after its image. Of a video, Ultralytics calls it VIDEO_N.txt, with N counted from 1. A
    sixth number alone is a confidence or a track: whole numbers in all rows make it a track.
    """
    lines = [
        (f"{file} line {number}", file, line.split())
        for file in files
        for number, line in enumerate(read_text(file).splitlines(), start=1)
        if line.strip()
    ]
    tracked = all(re.fullmatch(r"\d+", words[5]) for _, _, words in lines if len(words) == 6)
    boxes = []
    for where, file, words in lines:
        if len(words) < 5:
            raise InputError(
                f"{where}: a row of YOLO's is 'class cx cy w h', then perhaps confidence and track"
            )
        cx, cy, width, height = (_number(word, where) for word in words[1:5])
        track = words[6] if len(words) == 7 else words[5] if len(words) == 6 and tracked else ""
        box = parse_box([cx - width / 2, cy - height / 2, width, height], f"{where}: the box")
        boxes.append(FileBox(where, file.stem, None, box, _whole(track, "track", where), shares=True))
    return boxes
