"""Test what all export formats guarantee: atomic files, clear errors, and bounded memory.

SLEAP, NWB and Ultralytics have their own tests of errors, and CSV is not tested here.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export.coco_keypoints import write_coco
from selfmark.export.coco_results import write_coco_results
from selfmark.export.cvat import write_cvat
from selfmark.export.dlc import write_dlc, write_dlc_h5
from selfmark.export.label_studio import write_label_studio
from selfmark.export.lightning_pose import write_lightning_pose
from selfmark.export.output_files import spool_folder
from selfmark.export.parquet import write_parquet
from tests.export.fakes import CARD, STILLS, make_predictions

REQUIRED_PACKAGES = {write_dlc_h5: ("pandas", "tables", "h5py"), write_parquet: ("pyarrow",)}
STREAMING = [
    write_coco,
    write_coco_results,
    write_cvat,
    write_dlc,
    write_dlc_h5,
    write_lightning_pose,
    write_parquet,
]
TESTED = [*STREAMING, write_label_studio]

Write = Callable[..., Path]


def _require_packages(write: Write) -> Write:
    for package in REQUIRED_PACKAGES.get(write, ()):
        pytest.importorskip(package)
    return write


@pytest.mark.parametrize("write", TESTED)
def test_an_unwritable_folder_is_an_error_before_predicting(write: Write, tmp_path: Path) -> None:
    def refuse_to_predict() -> Iterator[Prediction]:
        raise AssertionError("predicted first")
        yield  # makes this function a generator

    blocked = tmp_path / "file"
    blocked.touch()
    for folder in (blocked, tmp_path / "missing"):
        with pytest.raises(InputError, match=f"^cannot write to {folder}: [A-Z][a-z ]+$"):
            _require_packages(write)(refuse_to_predict(), CARD, folder)


@pytest.mark.parametrize("write", TESTED)
def test_no_files_are_left_when_predicting_fails(write: Write, tmp_path: Path) -> None:
    def predict_and_fail() -> Iterator[Prediction]:
        yield from make_predictions(STILLS)
        raise InputError("the video is broken")

    with pytest.raises(InputError, match="broken"):
        _require_packages(write)(predict_and_fail(), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", TESTED)
def test_no_temporary_files_are_left(write: Write, tmp_path: Path) -> None:
    path = _require_packages(write)(make_predictions(STILLS), CARD, tmp_path)
    assert path.is_file()
    left = [file.name for file in tmp_path.rglob("*")]
    assert not [name for name in left if name.endswith(".part") or name.startswith(".")]


def test_processes_that_write_to_one_folder_keep_their_rows(tmp_path: Path) -> None:
    (tmp_path / ".rows.part").mkdir()  # left behind by a killed process
    with spool_folder(tmp_path) as first:
        (first / "0").write_text("rows")
        with spool_folder(tmp_path) as second:
            assert first != second
        assert (first / "0").read_text() == "rows"
        assert list(tmp_path.iterdir()) == [first]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", STREAMING)
def test_earlier_batches_are_released(write: Write, tmp_path: Path) -> None:
    """Only the last batch is in memory when the next one is requested, so long videos fit."""
    references: list[weakref.ref[Any]] = []

    def predict_with_weak_references() -> Iterator[Prediction]:
        for batch in make_predictions(STILLS, batch=1):
            # `make_predictions` returns a list, which keeps the landmarks of all batches alive. So yield a
            # copy that nothing else refers to.
            copy = batch._replace(landmarks=type(batch.landmarks)(*vars(batch.landmarks).values()))
            gc.collect()
            assert [reference() for reference in references[:-1]] == [None] * len(references[:-1])
            references.append(weakref.ref(copy.landmarks))
            yield copy
            del copy

    _require_packages(write)(predict_with_weak_references(), CARD, tmp_path)
    assert len(references) == len(STILLS) == 3


@pytest.mark.parametrize(
    ("write", "package"),
    [(write, package) for write, packages in REQUIRED_PACKAGES.items() for package in packages],
)
def test_a_missing_package_is_a_clear_error(
    write: Write, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _require_packages(write)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs the package {package}.*: pip install [a-z0-9 ]+$"):
        write(make_predictions(STILLS), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []
