"""Write the report page: one self-contained index.html, made from arrays."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from selfmark._version import __version__
from selfmark.errors import report_write_errors
from selfmark.model.card import GOOD_TRUST, MIN_TRUST
from selfmark.model.colors import palette
from selfmark.points import FloatArray
from selfmark.report import charts, scatter
from selfmark.report.count_section import build_count_section
from selfmark.report.landmark_pictures import Picture, draw_landmark_gallery, draw_landmarks, to_data_uri
from selfmark.report.rounds_section import build_rounds_section
from selfmark.report.sections import IntArray, ReportCurves, ReportTable
from selfmark.report.trust_levels import TrustLevel, describe_trust, group_by_level, order_by_trust
from selfmark.run.files import write_text
from selfmark.run.guarded_files import make_folders

_MAX_CROPS = 12  # crops in the gallery of a landmark
_CROP_SIDE = 96  # side of a crop in the gallery, pixels
_NUMBER = re.compile(r"[-\u2212+±]?\d.*|-?|none")  # a number, or the text of a missing one


@dataclass(frozen=True)
class ReportData:
    """Everything that the page shows, for K landmarks and E example images of S x S pixels.

    The page leaves out sections without data.

    Attributes:
        title: Title of the page.
        names: Names of the landmarks.
        examples: [E, S, S, 3] uint8, the images as the network sees them.
        example_xy: [E, K, 2] landmarks in pixels of the examples; not finite where a landmark is missing.
        example_score: [E, K] scores of these landmarks.
        example_names: File names of the examples; untrusted text.
        mirror: Mirror partner of each landmark.
        detection: [K] fraction of the training images in which Stage 1 found the landmark.
        history: Events of log.jsonl. Events with `iteration` and `loss` become loss curves. `recovery` events
            become a table of rounds. `landmark_count` events explain how K was chosen.
        headline_numbers: The most important results as (name, value, explanation).
        settings: The configuration as nested dictionaries.
        colors: "#rrggbb" of each landmark; empty for the default palette.
        skeleton: Pairs of landmarks to connect in the examples.
        hidden: Landmarks that are not shown; the others keep their numbers.
        without_partner: Landmarks for which no mirror partner was found.
        notes: Sentences near the top of the page.
        tables: Results of an evaluation as tables.
        curves: Results of an evaluation as curves.
        cluster_xy: [P, 2] positions of points on the map of the landmarks. An even sample of at most 1,000
            points is drawn.
        cluster_label: [P] landmark of each point; -1 for points without a landmark.
        cluster_note: Sentences below the map on how it was made.
        trust: [K] from 0 to 1; not finite where it was not measured.
        trust_limits: Lowest trust for "use with care" and for "trustworthy".
        order: [K] landmarks in the order in which they are shown. None sorts them by trust, or by number if
            there is no trust.
        facts: (name, value) pairs of each landmark.
    """

    title: str
    names: tuple[str, ...]
    examples: Picture
    example_xy: FloatArray
    example_score: FloatArray
    example_names: tuple[str, ...]
    mirror: tuple[int, ...]
    detection: FloatArray
    history: tuple[dict[str, Any], ...]
    headline_numbers: tuple[tuple[str, str, str], ...]
    settings: dict[str, Any]
    colors: tuple[str, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    hidden: tuple[int, ...] = ()
    without_partner: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    curves: tuple[ReportCurves, ...] = ()
    cluster_xy: FloatArray | None = None
    cluster_label: IntArray | None = None
    cluster_note: str = ""
    trust: FloatArray | None = None
    trust_limits: tuple[float, float] = (MIN_TRUST, GOOD_TRUST)
    order: IntArray | None = None
    facts: tuple[tuple[tuple[str, str], ...], ...] = ()

    def __post_init__(self) -> None:
        """Raise if the shapes of the arrays do not fit together."""
        K, E = len(self.names), len(self.example_names)
        if self.examples.ndim != 4 or self.examples.shape[0] != E or self.examples.shape[3] != 3:
            raise ValueError(
                f"examples must be [{E}, S, S, 3] to match their names, not {self.examples.shape}"
            )
        if self.example_xy.shape != (E, K, 2) or self.example_score.shape != (E, K):
            raise ValueError(f"example_xy must be [{E}, {K}, 2] and example_score [{E}, {K}]")
        if len(self.mirror) != K or len(self.detection) != K:
            raise ValueError(f"mirror and detection must have an entry for each of the {K} landmarks")
        if len(self.colors) not in (0, K):
            raise ValueError(f"colors must have an entry for each of the {K} landmarks")
        if (self.trust is not None and self.trust.shape != (K,)) or len(self.facts) not in (0, K):
            raise ValueError(f"trust and facts must have an entry for each of the {K} landmarks")
        if self.order is not None and sorted(self.order.tolist()) != list(range(K)):
            raise ValueError(f"order must name each of the {K} landmarks once")
        self._check_clusters()

    @property
    def landmark_colors(self) -> tuple[str, ...]:
        """Color of each landmark: `colors`, or the default palette."""
        return self.colors or palette(len(self.names))

    def _check_clusters(self) -> None:
        if self.cluster_xy is None or self.cluster_label is None:
            if self.cluster_xy is not None or self.cluster_label is not None:
                raise ValueError("the map of the landmarks needs both cluster_xy and cluster_label")
            return
        P = len(self.cluster_label)
        if self.cluster_xy.shape != (P, 2) or self.cluster_label.ndim != 1:
            raise ValueError(
                f"cluster_xy must be [{P}, 2] to match cluster_label, not {self.cluster_xy.shape}"
            )


def write_report(data: ReportData, folder: Path) -> Path:
    """Write `folder`/index.html atomically, and return its path.

    Raises:
        UnsafeFile: If `folder`, which is a part of the output folder, is a link.
    """
    page = _load_template().render(_build_template_values(data), charts=charts, scatter=scatter)
    target = folder / "index.html"
    with report_write_errors(target):
        make_folders(folder, below=folder.parent)
        # File names that are not valid text contain lone surrogates, which UTF-8 cannot encode.
        write_text(page, target, errors="replace")
    return target


@functools.cache  # compiling the template takes longer than filling it in
def _load_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # titles, names and file names come from the user and may contain anything
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["columns"] = _find_numeric_columns
    return environment.get_template("template.html")


def _build_template_values(data: ReportData) -> dict[str, Any]:
    """Return the variables of template.html."""
    landmarks = _build_landmarks(data)
    levels: dict[int, TrustLevel] = {row["index"]: row["trust"] for row in landmarks if row["trust"]}
    round_tables, round_curves = build_rounds_section(data.history)
    count_text, count_tables, count_curves = build_count_section(data.history)
    return {
        "title": data.title,
        "version": __version__,
        "notes": data.notes,
        "headline_numbers": data.headline_numbers,
        "landmarks": landmarks,
        "hidden": [data.names[index] for index in data.hidden],
        "by_number": {row["index"]: row for row in landmarks},
        "groups": group_by_level(levels),
        "comparison": _build_comparison(landmarks) if data.facts or levels else None,
        "examples": _build_examples(data),
        "tables": data.tables,
        "curves": charts.build_line_charts(data.curves),
        "clusters": _build_clusters(data),
        "cluster_note": data.cluster_note,
        "count_text": count_text,
        "count_tables": count_tables,
        "count_curves": charts.build_line_charts(count_curves),
        "round_tables": round_tables,
        "training": charts.build_loss_charts(data.history) + charts.build_line_charts(round_curves),
        "settings": list(_flatten(data.settings)),
    }


def _build_examples(data: ReportData) -> list[dict[str, Any]]:
    visible_xy = data.example_xy.copy()
    visible_xy[:, list(data.hidden)] = np.nan
    return [
        {"name": name, "picture": to_data_uri(draw_landmarks(image, xy, data.landmark_colors, data.skeleton))}
        for name, image, xy in zip(data.example_names, data.examples, visible_xy, strict=True)
    ]


def _build_landmarks(data: ReportData) -> list[dict[str, Any]]:
    """Return an entry for each landmark that is not hidden, in the order in which the page shows them."""
    trust: list[TrustLevel] = []
    order: IntArray = np.arange(len(data.names))
    if data.trust is not None:
        trust = [describe_trust(float(value), data.trust_limits) for value in data.trust]
        order = order_by_trust(data.trust)
    if data.order is not None:
        order = data.order
    return [
        {
            "index": index,
            "name": data.names[index],
            "color": data.landmark_colors[index],
            "partner": None if index in data.without_partner else data.mirror[index],
            "trust": trust[index] if trust else None,
            "detection": _format_percent(float(data.detection[index])),
            "score": _format_mean_score(data.example_score[:, index]),
            "facts": data.facts[index] if data.facts else (),
            "gallery": _build_gallery(data, index),
        }
        for index in order.tolist()
        if index not in data.hidden
    ]


def _build_gallery(data: ReportData, landmark: int) -> list[dict[str, str]]:
    crops = draw_landmark_gallery(
        data.examples,
        data.example_xy[:, landmark],
        data.example_score[:, landmark],
        color=data.landmark_colors[landmark],
        max_crops=_MAX_CROPS,
        side=_CROP_SIDE,
    )
    return [
        {
            "name": data.example_names[row],
            "score": f"{data.example_score[row, landmark]:.2f}",
            "picture": to_data_uri(picture),
        }
        for row, picture in crops
    ]


def _build_comparison(landmarks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a table with a row for each landmark and a column for each fact."""
    names = list(dict.fromkeys(name for row in landmarks for name, _ in row["facts"]))
    return {
        "names": names,
        "rows": [(row, [dict(row["facts"]).get(name, "none") for name in names]) for row in landmarks],
    }


def _build_clusters(data: ReportData) -> scatter.Scatter | None:
    """Return the map of the landmarks; None if it would be empty."""
    if data.cluster_xy is None or data.cluster_label is None:
        return None
    visible = ~np.isin(data.cluster_label, data.hidden)
    clusters = scatter.build_scatter(
        data.cluster_xy[visible], data.cluster_label[visible], data.landmark_colors
    )
    return clusters if clusters.groups else None


def _format_percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%" if np.isfinite(fraction) else "not measured"


def _format_mean_score(scores: FloatArray) -> str:
    finite = scores[np.isfinite(scores)]
    return f"{finite.mean():.2f}" if len(finite) else "none"


def _find_numeric_columns(table: ReportTable) -> list[bool]:
    """Return True for each column that has only numbers; such columns are aligned right.

    The first column never counts, because it names the rows.
    """
    columns = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.header)
    return [
        bool(index) and all(_NUMBER.fullmatch(cell.strip()) for cell in column)
        for index, column in enumerate(columns)
    ]


def _flatten(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as (dotted name, value), with the names that `--set` takes."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
