"""What an ONNX file says of itself, so that it needs no other file beside it: its `metadata_props`.

All keys begin with `selfmark.`; values are JSON.
"""

from __future__ import annotations

import dataclasses
import json

from selfmark._version import __version__
from selfmark.detector import Detector, detector_fingerprint

MODEL = "selfmark.model"  # which model the file was made from


def build_metadata(detector: Detector) -> dict[str, str]:
    card = detector.card
    values = {
        "version": __version__,
        "names": card.names,
        "mirror": card.mirror,
        "skeleton": card.skeleton,
        "images": dataclasses.asdict(card.images),
        "refine": card.refine,
        "flip_test": card.flip_test,
    }
    return {MODEL: detector_fingerprint(detector)} | {
        f"selfmark.{name}": json.dumps(value) for name, value in values.items()
    }
