"""The report page: arrays in, one self-contained index.html out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from selfmark._version import __version__
from selfmark.errors import InputError
from selfmark.model.colors import palette
from selfmark.points import FloatArray
from selfmark.report import charts
from selfmark.report import scatter as maps
from selfmark.report.count_section import landmark_count
from selfmark.report.landmark_pictures import Picture, draw_landmark_gallery, draw_landmarks, to_data_uri
from selfmark.report.rounds_section import rounds_history
from selfmark.report.sections import IntArray, ReportCurves, ReportTable
from selfmark.report.trust_levels import TrustLevel, group_by_level, order_by_trust, trust_level
from selfmark.run.files import atomic_write

_MAX_CROPS = 12  # in the gallery of a landmark
_CROP_SIDE = 96  # of a crop in the gallery, in pixels
_NUMBER = re.compile(r"[-\u2212+±]?\d.*|-?|none")  # a cell that belongs to a column of numbers


@dataclass(frozen=True)
class ReportData:
    """All that the page shows. K landmarks, E example images of S x S pixels.

    title:         of the page
    names:         K landmark names
    examples:      [E, S, S, 3] uint8, what the network sees
    example_xy:    [E, K, 2] in pixels of the examples; not finite where a landmark is missing
    example_score: [E, K]
    example_names: E file names, as the user's disk has them: untrusted text
    mirror:        mirror partner of each landmark
    colors:       "#rrggbb" of each landmark; empty: the usual ones
    skeleton:      pairs of landmarks to connect in the examples
    hidden:        landmarks that are not shown; the others keep their numbers
    detection:     [K] share of the training images in which Stage 1 found the landmark
    history:       events of log.jsonl; those with `iteration` and `loss` make the loss curves, `recovery`
                   events the table of rounds, `landmark_count` events the part on how K was chosen
    figures:       headline figures as (name, value, explanation in plain words)
    settings:      the configuration as nested dictionaries

    What an evaluation adds, each part shown only where it is there:

    notes:         sentences shown near the top
    tables:        results as text
    curves:        results as curves
    cluster_xy:    [P, 2] a map of descriptors; the first 1,000 or so are drawn, evenly picked
    cluster_label: [P] landmark of each of them, -1 for none
    cluster_cuts:  [P, c, c, 3] uint8, what is seen at each of them
    cluster_note:  sentences on how the map was made, shown below it
    trust:         [K] from 0 to 1; not finite where it was not measured
    trust_limits:  trust from which a landmark is to be used with care, and from which it is trustworthy
    order:         [K] landmarks in the order they are shown; default: by trust, else by number
    facts:         for each landmark its (name, value) pairs
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
    figures: tuple[tuple[str, str, str], ...]
    settings: dict[str, Any]
    colors: tuple[str, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    hidden: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    curves: tuple[ReportCurves, ...] = ()
    cluster_xy: FloatArray | None = None
    cluster_label: IntArray | None = None
    cluster_cuts: Picture | None = None
    cluster_note: str = ""
    trust: FloatArray | None = None
    # Trust is a product of three shares: right four times of five in each check makes a half, and below a
    # quarter a landmark is wrong in more than a third of each.
    trust_limits: tuple[float, float] = (0.25, 0.5)
    order: IntArray | None = None
    facts: tuple[tuple[tuple[str, str], ...], ...] = ()

    def __post_init__(self) -> None:
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
    def fills(self) -> tuple[str, ...]:
        """The color of each landmark."""
        return self.colors or palette(len(self.names))

    def _check_clusters(self) -> None:
        if self.cluster_xy is None or self.cluster_label is None:
            if any(part is not None for part in (self.cluster_xy, self.cluster_label, self.cluster_cuts)):
                raise ValueError("a map of descriptors needs both cluster_xy and cluster_label")
            return
        P = len(self.cluster_label)
        if self.cluster_xy.shape != (P, 2) or self.cluster_label.ndim != 1:
            raise ValueError(
                f"cluster_xy must be [{P}, 2] to match cluster_label, not {self.cluster_xy.shape}"
            )
        cuts = self.cluster_cuts
        if cuts is not None and (cuts.ndim != 4 or cuts.shape[0] != P or cuts.shape[3] != 3):
            raise ValueError(f"cluster_cuts must be [{P}, c, c, 3], not {cuts.shape}")


def write_report(data: ReportData, folder: Path) -> Path:
    """Write `folder`/index.html, whole or not at all, and return its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # titles, names and file names are the user's, and may hold anything
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["columns"] = _numeric_columns
    page = environment.get_template("template.html").render(_view(data), charts=charts, maps=maps)
    target = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as temporary:
            # File names that are not text on this disk arrive as lone surrogates, which UTF-8 cannot hold.
            temporary.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    return target


def _view(data: ReportData) -> dict[str, Any]:
    """What the template is filled with."""
    landmarks = _landmarks(data)
    trusts: dict[int, TrustLevel] = {row["index"]: row["trust"] for row in landmarks if row["trust"]}
    round_tables, round_curves = rounds_history(data.history)
    count_words, count_tables, count_curves = landmark_count(data.history)
    return {
        "title": data.title,
        "version": __version__,
        "notes": data.notes,
        "figures": data.figures,
        "landmarks": landmarks,
        "hidden": [data.names[index] for index in data.hidden],
        "by_number": {row["index"]: row for row in landmarks},
        "groups": group_by_level(trusts),
        "comparison": _comparison(landmarks) if data.facts or trusts else None,
        "examples": _examples(data),
        "tables": data.tables,
        "curves": charts.line_charts(data.curves),
        "clusters": _clusters(data),
        "cluster_note": data.cluster_note,
        "count_words": count_words,
        "count_tables": count_tables,
        "count_curves": charts.line_charts(count_curves),
        "round_tables": round_tables,
        "training": charts.loss_charts(data.history) + charts.line_charts(round_curves),
        "settings": list(_flatten(data.settings)),
    }


def _examples(data: ReportData) -> list[dict[str, Any]]:
    places = data.example_xy.copy()
    places[:, list(data.hidden)] = np.nan
    pictures = zip(data.example_names, data.examples, places, strict=True)
    return [
        {"name": name, "picture": to_data_uri(draw_landmarks(image, xy, data.fills, data.skeleton))}
        for name, image, xy in pictures
    ]


def _landmarks(data: ReportData) -> list[dict[str, Any]]:
    """One entry for each landmark, in the order the page shows them."""
    trust = (
        [] if data.trust is None else [trust_level(float(value), data.trust_limits) for value in data.trust]
    )
    order = np.arange(len(data.names)) if data.trust is None else order_by_trust(data.trust)
    return [
        {
            "index": index,
            "name": data.names[index],
            "color": data.fills[index],
            "partner": data.mirror[index],
            "trust": trust[index] if trust else None,
            "detection": _percent(float(data.detection[index])),
            "score": _mean_score(data.example_score[:, index]),
            "facts": data.facts[index] if data.facts else (),
            "gallery": _gallery(data, index),
        }
        for index in (order if data.order is None else data.order).tolist()
        if index not in data.hidden
    ]


def _gallery(data: ReportData, landmark: int) -> list[dict[str, str]]:
    crops = draw_landmark_gallery(
        data.examples,
        data.example_xy[:, landmark],
        data.example_score[:, landmark],
        color=data.fills[landmark],
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


def _comparison(landmarks: list[dict[str, Any]]) -> dict[str, Any]:
    """All landmarks in one table, a column for each fact that any of them has."""
    names = list(dict.fromkeys(name for row in landmarks for name, _ in row["facts"]))
    return {
        "names": names,
        "rows": [(row, [dict(row["facts"]).get(name, "none") for name in names]) for row in landmarks],
    }


def _clusters(data: ReportData) -> maps.Scatter | None:
    if data.cluster_xy is None or data.cluster_label is None:
        return None
    shown = ~np.isin(data.cluster_label, data.hidden)
    cuts = None if data.cluster_cuts is None else data.cluster_cuts[shown]
    drawn = maps.build_scatter(data.cluster_xy[shown], data.cluster_label[shown], data.fills, cuts)
    return drawn if drawn.clouds else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if np.isfinite(share) else "not measured"


def _mean_score(scores: FloatArray) -> str:
    finite = scores[np.isfinite(scores)]
    return f"{finite.mean():.2f}" if len(finite) else "none"


def _numeric_columns(table: ReportTable) -> list[bool]:
    """Which columns hold numbers, so that these stand under each other; the first names the row."""
    cells = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.header)
    return [
        bool(place) and all(_NUMBER.fullmatch(cell.strip()) for cell in column)
        for place, column in enumerate(cells)
    ]


def _flatten(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, value) rows, the way `--set` takes them."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
