"""Read the first keypoints from a CSV file, such as the synthetic initializations of Sec. 5.1 of the paper.

    image,x,y,score
    photos/cat-01.jpg,120.5,88,0.9

The column `score` is optional. Coordinates are pixels of the original image, with pixel centers at integers.
The column `image` contains the path of an image or the end of its path, such as the file name. Each value
must match exactly one image.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np
import torch

from selfmark.errors import InputError
from selfmark.images.input_files import is_written_beside
from selfmark.points import FloatArray, Keypoints
from selfmark.run.guarded_files import open_to_read, physical_memory

_MAX_NUMBER = 1e30  # points are stored in float32, which sums of such numbers do not exceed
HEADERS = (["image", "x", "y"], ["image", "x", "y", "score"])


def read_points_file(path: Path, names: Sequence[str], regions: FloatArray, size: int) -> Keypoints:
    """Read points and convert them to network pixels.

    Args:
        path: the CSV file.
        names: names of the images, in the order of the image store.
        regions: [N, 4] part of each image that the network sees: a box (x, y, width, height) in original
            pixels.
        size: side of the network's square image in pixels.

    Returns:
        Points without descriptors, sorted by image, then by descending score, then by their order in the
        file. A missing score is 1. Points outside the region of their image are omitted.

    Raises:
        InputError: if the file cannot be read or is invalid, if an image is unknown or ambiguous, or if no
            point is inside a region.
    """
    index = _NameIndex(names)
    rows = [
        (index.find(image, f"{path}, line {line}"), x, y, score)
        for line, image, x, y, score in _read_rows(path)
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    table = table[np.lexsort((-table[:, 3], table[:, 0]))]
    image_index = table[:, 0].astype(np.int64)
    region = np.asarray(regions, dtype=np.float64)[image_index]
    xy = (table[:, 1:3] + 0.5 - region[:, :2]) * size / region[:, 2:] - 0.5
    is_inside = ((xy >= -0.5) & (xy < size - 0.5)).all(axis=1)
    if not is_inside.any():
        raise InputError(
            f"no point of {path} lies inside the used region of its image; x and y must be in pixels of the "
            "original image"
        )
    return Keypoints(
        torch.from_numpy(xy[is_inside]).float(),
        torch.from_numpy(image_index[is_inside]),
        torch.from_numpy(table[is_inside, 3]).float(),
    )


def _read_rows(path: Path) -> Iterator[tuple[int, str, float, float, float]]:
    """Yield line number, image, x, y and score of every row."""
    try:
        # utf-8-sig, because spreadsheet programs write a byte-order mark before the header.
        with (
            open_to_read(path, physical_memory()) as file,
            io.TextIOWrapper(file, "utf-8-sig", newline="") as stream,
        ):
            reader = csv.reader(stream)
            header = [title.strip() for title in next(reader, [])]
            if header not in HEADERS:
                raise InputError(
                    f"{path} must start with 'image,x,y' or 'image,x,y,score', not with '{','.join(header)}'"
                )
            for row in reader:
                if row:
                    yield reader.line_num, *_parse_row(row, len(header), f"{path}, line {reader.line_num}")
    except OSError as error:
        raise InputError(f"cannot read the points file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from error


def _parse_row(row: list[str], columns: int, where: str) -> tuple[str, float, float, float]:
    """Return image, x, y and score of a row; `where` is its position in the file for error messages."""
    if len(row) != columns:
        raise InputError(f"{where}: expected {columns} values, found {len(row)}")
    try:
        x, y, score = (float(text) for text in [*row[1:], "1"][:3])  # without a column `score`, use 1
    except ValueError as error:
        raise InputError(f"{where}: expected numbers, found '{','.join(row[1:])}'") from error
    if not all(abs(number) <= _MAX_NUMBER for number in (x, y, score)):  # False for NaN
        raise InputError(
            f"{where}: '{','.join(row[1:])}' must be finite numbers of at most {_MAX_NUMBER:g}; omit missing "
            "points"
        )
    return row[0], x, y, score


class _NameIndex:
    """Find images by name, or by the end of their path if no other image has the same end."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._by_name: dict[str, list[int]] = defaultdict(list)
        self._by_file: dict[str, list[tuple[int, tuple[str, ...]]]] = defaultdict(list)
        for row, name in enumerate(names):
            parts = PurePath(name).parts
            self._by_name[name].append(row)
            self._by_file[parts[-1] if parts else ""].append((row, parts))

    def find(self, image: str, where: str) -> int:
        """Return the index of an image; `where` is the position in the file for error messages.

        Spaces around the name are ignored only if no image has the name as it is written.
        """
        rows = self._find_rows(image)
        if not rows and image != image.strip():
            rows = [
                row
                for row in self._find_rows(image.strip())
                if not is_written_beside(Path(self._names[row]), image, len(PurePath(image.strip()).parts))
            ]
        if not rows:
            raise InputError(f"{where}: there is no image '{image}' among the given images")
        if len(rows) > 1:
            raise InputError(f"{where}: '{image}' matches {len(rows)} images; use more of its path")
        return rows[0]

    def _find_rows(self, image: str) -> list[int]:
        if image in self._by_name:
            return self._by_name[image]
        parts = PurePath(image).parts
        candidates = self._by_file.get(parts[-1] if parts else "", [])
        return [row for row, full in candidates if full[len(full) - len(parts) :] == parts]
