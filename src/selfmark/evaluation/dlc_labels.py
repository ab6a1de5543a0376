"""Read labels of DeepLabCut and Lightning Pose (CSV) into the structure of a COCO file.

In this way, the same code checks the points and finds the images of every label format.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from selfmark.errors import InputError
from selfmark.images.coco import CocoAnnotation, CocoFile, CocoImage
from selfmark.images.input_files import read_csv_rows

# First cell of each header line, in tables of one individual and in tables of several individuals.
LEVELS = (["scorer", "bodyparts", "coords"], ["scorer", "individuals", "bodyparts", "coords"])
# Every individual gets a list of all body parts. In real tables, individuals share most body parts, so these
# lists are not much longer than the rows.
_MAX_POINTS_PER_COLUMN = 16
_MIN_POINTS_TO_CHECK = 1_000
VISIBLE = 2  # COCO's v of a point that is annotated and visible


class _Row(NamedTuple):
    """A line of the table.

    Attributes:
        where: Location of the line in the file, for messages.
        image: Folders and name of the image.
        cells: Text of each column that belongs to a body part.
    """

    where: str
    image: list[str]
    cells: list[str]


class _Table(NamedTuple):
    """A table, without the columns that name the image.

    Attributes:
        levels: One of `LEVELS`.
        columns: For each column, its header cells.
        rows: The lines below the header.
    """

    levels: list[str]
    columns: list[tuple[str, ...]]
    rows: list[_Row]


def read_dlc_labels(path: Path) -> CocoFile:
    """Read a table; every individual with at least one point becomes an annotation.

    If an image shows several individuals, each annotation gets the tight box around its points, because boxes
    tell the objects of an image apart. Other annotations have no box.
    """
    table = _read_table(path)
    columns = _check_columns(path, table)
    names = list(dict.fromkeys(bodypart for _, bodypart, _ in columns))
    images: list[CocoImage] = []
    annotations: list[CocoAnnotation] = []
    locations: dict[str, str] = {}
    for number, row in enumerate(table.rows):
        file_name = "/".join(row.image).replace("\\", "/")
        if not file_name or file_name.isdigit():
            raise InputError(f"{row.where}: each row must name an image file, not {file_name!r}")
        if file_name in locations:
            raise InputError(
                f"{row.where}: '{file_name}' is also labeled in {locations[file_name]}; keep one of the two"
            )
        locations[file_name] = row.where
        images.append(CocoImage(row.where, number, file_name, {"id": number, "file_name": file_name}))
        objects = list(_read_objects(row, columns, names))
        for keypoints in objects:
            values: dict[str, Any] = {"image_id": number, "keypoints": keypoints}
            if len(objects) > 1:
                values["bbox"] = _compute_tight_box(keypoints)
            annotations.append(CocoAnnotation(row.where, number, values))
    return CocoFile(path, tuple(images), tuple(annotations), {"categories": [{"keypoints": names}]})


# --- the table -------------------------------------------------------------------------------------


def _read_table(path: Path) -> _Table:
    if path.suffix.lower() in (".h5", ".hdf5"):
        # Tables that pandas stores in HDF5 are partly pickles, which can run any code when they are opened.
        raise InputError(f"{path} is an HDF5 file: give the CSV file that DeepLabCut keeps beside it")
    numbered_rows = read_csv_rows(path)
    lines = [line for _, line in numbered_rows]
    first_cells = [line[0] if line else "" for line in lines[:4]]
    levels = next((levels for levels in LEVELS if first_cells[: len(levels)] == levels), None)
    if levels is None:
        raise InputError(
            f"{path} is not a table of DeepLabCut: its first lines must begin with scorer, bodyparts, coords"
        )
    width = len(lines[0])
    nonempty = [(number, line) for number, line in numbered_rows if any(line)]
    for number, line in nonempty:
        if len(line) != width:
            raise InputError(f"{path}: line {number} has {len(line)} columns but the first line has {width}")
    header = lines[: len(levels)]
    # The path of an image takes one column, or one column per folder. These columns have no scorer.
    num_path = next((column for column in range(1, width) if lines[0][column]), width)
    columns = list(zip(*(line[num_path:] for line in header), strict=True))
    rows = [_Row(f"{path}: line {number}", line[:num_path], line[num_path:]) for number, line in nonempty]
    return _Table(levels, columns, rows[len(levels) :])


def _check_columns(path: Path, table: _Table) -> list[tuple[str, str, str]]:
    """Check the header, and return (individual, body part, coordinate) of each column.

    The individual is empty in a table of one individual.
    """
    scorers = list(dict.fromkeys(column[0] for column in table.columns))
    if len(scorers) > 1:
        raise InputError(
            f"{path} has labels of the scorers {scorers[0]} and {scorers[1]}; keep those of one scorer"
        )
    is_single = len(table.levels) == 3
    columns = [("", *column[1:]) if is_single else column[1:] for column in table.columns]
    triples = [(individual, bodypart, coordinate) for individual, bodypart, coordinate in columns]
    counts = Counter(triples)
    for individual, bodypart, _ in counts:
        for axis in "xy":
            if counts.get((individual, bodypart, axis)) != 1:
                raise InputError(f"{path}: '{bodypart}' must have one column {axis}")
    if not triples:
        raise InputError(f"{path} names no body parts")
    individuals, bodyparts = ({triple[part] for triple in triples} for part in (0, 1))
    if len(individuals) * len(bodyparts) > max(_MIN_POINTS_TO_CHECK, _MAX_POINTS_PER_COLUMN * len(triples)):
        raise InputError(
            f"{path} has columns for only a few of the {len(bodyparts):,} body parts of each of its "
            f"{len(individuals):,} individuals: give a table whose individuals share their body parts"
        )
    return triples


def _read_objects(
    row: _Row, columns: Sequence[tuple[str, str, str]], names: Sequence[str]
) -> Iterator[list[float]]:
    """Yield COCO keypoints (x, y, v of every name) of each individual with at least one point."""
    cells = dict(zip(columns, row.cells, strict=True))
    for individual in dict.fromkeys(column[0] for column in columns):
        keypoints: list[float] = []
        for name in names:
            x, y = (_read_number(row, name, cells.get((individual, name, axis), "")) for axis in "xy")
            if math.isnan(x) != math.isnan(y):
                raise InputError(f"{row.where}: '{name}' has only one of x and y; give both or neither")
            v = _read_number(row, name, cells.get((individual, name, "visible"), str(VISIBLE)))
            if math.isnan(x):
                keypoints += [0, 0, 0]
            else:
                keypoints += [x, y, 0 if math.isnan(v) else v]
        if any(keypoints[2::3]):
            yield keypoints


def _read_number(row: _Row, name: str, cell: str) -> float:
    """Return the number in a cell; NaN if the cell is empty."""
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        raise InputError(f"{row.where}: '{name}' must be a number, not {reprlib.repr(cell)}") from None


def _compute_tight_box(keypoints: Sequence[float]) -> list[float]:
    """Return the box x, y, w, h around keypoints (x, y, v of every name), measured from pixel corners."""
    points = [(x, y) for x, y, v in zip(*(keypoints[part::3] for part in range(3)), strict=True) if v]
    xs, ys = zip(*points, strict=True)
    return [min(xs) + 0.5, min(ys) + 0.5, max(xs) - min(xs), max(ys) - min(ys)]
