"""Test what all export formats guarantee: atomic files, clear errors, and bounded memory.

The test of the files that a format announces covers all formats. The other tests leave out four formats: CSV,
and SLEAP, NWB and Ultralytics, whose errors are tested in their own modules.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export import FORMATS, get_writer, list_replaced_files
from selfmark.export.coco_keypoints import write_coco
from selfmark.export.coco_results import write_coco_results
from selfmark.export.cvat import write_cvat
from selfmark.export.dlc import write_dlc, write_dlc_h5
from selfmark.export.label_studio import write_label_studio
from selfmark.export.lightning_pose import write_lightning_pose
from selfmark.export.output_files import spool_folder
from selfmark.export.parquet import write_parquet
from tests.export.fakes import CARD, CROWD, FRAMES, STILLS, TWO_OBJECTS, make_predictions
from tests.images.videos import encode_video

REQUIRED_PACKAGES = {write_dlc_h5: ("pandas", "tables", "h5py"), write_parquet: ("pyarrow",)}
OPTIONAL_PACKAGES = {
    "dlc-h5": ("pandas", "tables", "h5py"),
    "parquet": ("pyarrow",),
    "nwb": ("pynwb", "ndx_pose"),
    "sleap": ("sleap_io",),
    "sleap-analysis": ("sleap_io",),
}
# Formats whose writers keep only the last batch of predictions in memory.
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


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("objects", [STILLS, TWO_OBJECTS, FRAMES, CROWD])
def test_a_format_writes_only_the_files_that_it_announces(
    output_format: str, objects: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`predict` relies on the announced files when it checks that no input file is replaced."""
    for package in OPTIONAL_PACKAGES.get(output_format, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    paths = {ref.path for ref, _ in objects}
    if objects in (FRAMES, CROWD):
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            encode_video(path, "mpeg4", frames=12)
    else:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(path)
    out = tmp_path / "out"
    out.mkdir()
    if output_format == "sleap-analysis" and objects in (STILLS, TWO_OBJECTS):
        return  # the format sleap-analysis refuses still images
    get_writer(output_format)(make_predictions(objects), replace(CARD, names=("a", "b", "c", "d")), out)
    # These folders are refused if they exist already.
    new_folders = [out / name for name in ("frames", "labeled-data", "ultralytics")]
    written = {
        path
        for path in out.rglob("*")
        if path.is_file() and not any(path.is_relative_to(folder) for folder in new_folders)
    }
    assert written or output_format == "ultralytics"
    assert written <= set(list_replaced_files(output_format, out))


def test_processes_that_write_to_one_folder_keep_their_rows(tmp_path: Path) -> None:
    (tmp_path / ".rows.0a1b2c3d.part").mkdir()  # left behind by a killed process
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
