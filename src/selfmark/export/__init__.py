"""Predictions in the formats of other tools: one file per target, one way in.

A format is a function that takes predictions batch by batch, so that an hour of video needs constant memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from selfmark.detector import ModelCard, Prediction
from selfmark.errors import InputError
from selfmark.export.coco import write_coco
from selfmark.export.csv import write_csv

Writer = Callable[[Iterable[Prediction], ModelCard, Path], Path]

FORMATS: dict[str, Writer] = {"csv": write_csv, "coco": write_coco}


def writer(name: str) -> Writer:
    """The function that writes format `name`."""
    if name not in FORMATS:
        raise InputError(f"there is no format '{name}'; choose one of {', '.join(FORMATS)}")
    return FORMATS[name]
