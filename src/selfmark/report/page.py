"""The report page: arrays in, one self-contained index.html out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from selfmark._version import __version__
from selfmark.errors import InputError
from selfmark.points import FloatArray
from selfmark.report import charts
from selfmark.report.pictures import Picture, data_uri, draw_landmarks, landmark_colours, landmark_gallery

_GALLERY = 12  # cut-outs per landmark
_CUT_OUT = 96  # pixels of a cut-out


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
    detection:     [K] share of the training images in which Stage 1 found the landmark
    history:       events of log.jsonl; those with `iteration` and `loss` make the curves
    figures:       headline figures as (name, value, explanation in plain words)
    settings:      the configuration as nested dictionaries
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


def write_report(data: ReportData, folder: Path) -> Path:
    """Write `folder`/index.html, whole or not at all, and return its path."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # titles, names and file names are the user's, and may hold anything
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("template.html").render(
        title=data.title,
        version=__version__,
        figures=data.figures,
        examples=_examples(data),
        landmarks=_landmarks(data),
        charts=charts.loss_charts(data.history),
        chart_size=charts,
        settings=list(_flatten(data.settings)),
    )
    target = folder / "index.html"
    temporary = folder / "index.html.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # File names that are not valid text on this disk arrive as lone surrogates, which UTF-8 cannot hold.
        temporary.write_text(page, encoding="utf-8", errors="replace")
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    return target


def _examples(data: ReportData) -> list[dict[str, Any]]:
    pictures = zip(data.example_names, data.examples, data.example_xy, strict=True)
    return [{"name": name, "picture": data_uri(draw_landmarks(image, xy))} for name, image, xy in pictures]


def _landmarks(data: ReportData) -> list[dict[str, Any]]:
    colours = ["#" + colour.tobytes().hex() for colour in landmark_colours(len(data.names))]
    return [
        {
            "index": index,
            "name": name,
            "colour": colours[index],
            "partner": data.mirror[index],
            "partner_name": data.names[data.mirror[index]],
            "detection": f"{100 * data.detection[index]:.0f}",
            "score": _mean_score(data.example_score[:, index]),
            "gallery": [
                {
                    "name": data.example_names[row],
                    "score": f"{data.example_score[row, index]:.2f}",
                    "picture": data_uri(picture),
                }
                for row, picture in landmark_gallery(
                    data.examples, data.example_xy, data.example_score, index, _GALLERY, _CUT_OUT
                )
            ],
        }
        for index, name in enumerate(data.names)
    ]


def _mean_score(scores: FloatArray) -> str:
    finite = scores[np.isfinite(scores)]
    return f"{finite.mean():.2f}" if len(finite) else "none"


def _flatten(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, value) rows, the way `--set` takes them."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value)
