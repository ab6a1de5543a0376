"""Write figures as SVG and PNG, and their numbers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from selfmark.errors import require_package
from selfmark.model.colors import palette
from selfmark.paper.reproduction.experiment import Experiment
from selfmark.paper.reproduction.reference_values import GUESSING
from selfmark.paper.reproduction.table_metrics import ExperimentKind
from selfmark.paper.reproduction.table_writers import ABSENT, FAILED, Values
from selfmark.run.files import atomic_open, write_bytes

DPI, SHEET_DPI = 150, 200  # resolution of PNG files; higher for contact sheets, which have small numbers
_GRAY = "#b4bac1"
_PANEL = (4.6, 3.4)  # width and height of a panel in inches
_MAX_MARKERS = 12  # longer curves are drawn without markers
# The facial areas that the paper colors, as ranges of point indices: outline, brows, nose, eyes, mouth.
_AREAS = ((0, 17), (17, 27), (27, 36), (36, 48), (48, 68))


def require_matplotlib() -> None:
    """Raise if matplotlib, which only figures need, is not installed."""
    require_package("matplotlib", "'selfmark[reproduce]'")


def write_figure(
    experiment: Experiment, values: Values, folder: Path, spreads: Values | None = None
) -> list[Path]:
    """Write NAME.svg, NAME.png and the numbers as NAME.csv; for contact sheets, write only NAME.png.

    Args:
        experiment: Experiment to draw.
        values: Values of the experiment by row and column.
        folder: Folder to write to.
        spreads: Standard deviations of the values of each curve, by row and column; they are shown as bands.
            Each value was measured several times, with regressors fitted on different random samples.

    Returns:
        The paths of the files.
    """
    require_matplotlib()
    # These classes draw without a display and ignore the user's choice of a matplotlib backend.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    _DRAW[experiment.kind](figure, experiment, values)
    if experiment.kind == "curves":
        _draw_bands(figure, experiment, values, spreads or {})
    suffixes = (".png",) if experiment.kind == "sheet" else (".svg", ".png")
    paths = [folder / f"{experiment.name}{suffix}" for suffix in suffixes]
    for path in paths:
        # Leave out the date, so that the same numbers give the same file.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        dpi = SHEET_DPI if experiment.kind == "sheet" else DPI
        # Draw into memory: if the disk is full, matplotlib may write a part of a file and report no error.
        stream = io.BytesIO()
        figure.savefig(stream, format=path.suffix[1:], dpi=dpi, metadata=metadata)
        write_bytes(stream.getvalue(), path)
    if experiment.kind != "sheet":
        paths.append(folder / f"{experiment.name}.csv")
        _write_numbers(experiment, values, spreads or {}, paths[-1])
    return paths


def _draw_curves(figure: Any, experiment: Experiment, values: Values) -> None:
    """Draw a panel for each column, with a curve for each row."""
    columns = experiment.columns
    axes = _add_panels(figure, len(columns), 2 if len(columns) > 1 else 1)
    for axis, column in zip(axes, columns, strict=True):
        for row in experiment.own_rows:
            line = values.get((row.name, column.name))
            if isinstance(line, list):
                heights = [float("nan") if value is None else value for value in line]
                marker = "o" if len(line) <= _MAX_MARKERS else None
                style = "--" if row.name.endswith(GUESSING) else "-"
                x = range(1, len(line) + 1)
                axis.plot(x, heights, style, marker=marker, markersize=3, label=row.name)
        _label_axes(axis, column.name, experiment)
        axis.set_ylim(bottom=0)
        if axis.lines:
            axis.legend(fontsize="small", frameon=False)


def _draw_bands(figure: Any, experiment: Experiment, values: Values, spreads: Values) -> None:
    """Draw a band of one standard deviation around each curve that has a spread, in the curve's color."""
    for axis, column in zip(figure.axes, experiment.columns, strict=False):
        lines = {line.get_label(): line for line in axis.lines}
        for row in experiment.own_rows:
            means, deviations = (table.get((row.name, column.name)) for table in (values, spreads))
            if isinstance(means, list) and isinstance(deviations, list):
                known = [
                    (position, mean, deviation)
                    for position, (mean, deviation) in enumerate(zip(means, deviations, strict=True), 1)
                    if mean is not None and deviation is not None
                ]
                low = [mean - deviation for _, mean, deviation in known]
                high = [mean + deviation for _, mean, deviation in known]
                color = lines[row.name].get_color()
                axis.fill_between([position for position, *_ in known], low, high, color=color, alpha=0.2)


def _draw_bars(figure: Any, experiment: Experiment, values: Values) -> None:
    """Draw a panel for each cell, with a bar for each annotated point; facial areas have different colors."""
    cells = list(product(experiment.own_rows, experiment.columns))
    for axis, (row, column) in zip(_add_panels(figure, len(cells), 1, width=2.2), cells, strict=True):
        line = values.get((row.name, column.name))
        if isinstance(line, list):
            heights = [0.0 if value is None else value for value in line]
            axis.bar(range(1, len(line) + 1), heights, color=_choose_bar_colors(len(line)))
        _label_axes(axis, f"{column.name}, {row.name}", experiment)
        axis.set_ylim(0, 100)


def _choose_bar_colors(count: int) -> list[str]:
    """Return the color of each bar; 68 points are colored by facial area, all others have one color."""
    if count != _AREAS[-1][1]:
        return [palette(1)[0]] * count
    colors = palette(len(_AREAS))
    return [color for (low, high), color in zip(_AREAS, colors, strict=True) for _ in range(low, high)]


def _draw_maps(figure: Any, experiment: Experiment, values: Values) -> None:
    """Draw a panel for each cell, with a dot for each descriptor.

    The color of a dot shows the annotated point that the descriptor belongs to; gray means none.
    """
    cells = list(product(experiment.own_rows, experiment.columns))
    for axis, (row, column) in zip(_add_panels(figure, len(cells), len(cells)), cells, strict=True):
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


def _draw_sheets(figure: Any, experiment: Experiment, values: Values) -> None:
    """Draw the pictures of all cells one below the other."""
    import matplotlib.image

    cells = list(product(experiment.own_rows, experiment.columns))
    for axis, (row, column) in zip(_add_panels(figure, len(cells), 1, width=2.2), cells, strict=True):
        path = values.get((row.name, column.name))
        if isinstance(path, str) and path not in (ABSENT, FAILED):
            axis.imshow(matplotlib.image.imread(path))
            axis.set_title(row.name)
        else:
            axis.set_title(f"{row.name}: {path}")
        axis.axis("off")


_DRAW: dict[ExperimentKind, Callable[[Any, Experiment, Values], None]] = {
    "curves": _draw_curves,
    "bars": _draw_bars,
    "map": _draw_maps,
    "sheet": _draw_sheets,
}


def _add_panels(figure: Any, count: int, per_row: int, width: float = 1.0) -> Sequence[Any]:
    """Add `count` panels in rows of `per_row`; each is `width` times as wide as a standard panel."""
    num_rows = -(-count // per_row)
    figure.set_size_inches(_PANEL[0] * width * per_row, _PANEL[1] * num_rows)
    grid: Any = figure.subplots(num_rows, per_row, squeeze=False).ravel()
    for axis in grid[count:]:
        axis.axis("off")
    panels: Sequence[Any] = grid[:count]
    return panels


def _label_axes(axis: Any, title: str, experiment: Experiment) -> None:
    axis.set_title(title)
    axis.set_xlabel(experiment.x)
    axis.set_ylabel(experiment.y)
    axis.locator_params("x", integer=True)  # The x axis counts rounds or points.
    axis.spines[["top", "right"]].set_visible(False)


def _write_numbers(experiment: Experiment, values: Values, spreads: Values, path: Path) -> None:
    """Write one line per number: column, row, place on the x axis, value, spread.

    For maps, write one line per point: column, row, x, y, annotated point.
    """
    is_map = experiment.kind == "map"
    with atomic_open(path, newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["column", "row", *(["x", "y", "point"] if is_map else ["place", "value", "spread"])])
        for row, column in product(experiment.own_rows, experiment.columns):
            cell, spread = (table.get((row.name, column.name)) for table in (values, spreads))
            for position, value in enumerate(cell if isinstance(cell, list) else (), 1):
                deviation = spread[position - 1] if isinstance(spread, list) else None
                numbers = value if is_map else [position, value, deviation]
                writer.writerow([column.name, row.name, *numbers])
