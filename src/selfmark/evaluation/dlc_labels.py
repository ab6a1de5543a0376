"""Labels of DeepLabCut and Lightning Pose (CSV) as the pieces of a COCO file.

So everything behind, from the checks of points to finding the images, is the same for every label file.
"""

from __future__ import annotations

import csv
import io
import math
import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from selfmark.errors import InputError
from selfmark.images.coco import Entry
from selfmark.images.sources import read_text

LEVELS = (["scorer", "bodyparts", "coords"], ["scorer", "individuals", "bodyparts", "coords"])
ANNOTATED = 2  # COCO's v of a point that can be seen


class _Row(NamedTuple):
    where: str  # words that name its place
    image: list[str]  # its folders and name
    cells: list[str]  # one per column


class _Table(NamedTuple):
    levels: list[str]
    columns: list[tuple[str, ...]]
    rows: list[_Row]


def load_dlc_labels(path: Path) -> tuple[Any, dict[int | str, Entry], list[Entry]]:
    """The file as `coco_points.load` would give it: content, images by id, annotations.

    An object is an individual with at least one point. It has no box, unless its image holds several objects,
    which nothing else would tell apart: then it is the extent of the points.
    """
    table = _read(path)
    columns = _columns(path, table)
    names = list(dict.fromkeys(bodypart for _, bodypart, _ in columns))
    images: dict[int | str, Entry] = {}
    annotations: list[Entry] = []
    seen: dict[str, str] = {}
    for number, row in enumerate(table.rows):
        file_name = "/".join(row.image).replace("\\", "/")
        if not file_name or file_name.isdigit():
            raise InputError(f"{row.where}: labels name an image file in each row, not {file_name!r}")
        if file_name in seen:
            raise InputError(f"{row.where}: '{file_name}' is labeled in {seen[file_name]} too; keep one")
        seen[file_name] = row.where
        images[number] = (row.where, {"id": number, "file_name": file_name})
        found = list(_objects(row, columns, names))
        for keypoints in found:
            entry = {"image_id": number, "keypoints": keypoints}
            annotations.append((row.where, entry | ({"bbox": _extent(keypoints)} if len(found) > 1 else {})))
    return {"categories": [{"keypoints": names}]}, images, annotations


# --- the table -------------------------------------------------------------------------------------


def _read(path: Path) -> _Table:
    if path.suffix.lower() in (".h5", ".hdf5"):
        # Tables of pandas in HDF5 are partly pickles, and opening those runs what is in them.
        raise InputError(f"{path} is HDF5: name the CSV file that DeepLabCut keeps beside it")
    try:
        lines = list(csv.reader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {error}") from error
    first = [line[0] if line else "" for line in lines[:4]]
    levels = next((levels for levels in LEVELS if first[: len(levels)] == levels), None)
    if levels is None:
        raise InputError(
            f"{path} is not a table of DeepLabCut: its first lines begin with scorer, bodyparts, coords"
        )
    width = len(lines[0])
    filled = [(number, line) for number, line in enumerate(lines, start=1) if any(line)]
    for number, line in filled:
        if len(line) != width:
            raise InputError(f"{path}: line {number} has {len(line)} columns where the first has {width}")
    heads = lines[: len(levels)]
    # The path of an image takes one column, or one for each folder: these have no scorer above them.
    index = next((column for column in range(1, width) if lines[0][column]), width)
    rows = [_Row(f"{path}: line {number}", line[:index], line[index:]) for number, line in filled]
    return _Table(levels, list(zip(*(head[index:] for head in heads), strict=True)), rows[len(levels) :])


# --- checked pieces --------------------------------------------------------------------------------


def _columns(path: Path, table: _Table) -> list[tuple[str, str, str]]:
    """Individual, body part and coordinate of each column."""
    scorers = list(dict.fromkeys(column[0] for column in table.columns))
    if len(scorers) > 1:
        raise InputError(f"{path} holds labels of {scorers[0]} and of {scorers[1]}; keep those of one scorer")
    single = len(table.levels) == 3
    columns = [("", *column[1:]) if single else column[1:] for column in table.columns]
    triples = [(individual, bodypart, coordinate) for individual, bodypart, coordinate in columns]
    counts = Counter(triples)
    for individual, bodypart, _ in counts:
        for needed in "xy":
            if counts.get((individual, bodypart, needed)) != 1:
                raise InputError(f"{path}: '{bodypart}' must have one column {needed}")
    if not triples:
        raise InputError(f"{path} names no body parts")
    return triples


def _objects(
    row: _Row, columns: Sequence[tuple[str, str, str]], names: Sequence[str]
) -> Iterator[list[float]]:
    """x, y, v of every name, for each individual with at least one point."""
    cells = dict(zip(columns, row.cells, strict=True))
    for individual in dict.fromkeys(column[0] for column in columns):
        keypoints: list[float] = []
        for name in names:
            x, y = (_number(row, name, cells.get((individual, name, axis), "")) for axis in "xy")
            if math.isnan(x) != math.isnan(y):
                raise InputError(f"{row.where}: '{name}' has only one of x and y; give both or neither")
            visible = _number(row, name, cells.get((individual, name, "visible"), str(ANNOTATED)))
            keypoints += [0, 0, 0] if math.isnan(x) else [x, y, 0 if math.isnan(visible) else visible]
        if any(keypoints[2::3]):
            yield keypoints


def _number(row: _Row, name: str, cell: str) -> float:
    """The number in a cell, NaN where there is none."""
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        raise InputError(f"{row.where}: '{name}' has {reprlib.repr(cell)} where a number belongs") from None


def _extent(keypoints: Sequence[float]) -> list[float]:
    """x, y, w, h around the points, from pixel corners."""
    placed = [(x, y) for x, y, v in zip(*(keypoints[part::3] for part in range(3)), strict=True) if v]
    xs, ys = zip(*placed, strict=True)
    return [min(xs) + 0.5, min(ys) + 0.5, max(xs) - min(xs), max(ys) - min(ys)]
