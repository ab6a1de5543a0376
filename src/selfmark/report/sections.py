"""What an evaluation hands to the page besides pictures: tables of text and curves of numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True)
class ReportTable:
    """A table with a note in plain words; every cell is text as it is to be read.

    >>> ReportTable("Error", "In percent.", ("fitted on", "forward"), (("5 images", "6.1"), ("all", "4.8")))
    ReportTable(title='Error', note='In percent.', header=('fitted on', 'forward'), \
rows=(('5 images', '6.1'), ('all', '4.8')))
    """

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.header) for row in self.rows):
            raise ValueError(f"every row of the table {self.title!r} must have {len(self.header)} cells")


@dataclass(frozen=True)
class ReportCurves:
    """Curves that share their axes: lines are (name, x [P], y [P]); what is not finite is left out."""

    title: str
    note: str
    x_label: str
    y_label: str
    lines: tuple[tuple[str, FloatArray, FloatArray], ...]

    def __post_init__(self) -> None:
        for name, x, y in self.lines:
            if x.ndim != 1 or x.shape != y.shape:
                raise ValueError(f"x and y of the line {name!r} must be vectors of one length")
