"""Read exported tracks with the loader of Keypoint-MoSeq itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import cv2
import numpy as np
import pytest

from selfmark.export.dlc import write_dlc, write_dlc_h5
from selfmark.export.nwb import write_nwb
from selfmark.export.sleap import write_analysis, write_slp
from selfmark.image_ref import ImageRef
from tests.export.fakes import CARD, NAMES, iterate_expected_objects, make_predictions

# Modules that keypoint_moseq.io imports but its loader does not use: JAX, models that need JAX, readers of
# videos and settings, and a module that formats tables.
_UNUSED = ("jax", "jax.numpy", "jax_moseq", "jax_moseq.models", "jax_moseq.models.keypoint_slds")
_UNUSED += ("jax_moseq.utils", "vidio", "vidio.read", "commentjson", "tabulate")
TWO_ANIMALS = [
    (ImageRef(Path("mice.mp4"), frame, (0, 0, 9, 9), track=track), (320, 200))
    for frame in range(5)
    for track in (0, 1)
]


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module keypoint_moseq.io without the rest of the package, which needs JAX."""
    spec = importlib.util.find_spec("keypoint_moseq")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs keypoint-moseq, which 'make readers' installs")
    for name in _UNUSED:
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, MagicMock())
    package = ModuleType("keypoint_moseq")
    package.__path__ = list(spec.submodule_search_locations)
    monkeypatch.setitem(sys.modules, "keypoint_moseq", package)
    yield importlib.import_module("keypoint_moseq.io")
    for name in ("keypoint_moseq.io", "keypoint_moseq.util"):
        sys.modules.pop(name, None)


@pytest.fixture
def frames(tmp_path: Path) -> list[tuple[ImageRef, tuple[int, int]]]:
    """The frames of a real video file, because some export formats store the file's frame rate."""
    path = tmp_path / "mouse.mp4"
    video = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, (320, 200))
    for _ in range(6):
        video.write(np.zeros((200, 320, 3), np.uint8))
    video.release()
    return [(ImageRef(path, frame), (320, 200)) for frame in range(6)]


@pytest.mark.parametrize(
    ("write", "format_name", "extension"),
    [
        (write_dlc, "deeplabcut", ".csv"),
        (write_dlc_h5, "deeplabcut", ".h5"),
        (write_slp, "sleap", ".slp"),
        (write_analysis, "sleap", ".h5"),
        (write_nwb, "nwb", ".nwb"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_keypoint_moseq_loads_a_video(
    loader: Any, frames: Any, tmp_path: Path, write: Any, format_name: str, extension: str
) -> None:
    (tmp_path / "out").mkdir()
    batches = make_predictions(frames)
    write(batches, CARD, tmp_path / "out")
    coordinates, confidences, bodyparts = loader.load_keypoints(str(tmp_path / "out"), format_name, extension)
    (name,) = coordinates
    expected = list(iterate_expected_objects(batches))
    order = [list(bodyparts).index(body) for body in NAMES]
    np.testing.assert_allclose(coordinates[name][:, order], [obj.xy for obj in expected], atol=1e-3)
    np.testing.assert_allclose(confidences[name][:, order], [obj.score for obj in expected], atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_two_animals_become_two_recordings(loader: Any, tmp_path: Path) -> None:
    batches = make_predictions(TWO_ANIMALS)
    write_dlc(batches, CARD, tmp_path)
    coordinates, _, bodyparts = loader.load_keypoints(str(tmp_path), "deeplabcut", ".csv")
    assert len(coordinates) == 2
    assert set(bodyparts) == set(NAMES)
    expected = list(iterate_expected_objects(batches))
    for track, recording in enumerate(sorted(coordinates)):
        rows = [obj.xy for obj, (ref, _) in zip(expected, TWO_ANIMALS, strict=True) if ref.track == track]
        np.testing.assert_allclose(coordinates[recording], rows, atol=1e-3)
