"""Write the page of a comparison: the table, and the landmarks of all methods in the same images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from selfmark._version import __version__
from selfmark.comparison.comparison_plan import Comparison
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.sources import list_images
from selfmark.images.store import load_store
from selfmark.report.landmark_pictures import draw_landmarks, to_data_uri
from selfmark.run.files import write_text
from selfmark.sampling import evenly_spaced

Row = dict[str, Any]

COLUMNS = {
    "method": "method",
    "k": "landmarks",
    "forward": "forward error, %",
    "guessing_forward": "guessing",
    "backward": "backward error, %",
    "guessing_backward": "guessing",
    "hits": "raw hits, %",
    "on_object": "on the object, %",
    "verdict": "verdict",
    "training_minutes": "training, min",
    "minutes": "total, min",
    "memory_gigabytes": "memory, GB",
}
# The columns that fit into a terminal of 80 characters.
TERMINAL_COLUMNS = {
    "method": "method",
    "forward": "forward",
    "guessing_forward": "guessing",
    "backward": "backward",
    "guessing_backward": "guessing",
    "verdict": "verdict",
    "minutes": "min",
}
_SHOWN_IMAGES = 8


def table_cells(row: Row, columns: Iterable[str] = COLUMNS) -> list[str]:
    """Return the table cells of a method's row, in the order of the columns.

    >>> table_cells({"method": "autolink", "failure": "", "k": 10, "forward": 6.049, "on_object": 0.9})[:3]
    ['autolink', '10', '6.05']
    """
    if row["failure"]:
        return [row["method"], "failed", *[""] * (len(list(columns)) - 2)]
    return [_format(name, row.get(name)) for name in columns]


def _format(name: str, value: Any) -> str:
    """Format a value for the table; fractions become percentages."""
    if value is None:
        return ""
    if name == "on_object":
        return f"{100 * value:.0f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def write_page(comparison: Comparison, rows: Sequence[Row], output: Path) -> Path:
    """Write index.html and return its path.

    Args:
        comparison: what was compared.
        rows: one per method, in the order of the page.
        output: folder of the comparison.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("selfmark", "comparison"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    succeeded_methods = [row["method"] for row in rows if not row["failure"]]
    text = environment.get_template("page.html").render(
        version=__version__,
        header=list(COLUMNS.values()),
        rows=[table_cells(row) for row in rows],
        failures=[(row["method"], row["failure"]) for row in rows if row["failure"]],
        methods=succeeded_methods,
        images=_draw_images(comparison, succeeded_methods, output),
        comparison=comparison,
        minutes=f"{comparison.budget / 60:g}",
    )
    path = output / "index.html"
    write_text(text, path)
    return path


def _draw_images(comparison: Comparison, methods: Sequence[str], output: Path) -> list[tuple[str, list[str]]]:
    """Return the name of each shown image and its pictures, one per method, as data URIs.

    Only images that every method can read are shown. An image with several objects is shown once per object.
    """
    refs = list_images(comparison.evaluated_images)
    chosen = [refs[row] for row in evenly_spaced(len(refs), _SHOWN_IMAGES)]
    pictures: dict[ImageRef, list[str]] = {}
    for method in methods:
        detector = Detector.load(output / method / "run")
        try:
            store = load_store(chosen, detector.card.images, float("inf"), None)
        except InputError:
            continue
        xy = detector.locate(store.pixels).xy.cpu().numpy()
        images = store.pixels.permute(0, 2, 3, 1).numpy()
        for ref, image, points in zip(store.refs, images, xy, strict=True):
            pictures.setdefault(ref, []).append(to_data_uri(draw_landmarks(image, points)))
    return [(ref.name, drawn) for ref, drawn in pictures.items() if len(drawn) == len(methods)]
