"""Figures as SVG and PNG, and their numbers as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selfmark.errors import require_package
from selfmark.model.colors import palette
from selfmark.paper.reproduction.experiment import Experiment
from selfmark.paper.reproduction.table_metrics import Kind
from selfmark.paper.reproduction.table_writers import ABSENT, FAILED, Values
from selfmark.run.files import atomic_write

DPI, SHEET_DPI = 150, 200  # of PNGs; landmarks on sheets have small numbers
_GRAY = "#b4bac1"
_PANEL = (4.6, 3.4)  # inches
# The areas of the face that the paper colors, by index: outline, brows, nose, eyes, mouth.
_AREAS = ((0, 17), (17, 27), (27, 36), (36, 48), (48, 68))


def require_matplotlib() -> None:
    """Figures need matplotlib, which selfmark does without otherwise."""
    require_package("matplotlib", "'selfmark[reproduce]'")


def write_figure(experiment: Experiment, values: Values, folder: Path) -> list[Path]:
    """NAME.svg and NAME.png, and NAME.csv with every number drawn; sheets of pictures as PNG alone."""
    # As programs without a screen draw: nothing of a user's own settings of matplotlib is used.
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    _DRAWN[experiment.kind](figure, experiment, values)
    suffixes = (".png",) if experiment.kind == "sheet" else (".svg", ".png")
    paths = [folder / f"{experiment.name}{suffix}" for suffix in suffixes]
    for path in paths:
        with atomic_write(path) as temporary:
            # Without a date the same numbers give the same file.
            stamp = {"Date": None} if path.suffix == ".svg" else None
            dpi = SHEET_DPI if experiment.kind == "sheet" else DPI
            figure.savefig(temporary, format=path.suffix[1:], dpi=dpi, metadata=stamp)
    if experiment.kind != "sheet":
        paths.append(folder / f"{experiment.name}.csv")
        _write_numbers(experiment, values, paths[-1])
    return paths


def _curves(figure: Any, experiment: Experiment, values: Values) -> None:
    """A panel for each column, a line for each row."""
    columns = experiment.columns
    axes = _panels(figure, len(columns), 2 if len(columns) > 1 else 1)
    for axis, column in zip(axes, columns, strict=True):
        for row in experiment.own_rows:
            line = values.get((row.name, column.name))
            if isinstance(line, list):
                shown = [float("nan") if value is None else value for value in line]
                marker = "o" if len(line) <= 12 else None
                axis.plot(range(1, len(line) + 1), shown, marker=marker, markersize=3, label=row.name)
        _label(axis, column.name, experiment)
        axis.set_ylim(bottom=0)
        if axis.lines:
            axis.legend(fontsize="small", frameon=False)


def _bars(figure: Any, experiment: Experiment, values: Values) -> None:
    """A panel for each row and column, a bar for each point; the areas of a face in colors."""
    cells = [(row, column) for row in experiment.own_rows for column in experiment.columns]
    for axis, (row, column) in zip(_panels(figure, len(cells), 1, wide=2.2), cells, strict=True):
        line = values.get((row.name, column.name))
        if isinstance(line, list):
            heights = [0.0 if value is None else value for value in line]
            axis.bar(range(1, len(line) + 1), heights, color=_area_colors(len(line)))
        _label(axis, f"{column.name}, {row.name}", experiment)
        axis.set_ylim(0, 100)


def _area_colors(count: int) -> list[str]:
    if count != _AREAS[-1][1]:
        return [palette(1)[0]] * count
    colors = palette(len(_AREAS))
    return [color for (low, high), color in zip(_AREAS, colors, strict=True) for _ in range(low, high)]


def _map(figure: Any, experiment: Experiment, values: Values) -> None:
    """A panel for each row and column: a dot for each point, gray on no annotated one."""
    cells = [(row, column) for row in experiment.own_rows for column in experiment.columns]
    for axis, (row, column) in zip(_panels(figure, len(cells), len(cells)), cells, strict=True):
        points = values.get((row.name, column.name))
        if isinstance(points, list):
            labels = sorted({int(label) for *_, label in points if label >= 0})
            colors = dict(zip(labels, palette(max(len(labels), 1)), strict=False))
            axis.scatter(
                [point[0] for point in points],
                [point[1] for point in points],
                s=5,
                linewidths=0,
                c=[colors.get(int(point[2]), _GRAY) for point in points],
            )
        axis.set_title(row.name if len(experiment.columns) == 1 else f"{row.name}, {column.name}")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_aspect("equal", "datalim")


def _sheet(figure: Any, experiment: Experiment, values: Values) -> None:
    """The pictures of all rows, one below the other."""
    import matplotlib.image

    cells = [(row, column) for row in experiment.own_rows for column in experiment.columns]
    for axis, (row, column) in zip(_panels(figure, len(cells), 1, wide=2.2), cells, strict=True):
        path = values.get((row.name, column.name))
        if isinstance(path, str) and path not in (ABSENT, FAILED):
            axis.imshow(matplotlib.image.imread(path))
            axis.set_title(row.name)
        else:
            axis.set_title(f"{row.name}: {path}")
        axis.axis("off")


_DRAWN: dict[Kind, Callable[[Any, Experiment, Values], None]] = {
    "curves": _curves,
    "bars": _bars,
    "map": _map,
    "sheet": _sheet,
}


def _panels(figure: Any, count: int, across: int, wide: float = 1.0) -> Sequence[Any]:
    """So many axes in rows of `across`, each `wide` times as wide as usual."""
    down = -(-count // across)
    figure.set_size_inches(_PANEL[0] * wide * across, _PANEL[1] * down)
    grid: Any = figure.subplots(down, across, squeeze=False).ravel()
    for axis in grid[count:]:
        axis.axis("off")
    chosen: Sequence[Any] = grid[:count]
    return chosen


def _label(axis: Any, title: str, experiment: Experiment) -> None:
    axis.set_title(title)
    axis.set_xlabel(experiment.x)
    axis.set_ylabel(experiment.y)
    axis.locator_params("x", integer=True)  # half a round or half a point is no place
    axis.spines[["top", "right"]].set_visible(False)


def _write_numbers(experiment: Experiment, values: Values, path: Path) -> None:
    """One line per number: column, row, place on the line and value; of maps x, y and point."""
    of_map = experiment.kind == "map"
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["column", "row", *(["x", "y", "point"] if of_map else ["place", "value"])])
        for row in experiment.own_rows:
            for column in experiment.columns:
                cell = values.get((row.name, column.name))
                for place, value in enumerate(cell if isinstance(cell, list) else (), 1):
                    numbers = value if of_map else [place, value]
                    writer.writerow([column.name, row.name, *numbers])
