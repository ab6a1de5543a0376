"""Record which model made the results in a folder.

The record prevents results of another model from being overwritten by accident; see `run.output_folder`.
"""

from __future__ import annotations

from pathlib import Path

from selfmark._version import __version__
from selfmark.export.trust_entries import get_smoothing_method
from selfmark.model.card import ModelCard
from selfmark.run.files import FORMAT, write_json

RECORD = "predictions.json"
"""File in an output folder that records how the results were made."""


def write_record(folder: Path, model: str, run: Path, output_format: str, card: ModelCard) -> None:
    """Write predictions.json: the model, its run folder, the output format and the smoothing method."""
    values = {
        "format": FORMAT,
        "selfmark": __version__,
        "run": str(run),
        "model": model,
        "output_format": output_format,
        "smoothing": get_smoothing_method(card) or "none",
    }
    write_json(values, folder / RECORD)
