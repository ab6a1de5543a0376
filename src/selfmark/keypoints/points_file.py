"""First keypoints from a CSV file: points somebody already has (the paper's synthetic initializations).

    image,x,y,score
    photos/cat-01.jpg,120.5,88,0.9

`score` may be missing. Coordinates are pixels of the original image, pixel centers at integers. An image is
named by its path as selfmark knows it or by any end of it that fits one image only, such as its file name.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

import numpy as np
import torch

from selfmark.errors import InputError
from selfmark.points import FloatArray, Keypoints

HEADERS = (["image", "x", "y"], ["image", "x", "y", "score"])


def read_points_file(path: Path, names: Sequence[str], regions: FloatArray, size: int) -> Keypoints:
    """Read points and carry them into network pixels.

    Args:
        path: the CSV file.
        names: the images' names, in the order of the image store.
        regions: [N, 4] box (x, y, width, height) of each image that the network sees, in original pixels.
        size: side of the network's square image.

    Returns:
        Points without descriptors, by image and then best first (in the file's order where scores are equal
        or missing). Points outside their image's region are left out, for the network cannot see them.
    """
    index = _NameIndex(names)
    rows = [
        (index.find(image, f"{path}, line {line}"), x, y, score) for line, image, x, y, score in _rows(path)
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    table = table[np.lexsort((-table[:, 3], table[:, 0]))]
    owner = table[:, 0].astype(np.int64)
    region = np.asarray(regions, dtype=np.float64)[owner]
    xy = (table[:, 1:3] + 0.5 - region[:, :2]) * size / region[:, 2:] - 0.5
    inside = ((xy >= -0.5) & (xy < size - 0.5)).all(axis=1)
    if not inside.any():
        raise InputError(
            f"no point of {path} lies inside the part of its image that is used; x and y must be pixels"
        )
    return Keypoints(
        torch.from_numpy(xy[inside]).float(),
        torch.from_numpy(owner[inside]),
        torch.from_numpy(table[inside, 3]).float(),
    )


def _rows(path: Path) -> Iterator[tuple[int, str, float, float, float]]:
    """Line number, image, x, y and score of every row."""
    try:
        # utf-8-sig: spreadsheet programs put a byte-order mark before the header.
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            header = [title.strip() for title in next(reader, [])]
            if header not in HEADERS:
                raise InputError(
                    f"{path} must begin with 'image,x,y' or 'image,x,y,score', not with '{','.join(header)}'"
                )
            for row in reader:
                if row:
                    yield reader.line_num, *_parse(row, len(header), f"{path}, line {reader.line_num}")
    except OSError as error:
        raise InputError(f"cannot read the points file {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from error


def _parse(row: list[str], columns: int, where: str) -> tuple[str, float, float, float]:
    if len(row) != columns:
        raise InputError(f"{where}: {columns} values are expected, not {len(row)}")
    try:
        x, y, score = (float(text) for text in [*row[1:], "1"][:3])
    except ValueError as error:
        raise InputError(f"{where}: '{','.join(row[1:])}' are not numbers") from error
    if not all(map(math.isfinite, (x, y, score))):
        raise InputError(f"{where}: '{','.join(row[1:])}' must be finite numbers; leave missing points out")
    return row[0].strip(), x, y, score


class _NameIndex:
    """Finds an image's row by its name, or by an end of its path that no other image shares."""

    def __init__(self, names: Sequence[str]) -> None:
        self._by_name: dict[str, list[int]] = defaultdict(list)
        self._by_file: dict[str, list[tuple[int, tuple[str, ...]]]] = defaultdict(list)
        for row, name in enumerate(names):
            parts = PurePath(name).parts
            self._by_name[name].append(row)
            self._by_file[parts[-1] if parts else ""].append((row, parts))

    def find(self, image: str, where: str) -> int:
        rows = self._by_name.get(image)
        if not rows:
            parts = PurePath(image).parts
            last = parts[-1] if parts else ""
            rows = [
                row for row, full in self._by_file.get(last, []) if full[len(full) - len(parts) :] == parts
            ]
        if not rows:
            raise InputError(f"{where}: there is no image '{image}' among the images given")
        if len(rows) > 1:
            raise InputError(f"{where}: '{image}' fits {len(rows)} images; write more of its path")
        return rows[0]
