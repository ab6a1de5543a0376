"""Define the types of the tables and curves that the report page shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfmark.points import FloatArray

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True)
class ReportTable:
    """A table whose cells are text, with a note that explains it.

    >>> ReportTable("Error", "In percent.", ("images", "forward"), (("5", "6.1"), ("all", "4.8")))
    ReportTable(title='Error', note='In percent.', header=('images', 'forward'), \
rows=(('5', '6.1'), ('all', '4.8')))
    """

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Raise if a row has the wrong number of cells."""
        if any(len(row) != len(self.header) for row in self.rows):
            raise ValueError(f"every row of the table {self.title!r} must have {len(self.header)} cells")


@dataclass(frozen=True)
class ReportCurves:
    """Curves with common axes; each line is (name, x [P], y [P]). Only finite points are drawn."""

    title: str
    note: str
    x_label: str
    y_label: str
    lines: tuple[tuple[str, FloatArray, FloatArray], ...]

    def __post_init__(self) -> None:
        """Raise if the x and y of a line differ in length."""
        for name, x, y in self.lines:
            if x.ndim != 1 or x.shape != y.shape:
                raise ValueError(f"x and y of the line {name!r} must be vectors of equal length")
