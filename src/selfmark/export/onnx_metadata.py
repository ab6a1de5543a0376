"""Metadata of an exported ONNX file (`metadata_props`), so that it can be used without other files.

All keys begin with `selfmark.`; values are JSON.
"""

from __future__ import annotations

import dataclasses
import json

from selfmark._version import __version__
from selfmark.detector import Detector, detector_fingerprint
from selfmark.export.trust_entries import trust_entries

MODEL = "selfmark.model"  # key for the fingerprint of the model that the file was made from


def build_metadata(detector: Detector) -> dict[str, str]:
    """Return the metadata of a detector's ONNX file, which predicts hidden landmarks, too."""
    card = detector.card
    values = {
        "version": __version__,
        "names": card.names,
        "mirror": card.mirror,
        "skeleton": card.skeleton,
        "images": dataclasses.asdict(card.images),
        "refine": card.refine,
        "flip_test": card.flip_test,
        **trust_entries(card),
    }
    return {MODEL: detector_fingerprint(detector)} | {
        f"selfmark.{name}": json.dumps(value) for name, value in values.items()
    }
