"""selfmark: discover the landmarks of an object category from unlabeled images.

>>> import selfmark
>>> detector = selfmark.discover("photos/", landmarks=20)     # doctest: +SKIP
>>> points = detector("cat.jpg")                              # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from selfmark._version import __version__
from selfmark.errors import InputError, SelfmarkError, TrainingError
from selfmark.image_ref import Box, ImageRef

if TYPE_CHECKING:
    from selfmark.api import evaluate, load, map_points
    from selfmark.detector import Detector
    from selfmark.discovery import discover
    from selfmark.points import Landmarks
    from selfmark.tracking.regions import Regions

__all__ = [
    "Box",
    "Detector",
    "ImageRef",
    "InputError",
    "Landmarks",
    "Regions",
    "SelfmarkError",
    "TrainingError",
    "__version__",
    "discover",
    "evaluate",
    "load",
    "map_points",
]

# Modules that import torch or OpenCV are imported on first use, so that `selfmark --help` is instant.
_MODULES = {
    "Detector": "selfmark.detector",
    "Landmarks": "selfmark.points",
    "Regions": "selfmark.tracking.regions",
    "discover": "selfmark.discovery",
    "evaluate": "selfmark.api",
    "load": "selfmark.api",
    "map_points": "selfmark.api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'selfmark' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
