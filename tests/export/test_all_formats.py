"""What every format promises: whole or not at all, one sentence when it cannot be, and batches let go of."""

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
from selfmark.export.parquet import write_parquet
from tests.export.fakes import CARD, STILLS, predictions

NEEDS = {write_dlc_h5: ("pandas", "tables"), write_parquet: ("pyarrow",)}
STREAMING = [
    write_coco,
    write_coco_results,
    write_cvat,
    write_dlc,
    write_dlc_h5,
    write_lightning_pose,
    write_parquet,
]
ALL = [*STREAMING, write_label_studio]

Write = Callable[..., Path]


def _ready(write: Write) -> Write:
    for package in NEEDS.get(write, ()):
        pytest.importorskip(package)
    return write


@pytest.mark.parametrize("write", ALL)
def test_a_folder_that_cannot_be_written_to_is_refused_before_predicting(
    write: Write, tmp_path: Path
) -> None:
    def never() -> Iterator[Prediction]:
        raise AssertionError("predicted first")
        yield

    blocked = tmp_path / "file"
    blocked.touch()
    for folder in (blocked, tmp_path / "missing"):
        with pytest.raises(InputError, match=f"^cannot write to {folder}: [A-Z][a-z ]+$"):
            _ready(write)(never(), CARD, folder)


@pytest.mark.parametrize("write", ALL)
def test_nothing_is_left_when_predicting_fails(write: Write, tmp_path: Path) -> None:
    def failing() -> Iterator[Prediction]:
        yield from predictions(STILLS)
        raise InputError("the video is broken")

    with pytest.raises(InputError, match="broken"):
        _ready(write)(failing(), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", ALL)
def test_nothing_but_the_named_files_is_left_at_the_end(write: Write, tmp_path: Path) -> None:
    path = _ready(write)(predictions(STILLS), CARD, tmp_path)
    assert path.is_file()
    left = [file.name for file in tmp_path.rglob("*")]
    assert not [name for name in left if name.endswith(".part") or name.startswith(".")]


@pytest.mark.parametrize("write", STREAMING)
def test_batches_are_let_go_of(write: Write, tmp_path: Path) -> None:
    """An hour of video must fit: when a batch is asked for, those before the last one are gone."""
    held: list[weakref.ref[Any]] = []

    def watched() -> Iterator[Prediction]:
        for batch in iter(predictions(STILLS, batch=1)):
            copy = batch._replace(landmarks=type(batch.landmarks)(*vars(batch.landmarks).values()))
            gc.collect()
            assert [one() for one in held[:-1]] == [None] * len(held[:-1])
            held.append(weakref.ref(copy.landmarks))
            yield copy
            del copy

    _ready(write)(watched(), CARD, tmp_path)
    assert len(held) == len(STILLS) == 3


@pytest.mark.parametrize(
    ("write", "package"), [(w, package) for w, needed in NEEDS.items() for package in needed]
)
def test_a_missing_package_is_one_sentence(
    write: Write, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ready(write)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"needs the package {package}.*: pip install [a-z ]+$"):
        write(predictions(STILLS), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []
