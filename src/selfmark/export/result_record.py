"""Record which model made the results in a folder.

It prevents results of another model from being overwritten by accident.
"""

from __future__ import annotations

from pathlib import Path

from selfmark._version import __version__
from selfmark.errors import InputError
from selfmark.export.trust_entries import get_smoothing_method
from selfmark.model.card import ModelCard
from selfmark.run.files import FORMAT, read_json, write_json

RECORD = "predictions.json"
"""File in an output folder that records how the results were made."""


def require_same_model(folder: Path, model: str, run: Path) -> None:
    """Raise if a folder has results of another model than `model`.

    Args:
        folder: Output folder, which need not exist.
        model: Fingerprint of the model that is about to write results, see `detector_fingerprint`.
        run: Folder of this model. It may have had another model before, for example before `refine`.
    """
    path = folder / RECORD
    if not path.exists():
        return
    try:
        record = dict(read_json(path))
    except (InputError, TypeError, ValueError):  # The file is not a record of selfmark.
        return
    if record.get("model") not in (None, model):
        source = record.get("run", "unknown")
        owner = f"another model ({source})"
        if source == str(run):
            owner = f"an earlier model of {run}, which has changed since"
        raise InputError(
            f"{folder} has results of {owner}; choose another folder with -o, or add --overwrite"
        )


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
