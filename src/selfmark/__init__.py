"""selfmark: discover the landmarks of an object category from unlabeled images.

>>> import selfmark
>>> detector = selfmark.discover("photos/", landmarks=20)     # doctest: +SKIP
>>> points = detector("cat.jpg")                              # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from selfmark._version import __version__
from selfmark.errors import InputError, SelfmarkError, TrainingError

if TYPE_CHECKING:
    from selfmark.detector import Detector
    from selfmark.discovery import discover
    from selfmark.points import Landmarks

__all__ = [
    "Detector",
    "InputError",
    "Landmarks",
    "SelfmarkError",
    "TrainingError",
    "__version__",
    "discover",
    "load",
]


def load(folder: str, device: str = "cpu") -> Detector:
    """The detector of a run folder, or `demo`, the one of the demo's toy animal that comes with selfmark."""
    from selfmark.detector import Detector

    return Detector.load(folder, device)


def __getattr__(name: str) -> Any:
    """Import the heavy parts only when they are used, so that `selfmark --help` is instant."""
    if name == "discover":
        from selfmark.discovery import discover

        return discover
    if name == "Detector":
        from selfmark.detector import Detector

        return Detector
    if name == "Landmarks":
        from selfmark.points import Landmarks

        return Landmarks
    raise AttributeError(f"module 'selfmark' has no attribute '{name}'")
