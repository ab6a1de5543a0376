"""Read box files of other tools: COCO JSON, YOLO text, CSV. `box_matching` finds the image of each box."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfmark.errors import InputError
from selfmark.image_ref import Box
from selfmark.images.coco import read_coco
from selfmark.images.input_files import parse_box, read_csv_rows, read_text_lines
from selfmark.wording import describe_count

_MAX_YOLO_WORDS = 7  # class, cx, cy, w, h, confidence and track
_MAX_FRACTION = 2.0  # boxes may be a little larger than their image; coordinates in pixels are far larger
_MAX_INDEX = 2**53  # a float holds every whole number up to this
_COLUMNS = {  # accepted column names of a CSV file
    "image": ("image", "video", "file", "file_name", "filename", "path"),
    "frame": ("frame", "frame_number"),
    "x": ("x", "left"),
    "y": ("y", "top"),
    "w": ("w", "width"),
    "h": ("h", "height"),
    "track": ("track", "track_id"),
    # This column names the track if a value occurs in several rows; otherwise it only numbers the rows.
    "id": ("id",),
}


@dataclass(frozen=True)
class FileBox:
    """One box read from a file.

    where:         location of the box in the file, for messages
    image:         name of the image or video as it is written; empty if the file does not give it
    frame:         0-based frame number; None if the file does not give it
    box:           x, y, w, h in pixels or fractions; x = y = 0 is the outer corner of the first pixel
    track:         number of the object in its video; None if the file does not give it
    is_fractional: whether `box` is in fractions of the image's width and height, as in YOLO files
    stated_size:   width and height of the image, pixels; None if the file does not state them, as tables
    """

    where: str
    image: str
    frame: int | None
    box: Box
    track: int | None
    is_fractional: bool = False
    stated_size: tuple[int, int] | None = None


def read_boxes(path: Path) -> list[FileBox]:
    """Read the boxes of a COCO file (.json), a table (.csv), or YOLO files (a .txt file or a folder)."""
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; check the path")
    if path.is_dir():
        files = sorted(path.rglob("*.txt"))
        if not files:
            raise InputError(f"the folder {path} contains no .txt files with boxes in YOLO's format")
        boxes = _read_yolo(files)
    elif path.suffix.lower() == ".json":
        boxes = list(_read_coco_boxes(path))
    elif path.suffix.lower() == ".csv":
        boxes = list(_read_csv(path))
    elif path.suffix.lower() == ".txt":
        boxes = _read_yolo([path])
    else:
        raise InputError(
            f"{path} is not a box file; give a .json file (COCO), a .csv file, or .txt files (YOLO)"
        )
    if not boxes:
        raise InputError(f"{path} contains no boxes")
    return boxes


# --- COCO ------------------------------------------------------------------------------------------


def _read_coco_boxes(path: Path) -> Iterator[FileBox]:
    file = read_coco(path)
    for annotation in file.annotations:
        box = annotation.box()
        if box is not None:
            image = file.image_of(annotation)
            yield FileBox(
                annotation.where,
                image.file_name,
                image.frame(),
                box,
                annotation.track(),
                stated_size=image.size(),
            )


# --- CSV -------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> Iterator[FileBox]:
    rows = list(read_csv_rows(path))
    header = [name.strip().lower() for name in rows[0][1]] if rows else []
    column_of = {
        field: next((header.index(name) for name in names if name in header), None)
        for field, names in _COLUMNS.items()
    }
    missing_columns = [name for name in "xywh" if column_of[name] is None]
    if missing_columns or (column_of["image"] is None and column_of["frame"] is None):
        raise InputError(
            f"{path}: the first line must name the columns image or frame (or both), x, y, w, h, and "
            f"optionally track; it is '{','.join(header)[:80]}'"
        )
    is_id_a_track = column_of["track"] is None and _repeats(rows[1:], column_of["id"])
    track_field = "id" if is_id_a_track else "track"
    for number, row in rows[1:]:
        where = f"{path} line {number}"
        if not any(cell.strip() for cell in row):
            continue
        if any(cell.strip() for cell in row[len(header) :]):
            raise InputError(
                f"{where} has {len(row)} cells, but the first line names "
                f"{describe_count(len(header), 'column')}; write decimal numbers as 1.5, not 1,5, and "
                "put names that contain commas in quotes"
            )
        written = {
            field: row[column]
            for field, column in column_of.items()
            if column is not None and column < len(row)
        }
        cells = {field: cell.strip() for field, cell in written.items()}
        image = written["image"] if cells.get("image") else ""  # Spaces may be part of the name of a file.
        numbers = [_parse_number(cells.get(name, ""), where) for name in "xywh"]
        yield FileBox(
            where,
            image,
            _parse_index(cells.get("frame", ""), "frame", where),
            parse_box(numbers, f"{where}: the box"),
            _parse_index(cells.get(track_field, ""), "track", where),
        )


def _repeats(rows: Sequence[tuple[int, list[str]]], column: int | None) -> bool:
    """Return True if a value occurs several times in a column of a CSV file."""
    values = [row[column].strip() for _, row in rows if column is not None and column < len(row)]
    return len(set(values)) < len(values)


def _parse_number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f"{where}: '{text}' is not a number") from error


def _parse_index(text: str, field: str, where: str) -> int | None:
    """Parse a whole number of at least 0, which may be written as 3.0; return None for an empty string."""
    if not text:
        return None
    value = _parse_number(text, where)
    if not 0 <= value <= _MAX_INDEX or value != int(value):  # The first comparison is False for NaN.
        raise InputError(f"{where}: the {field} must be a whole number of at least 0, not '{text}'")
    return int(value)


# --- YOLO ------------------------------------------------------------------------------------------


def _require_yolo_row(words: Sequence[str], where: str) -> None:
    """Raise if a row of a YOLO file is not a box in fractions of the image."""
    numbers = [_parse_number(word, where) for word in words[1:]]
    is_pose = len(words) > _MAX_YOLO_WORDS and len(words) % 3 == 2 and set(numbers[6::3]) <= {0, 1, 2}
    if len(words) < 5 or (len(words) > _MAX_YOLO_WORDS and not is_pose):
        raise InputError(
            f"{where}: a row must be 'class cx cy w h', optionally followed by confidence and track, or by "
            f"x, y, v of keypoints, but this one has {describe_count(len(words), 'word')}; polygons and "
            "rotated boxes cannot be used"
        )
    if len(words) == _MAX_YOLO_WORDS and not 0 <= numbers[4] <= 1:
        raise InputError(f"{where}: the confidence must be 0 to 1, not {words[5]}")
    if not all(abs(number) <= _MAX_FRACTION for number in numbers[:4]):  # False for NaN
        raise InputError(
            f"{where}: cx, cy, w and h must be fractions of the image, usually from 0 to 1, not "
            f"{' '.join(words[1:5])}"
        )


def _read_yolo(files: Sequence[Path]) -> list[FileBox]:
    """Read YOLO files: rows `class cx cy w h [confidence] [track]` in fractions of the image.

    Rows of poses, `class cx cy w h` and then `x y v` for each keypoint, are boxes, too. Polygons and rotated
    boxes are refused, because the first numbers of their rows are not a box.

    There is one file per image or frame. It has the name of its image. For the frames of a video, Ultralytics
    writes VIDEO_N.txt, with N counted from 1. If all rows of six numbers
    end with an integer, this integer is the track; otherwise, their last number is the confidence.
    """
    lines = [
        (f"{file} line {number}", file, line.split())
        for file in files
        for number, line in enumerate(read_text_lines(file), start=1)
        if line.strip()
    ]
    is_sixth_a_track = all(re.fullmatch(r"\d+", words[5]) for _, _, words in lines if len(words) == 6)
    boxes = []
    for where, file, words in lines:
        _require_yolo_row(words, where)
        cx, cy, width, height = (_parse_number(word, where) for word in words[1:5])
        has_track = len(words) == 7 or (len(words) == 6 and is_sixth_a_track)
        track = words[-1] if has_track else ""
        box = parse_box([cx - width / 2, cy - height / 2, width, height], f"{where}: the box")
        boxes.append(
            FileBox(where, file.stem, None, box, _parse_index(track, "track", where), is_fractional=True)
        )
    return boxes
