"""Kill writers (SIGKILL) before each of their first file changes, and test that no file is half-written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.detector import Detector, detector_fingerprint
from selfmark.export import FORMATS
from selfmark.export.onnx_metadata import append_checksum
from selfmark.mapping.mapped_detector import TENSORS, LearnedMapping, load_mapping, save_mapping
from selfmark.mapping.model_selection import FitOptions
from selfmark.mapping.point_map import PointMap, make_empty_reference
from selfmark.model.card import write_card
from selfmark.run.files import atomic_folder, write_bytes, write_json, write_text
from selfmark.run.guarded_files import create_file
from selfmark.run.tensor_files import write_tensors
from tests.export.fakes import CARD, STILLS, make_predictions
from tests.reliability.runs import kill_before_change
from tests.stored_results import read_files

MAX_KILLS = 8  # maximum number of kills of each writer
# These formats contain a time or a random identifier, or need images or a video.
EXCLUDED = {"nwb", "ultralytics", "sleap-analysis"}
# The bytes of these files differ each time they are written, so only the names of the files are compared.
HDF5_FORMATS = {"sleap", "dlc-h5"}


def _write_folder(folder: Path) -> None:
    with atomic_folder(folder / "frames") as temporary:
        for number in range(2):
            with create_file(temporary / f"{number}.jpg") as handle:
                handle.write(b"pixels")


WRITERS: dict[str, Callable[[Path], Any]] = {
    "report": lambda folder: write_text("<html></html>" * 100, folder / "index.html"),
    "json": lambda folder: write_json(list(range(100)), folder / "metrics.json"),
    "card": lambda folder: write_card(CARD, folder),
    "tensors": lambda folder: write_tensors({"a": torch.arange(99)}, {"b": "c"}, folder / TENSORS),
    "onnx": lambda folder: write_bytes(append_checksum(b"model" * 100), folder / "model.onnx"),
    "folder": _write_folder,
}
for _name in sorted(set(FORMATS) - EXCLUDED):
    WRITERS[_name] = lambda folder, name=_name: FORMATS[name](make_predictions(STILLS), CARD, folder)  # type: ignore[misc]


def _write_and_kill(write: Callable[[Path], Any], folder: Path, change: int) -> int:
    """Write in a child process that is killed before its n-th change of a file; return its exit code."""
    child = os.fork()
    if child == 0:
        kill_before_change(folder, change)
        try:
            write(folder)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("name", WRITERS)
def test_a_killed_writer_leaves_nothing_half_written(name: str, tmp_path: Path) -> None:
    write, uninterrupted = WRITERS[name], tmp_path / "uninterrupted"
    uninterrupted.mkdir()
    write(uninterrupted)
    expected = read_files(uninterrupted)
    assert expected
    killed = 0
    for change in range(1, MAX_KILLS + 1):
        folder = tmp_path / str(change)
        folder.mkdir()
        if _write_and_kill(write, folder, change) == 0:
            break
        killed += 1
        for path, content in read_files(folder).items():
            if name not in HDF5_FORMATS and ".part" not in path:
                assert content == expected[path], path
        write(folder)
        assert set(read_files(folder)) == set(expected), "files of the killed process are left"
    assert killed >= 2


@pytest.mark.parametrize("is_early", [False, True], ids=["current", "early"])
def test_killing_the_writer_of_a_map_leaves_the_old_or_the_new_map(is_early: bool, finished: Path) -> None:
    """Test old maps of the current and of early versions, whose file of arrays has another name."""
    detector, model = Detector.load(finished), finished / "model"
    old_mapping, new_mapping = _make_mapping(detector, 1.0), _make_mapping(detector, 2.0)
    values, killed = set(), 0
    for change in range(1, 20):
        save_mapping(old_mapping, model)
        if is_early:
            (arrays,) = model.glob("map-*.safetensors")
            arrays.rename(model / TENSORS)
        if _write_and_kill(lambda folder: save_mapping(new_mapping, folder), model, change) == 0:
            break
        killed += 1
        values.add(float(load_mapping(finished, detector).map.constant[0]))
        save_mapping(new_mapping, model)
        assert float(load_mapping(finished, detector).map.constant[0]) == 2
        assert len(list(model.glob("map*"))) == 2, "files of the killed process are left"
    assert killed >= 5
    assert values == {1.0, 2.0}


def _make_mapping(detector: Detector, value: float) -> LearnedMapping:
    """Return a map of all landmarks to a single point at (value, value)."""
    return LearnedMapping(
        map=PointMap(np.zeros((2 * len(detector.names), 2)), np.full(2, value), make_empty_reference()),
        names=("nose",),
        mirror=(),
        skeleton=(),
        model=detector_fingerprint(detector),
        labels="labels.json",
        images=1,
        objects=1,
        options=FitOptions(aligned=False, mirrored=False, ridge=0.1),
        normalizer="side",
        error=None,
        errors=(None,),
    )
